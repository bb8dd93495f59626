import numpy as np
import pytest
import torch

from boldcast.model.initial import Draw
from boldcast.model.skip import LinearSkip, fit_skip

HORIZONS = (1, 3)
N_REGIONS, N_LAGS = 5, 3


def scans(lengths=(80, 61), seed=0):
    rng = np.random.default_rng(seed)
    mixing = 0.5 * np.eye(N_REGIONS) + 0.1 * rng.standard_normal((N_REGIONS, N_REGIONS))
    result = []
    for n in lengths:
        noise = rng.standard_normal((n, N_REGIONS))
        x = np.zeros_like(noise)
        for t in range(1, n):
            x[t] = mixing @ x[t - 1] + noise[t]
        result.append(((x - x.mean(0)) / x.std(0)).astype(np.float32))
    return result


def fitted(rank, ridge, series=None, mask=None):
    module = LinearSkip(N_REGIONS, HORIZONS, N_LAGS, rank)
    everything = np.ones(N_REGIONS, dtype=bool)
    fit_skip(
        module, scans() if series is None else series, everything if mask is None else mask, ridge
    )
    return module


def by_rows(horizon, n_rows_lost):
    """Design (rows, R, L), targets (rows, R), written as a plain loop."""
    past, target = [], []
    for x in scans():
        for t in range(N_LAGS - 1, len(x) - n_rows_lost):
            past.append([x[t - lag] for lag in range(N_LAGS)])
            target.append(x[t + horizon])
    return np.array(past, dtype=float).transpose(0, 2, 1), np.array(target, dtype=float)


def ridge_lstsq(design, target, ridge):
    """Ridge as ordinary least squares with penalty rows appended."""
    n = design.shape[1]
    zeros = np.zeros((n, *target.shape[1:]))
    stacked = np.concatenate([design, np.sqrt(ridge) * np.eye(n)])
    return np.linalg.lstsq(stacked, np.concatenate([target, zeros]), rcond=None)[0]


def test_forward_is_the_written_out_sum():
    module = LinearSkip(N_REGIONS, HORIZONS, N_LAGS, rank=2)
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 6, N_REGIONS)
    y = module(x)
    assert y.shape == (2, 6, N_REGIONS, 2)
    for t, r, h in [(0, 0, 0), (1, 4, 1), (5, 2, 0)]:
        own = sum(module.ar[h, r, lag] * x[1, t - lag, r] for lag in range(min(N_LAGS, t + 1)))
        joint = module.var_out[h, r] @ (module.var_in @ x[1, t])
        torch.testing.assert_close(y[1, t, r, h], own + joint)


@pytest.mark.parametrize("ridge", [0.0, 10.0])
def test_autoregression_equals_least_squares(ridge):
    module = fitted(rank=0, ridge=ridge)
    for index, horizon in enumerate(HORIZONS):
        past, target = by_rows(horizon, horizon)
        for region in range(N_REGIONS):
            expected = ridge_lstsq(past[:, region], target[:, region], ridge)
            np.testing.assert_allclose(module.ar[index, region].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 10.0])
def test_full_rank_var_equals_least_squares_of_the_residual(ridge):
    series = scans()
    one_horizon = LinearSkip(N_REGIONS, (2,), N_LAGS, rank=N_REGIONS)
    fit_skip(one_horizon, series, np.ones(N_REGIONS, dtype=bool), ridge)
    past, target = by_rows(2, 2)
    coefficients = [
        ridge_lstsq(past[:, region], target[:, region], ridge) for region in range(N_REGIONS)
    ]
    residual = target - np.einsum("nrl,rl->nr", past, np.array(coefficients))
    expected = ridge_lstsq(past[:, :, 0], residual, ridge)
    found = (one_horizon.var_out[0] @ one_horizon.var_in).T.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_low_rank_var_loses_least_of_the_fitted_values(rank):
    """Eckart-Young on the (penalty-augmented) fitted values, computed from the data matrix."""
    ridge = 10.0
    full = fitted(rank=N_REGIONS * len(HORIZONS), ridge=ridge)
    # With rank R and two horizons, factors of rank R are exact: (R, 2R) has rank R.
    matrix = (full.var_out.flatten(0, 1) @ full.var_in).T.double().numpy()
    present = by_rows(max(HORIZONS), max(HORIZONS))[0][:, :, 0]
    augmented = np.concatenate([present, np.sqrt(ridge) * np.eye(N_REGIONS)])
    u, s, vt = np.linalg.svd(augmented @ matrix, full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vt[:rank]
    cut = fitted(rank=rank, ridge=ridge)
    assert cut.var_in.shape == (rank, N_REGIONS)
    columns = cut.var_out.flatten(0, 1)
    assert (columns.gather(0, columns.abs().argmax(0, keepdim=True)) > 0).all()  # signs are fixed
    found = augmented @ (cut.var_out.flatten(0, 1) @ cut.var_in).T.double().numpy()
    np.testing.assert_allclose(found, best, atol=2e-5)


def test_fit_freezes_and_ignores_masked_regions():
    mask = np.array([True, True, False, True, True])
    module = fitted(rank=2, ridge=1.0, mask=mask)
    assert not any(p.requires_grad for p in module.parameters())
    assert not module.ar[:, 2].any()
    assert not module.var_in[:, 2].any()
    assert not module.var_out[:, 2].any()
    poisoned = [scan.copy() for scan in scans()]
    for scan in poisoned:
        scan[:, 2] = np.nan
    again = fitted(rank=2, ridge=1.0, series=poisoned, mask=mask)
    for a, b in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_fit_has_the_same_bits_under_any_thread_setting():
    # Long sums, kept in float64: rounding to float32 would hide most differences.
    scan = np.random.default_rng(0).standard_normal((3000, 60)).astype(np.float32)
    before = torch.get_num_threads()
    results = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        module = LinearSkip(60, HORIZONS, N_LAGS, rank=2).double()
        fit_skip(module, [scan], np.ones(60, dtype=bool), ridge=1.0)
        results.append(module.state_dict())
        assert torch.get_num_threads() == n_threads
    torch.set_num_threads(before)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_short_scans_are_passed_over_and_none_is_an_error():
    module = fitted(rank=1, ridge=1.0, series=[*scans(), scans()[0][:5]])
    assert torch.equal(module.ar, fitted(rank=1, ridge=1.0).ar)
    with pytest.raises(ValueError, match="6 volumes"):
        fitted(rank=1, ridge=1.0, series=[scans()[0][:5]])


def test_recovers_a_known_autoregression():
    rng = np.random.default_rng(1)
    noise, x = rng.standard_normal(40_000), np.zeros(40_000)
    for t in range(2, len(x)):
        x[t] = 0.6 * x[t - 1] - 0.3 * x[t - 2] + noise[t]
    module = LinearSkip(1, (1,), 2, 0)
    fit_skip(module, [x[:, None].astype(np.float32)], np.ones(1, dtype=bool), 0.0)
    np.testing.assert_allclose(module.ar.flatten().numpy(), [0.6, -0.3], atol=0.02)


def test_trained_path_starts_at_zero_and_both_factors_can_learn():
    module = LinearSkip(N_REGIONS, HORIZONS, N_LAGS, rank=2)
    module.initialize(Draw(0))
    x = torch.randn(2, 6, N_REGIONS)
    assert not module(x).any()
    ((module(x) - 1) ** 2).sum().backward()
    assert module.ar.grad.any()
    assert module.var_out.grad.any()


def test_precision_is_kept_under_autocast():
    module = fitted(rank=2, ridge=1.0)
    x = torch.randn(2, 6, N_REGIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module(x)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, module(x))
