import numpy as np
import pytest

from boldcast.score.baselines import ar_forecast, ar_mse, fit_ar, trivial_mse

T, HORIZONS, R = 6, (1, 3), 4


def windows(n=5, seed=0, gaps=False):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, T + max(HORIZONS), R)).astype(np.float32)
    seen = rng.random((n, T + max(HORIZONS))) > 0.3 if gaps else np.ones(x.shape[:2], bool)
    return x, seen


def by_loops(x, seen, mask, rule):
    """Average (x[t+h] - rule)^2 one cell at a time."""
    result = []
    for h in HORIZONS:
        errors = [
            (float(x[b, t + h, r]) - rule(x[b, : t + 1, r], seen[b, : t + 1])) ** 2
            for b in range(len(x))
            for t in range(T)
            for r in range(R)
            if mask[r] and seen[b, t + h]
        ]
        result.append(sum(errors) / len(errors))
    return result


def last_seen(past, seen):
    known = [float(value) for value, ok in zip(past, seen, strict=True) if ok]
    return known[-1] if known else 0.0


def mean_seen(past, seen):
    known = [float(value) for value, ok in zip(past, seen, strict=True) if ok]
    return sum(known) / len(known) if known else 0.0


RULES = {"zero": lambda past, seen: 0.0, "persistence": last_seen, "window_mean": mean_seen}


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", sorted(RULES))
def test_each_trivial_forecast_agrees_with_plain_loops(name, gaps):
    x, seen = windows(gaps=gaps)
    mask = np.array([True, False, True, True])
    got = trivial_mse([(x, seen)], T, HORIZONS, mask)[name]
    assert got == pytest.approx(by_loops(x, seen, mask, RULES[name]), rel=1e-12)


def test_closed_form_on_a_ramp():
    # x[t] = t: persistence is off by h, zero by t + h, the mean of 0..t by t/2 + h.
    ramp = np.arange(T + 3, dtype=np.float32)[None, :, None]
    got = trivial_mse([(ramp, np.ones((1, T + 3), bool))], T, HORIZONS, np.ones(1, bool))
    t = np.arange(T)
    for index, h in enumerate(HORIZONS):
        assert got["persistence"][index] == h * h
        assert got["zero"][index] == pytest.approx(np.mean((t + h) ** 2))
        assert got["window_mean"][index] == pytest.approx(np.mean((t / 2 + h) ** 2))


def test_grouping_into_batches_does_not_change_a_bit():
    x, seen = windows(n=13, gaps=True)
    mask = np.ones(R, bool)
    weights = np.random.default_rng(1).standard_normal((2, R, 8))
    cuts = {1: range(0, 13, 1), 4: range(0, 13, 4), 13: range(0, 13, 13)}
    results = []
    for size, starts in cuts.items():
        spans = [(x[i : i + size], seen[i : i + size]) for i in starts]
        got = trivial_mse(spans, T, HORIZONS, mask)
        got["ar"] = ar_mse(weights, spans, T, HORIZONS, mask)
        results.append({name: value.tobytes() for name, value in got.items()})
    assert results[0] == results[1] == results[2]


def test_nan_in_unobserved_volumes_and_masked_regions_does_not_leak():
    x, seen = windows(gaps=True)
    mask = np.array([True, True, True, False])
    clean = trivial_mse([(x, seen)], T, HORIZONS, mask)
    x[~seen] = np.nan
    x[:, :, 3] = np.nan
    dirty = trivial_mse([(x, seen)], T, HORIZONS, mask)
    assert all(np.array_equal(clean[name], dirty[name]) for name in clean)


def test_shapes_and_empty_targets_are_refused():
    x, seen = windows()
    with pytest.raises(ValueError, match="span must be"):
        trivial_mse([(x[:, 1:], seen[:, 1:])], T, HORIZONS, np.ones(R, bool))
    with pytest.raises(ValueError, match="observed must be"):
        trivial_mse([(x, seen[:, 1:])], T, HORIZONS, np.ones(R, bool))
    with pytest.raises(ValueError, match="no observed target"):
        trivial_mse([(x, np.zeros_like(seen))], T, HORIZONS, np.ones(R, bool))


def planted(coefficients, n, seed):
    """One region of x[t] = sum c[j] x[t-1-j] + e."""
    rng = np.random.default_rng(seed)
    x = np.zeros(n + 100)
    for t in range(len(coefficients), len(x)):
        past = x[t - len(coefficients) : t][::-1]
        x[t] = np.dot(coefficients, past) + rng.standard_normal()
    return x[100:]


def test_planted_processes_give_back_their_coefficients_at_each_horizon():
    first, second = (0.6, -0.3), (0.5, 0.2)
    series = [
        np.stack([planted(first, 20_000, s), planted(second, 20_000, s + 50)], axis=1)
        for s in range(2)
    ]
    weights = fit_ar(series, (1, 2), lags=4, ridge=1e-6)
    for region, (a, b) in enumerate((first, second)):
        assert weights[0, region] == pytest.approx([a, b, 0, 0], abs=0.02)
        # Substituting the recursion once: x[t+2] = (a^2 + b) x[t] + a b x[t-1] + noise.
        assert weights[1, region] == pytest.approx([a * a + b, a * b, 0, 0], abs=0.02)


def test_the_fit_is_the_ridge_solution_of_an_augmented_least_squares_problem():
    rng = np.random.default_rng(3)
    scans = [rng.standard_normal((40, 2)), rng.standard_normal((25, 2))]
    lags, ridge = 3, 5.0
    weights = fit_ar(scans, HORIZONS, lags=lags, ridge=ridge)
    for index, h in enumerate(HORIZONS):
        for region in range(2):
            rows, targets = [], []
            for scan in scans:
                for t in range(lags - 1, len(scan) - max(HORIZONS)):
                    rows.append([scan[t - j, region] for j in range(lags)])
                    targets.append(scan[t + h, region])
            design = np.vstack([rows, np.sqrt(ridge) * np.eye(lags)])
            expected = np.linalg.lstsq(design, np.r_[targets, np.zeros(lags)], rcond=None)[0]
            assert weights[index, region] == pytest.approx(expected, abs=1e-10)


def test_forecasts_use_zeros_before_the_start():
    weights = np.arange(1.0, 7.0).reshape(1, 2, 3)
    x = np.random.default_rng(0).standard_normal((5, 2))
    got = ar_forecast(weights, x)
    for t in range(5):
        for r in range(2):
            expected = sum(weights[0, r, j] * x[t - j, r] for j in range(3) if t - j >= 0)
            assert got[t, r, 0] == pytest.approx(expected)


def test_ar_error_over_windows_agrees_with_its_forecasts():
    x, seen = windows()
    weights = fit_ar([x[0], x[1]], HORIZONS, lags=2)
    got = ar_mse(weights, [(x, seen)], T, HORIZONS, np.ones(R, bool))
    made = np.stack([ar_forecast(weights, window[:T]) for window in x])
    for index, h in enumerate(HORIZONS):
        expected = np.mean((x[:, h : h + T].astype(float) - made[..., index]) ** 2)
        assert got[index] == pytest.approx(expected)


def test_fitting_refuses_scans_that_are_too_short_and_bad_settings():
    with pytest.raises(ValueError, match="no scan"):
        fit_ar([np.zeros((5, 2))], (1, 3), lags=3)
    with pytest.raises(ValueError, match="ridge"):
        fit_ar([np.zeros((50, 2))], (1,), ridge=-1.0)
