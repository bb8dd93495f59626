import numpy as np
import pytest

from boldcast.score.var import fit_var, var_forecast

A = np.array([[0.5, 0.3, 0.0], [0.0, 0.4, -0.3], [0.2, 0.0, 0.5]])


def planted(n, seed):
    rng = np.random.default_rng(seed)
    x = np.zeros((n + 50, 3))
    for t in range(1, len(x)):
        x[t] = A @ x[t - 1] + rng.standard_normal(3)
    return x[50:]


def test_a_planted_process_gives_back_its_matrix_and_its_square():
    var = fit_var([planted(20_000, s) for s in range(2)], (1, 2), lags=2, ridges=(1e-3,))
    assert pytest.approx(A, abs=0.02) == var.weights[0][:3].T
    assert pytest.approx(A @ A, abs=0.03) == var.weights[1][:3].T
    assert var.weights[:, 3:] == pytest.approx(np.zeros((2, 3, 3)), abs=0.03)


def test_the_penalty_is_the_best_one_over_scans_left_out():
    scans = [planted(30, s) for s in range(3)]
    ridges, lags, horizons = (0.1, 10.0, 1000.0), 2, (1, 4)

    def rows(scan, h):
        origins = range(lags - 1, len(scan) - max(horizons))
        design = [np.concatenate([scan[t - j] for j in range(lags)]) for t in origins]
        return np.array(design), np.array([scan[t + h] for t in origins])

    var = fit_var(scans, horizons, lags, ridges)
    for index, h in enumerate(horizons):
        errors = []
        for ridge in ridges:
            error = 0.0
            for left_out in range(3):
                parts = [rows(s, h) for i, s in enumerate(scans) if i != left_out]
                x, y = (np.vstack(part) for part in zip(*parts, strict=True))
                w = np.linalg.solve(x.T @ x + ridge * np.eye(6), x.T @ y)
                x_out, y_out = rows(scans[left_out], h)
                error += np.sum((y_out - x_out @ w) ** 2)
            errors.append(error)
        assert var.ridge[index] == ridges[int(np.argmin(errors))]
    assert len(set(errors)) == 3


def test_forecasts_apply_the_weights_to_the_volumes_known():
    scan = planted(12, 0)
    var = fit_var([planted(200, 1)], (1, 2), lags=2, ridges=(1.0,))
    got = var_forecast(var, scan)
    padded = np.vstack([np.zeros((1, 3)), scan])
    for t in range(12):
        for index in range(2):
            expected = np.concatenate([padded[t + 1], padded[t]]) @ var.weights[index]
            assert got[t, :, index] == pytest.approx(expected)


def test_one_scan_takes_the_middle_penalty_and_misuse_is_refused():
    assert fit_var([planted(60, 0)], (1,), ridges=(1.0, 7.0, 50.0)).ridge == (7.0,)
    with pytest.raises(ValueError, match="no scan"):
        fit_var([planted(3, 0)], (1, 3))
    with pytest.raises(ValueError, match="ridges"):
        fit_var([planted(60, 0)], (1,), ridges=(0.0,))
