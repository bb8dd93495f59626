import numpy as np

from boldcast.score.baselines import ar_forecast, fit_ar
from boldcast.score.linear import MOST_VAR_REGIONS, LinearForecasts
from boldcast.score.var import fit_var, var_forecast


def scans(n_regions, n=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((80, n_regions)).astype(np.float32) for _ in range(n)]


def test_a_masked_region_is_forecast_as_zero_and_changes_no_other():
    train = scans(4)
    mask = np.array([True, False, True, True])
    made = LinearForecasts.fit(train, (1, 2), mask)
    spoilt = [np.where(mask, scan, 1e6).astype(np.float32) for scan in train]
    again = LinearForecasts.fit(spoilt, (1, 2), mask)
    for name, forecasts in made.forecast(train[0]).items():
        assert forecasts.shape == (80, 4, 2)
        assert not forecasts[:, 1].any()
        assert np.array_equal(forecasts, again.forecast(spoilt[0])[name])


def test_the_autoregression_is_that_of_the_baselines():
    train = scans(3)
    made = LinearForecasts.fit(train, (1,), np.ones(3, bool)).forecast(train[1])
    assert np.array_equal(made["ar8"], ar_forecast(fit_ar(train, (1,), 8), train[1]))


def test_no_var_where_its_fit_would_take_minutes():
    train = scans(MOST_VAR_REGIONS + 1, n=2)
    made = LinearForecasts.fit(train, (1,), np.ones(MOST_VAR_REGIONS + 1, bool))
    assert sorted(made.forecast(train[0])) == ["ar8"]


def test_the_residual_var_is_that_of_what_the_autoregression_leaves():
    """One lag, no ridge to speak of: ordinary least squares of the residual, by numpy."""
    train = scans(3, n=2)
    horizons = (1, 3)
    explained = [ar_forecast(fit_ar(train, horizons, 8), scan) for scan in train]
    fitted = fit_var(train, horizons, lags=1, ridges=(1e-9,), explained=explained)
    usable = 80 - max(horizons)
    design = np.concatenate([scan[:usable] for scan in train]).astype(np.float64)
    for index, h in enumerate(horizons):
        left = np.concatenate(
            [
                scan[h : h + usable] - made[:usable, :, index]
                for scan, made in zip(train, explained, strict=True)
            ]
        )
        expected = np.linalg.lstsq(design, left, rcond=None)[0]
        assert np.allclose(fitted.weights[index], expected, atol=1e-6)


def test_the_sum_is_what_its_parts_say():
    train = scans(3)
    linear = LinearForecasts.fit(train, (1,), np.ones(3, bool))
    made = linear.forecast(train[0])
    residual = made["ar8_var2"] - made["ar8"]
    assert np.allclose(residual, var_forecast(linear.residual_var, train[0]))
