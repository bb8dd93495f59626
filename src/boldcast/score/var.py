"""A ridge vector autoregression: every region forecast from all regions' last volumes.

With a penalty chosen on left-out training scans it is the strongest plain linear forecast of
parcellated BOLD, and so the bar that matters. Only Gram matrices are kept, so memory does not grow
with the number of scans. Shapes: R regions, H horizons, L lags, K = L x R.

Example
-------
>>> import numpy as np
>>> x = np.random.default_rng(0).standard_normal((200, 3))
>>> fit_var([x, x[::-1]], (1,)).weights.shape
(1, 6, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RIDGES = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
MAX_FOLDS = 5


@dataclass(frozen=True)
class Var:
    """A fitted vector autoregression: ``weights`` (H, K, R) and the ``ridge`` of each horizon."""

    weights: Floats
    ridge: tuple[float, ...]
    lags: int


@dataclass
class _Moments:
    """Sums over origins: design by design (K, K), by targets (H, K, R), targets squared (H,)."""

    gram: Floats
    cross: Floats
    power: Floats

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(self.gram + other.gram, self.cross + other.cross, self.power + other.power)

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(self.gram - other.gram, self.cross - other.cross, self.power - other.power)


def fit_var(
    series: Sequence[NDArray[np.floating]],
    horizons: Sequence[int],
    lags: int = 2,
    ridges: Sequence[float] = RIDGES,
    explained: Sequence[Floats] | None = None,
) -> Var:
    """Fit a direct ridge VAR per horizon, its penalty chosen by leaving scans out.

    Scan i belongs to fold i modulo the number of folds (at most five); the penalty with the least
    squared error over the left-out folds is taken, for each horizon, and the fit is then made on
    all scans. With a single scan nothing can be left out and the middle of ``ridges`` is taken.

    Parameters
    ----------
    series : sequence of arrays (n_volumes, R)
        Training scans, standardized as the model sees them, without masked regions.
    horizons : sequence of int
        Volumes ahead.
    lags : int
        L; lag 0 is the newest volume.
    ridges : sequence of float
        Penalties to choose from, each above 0, in units of one z-scored volume's square.
    explained : sequence of arrays (n_volumes, R, H), optional
        What another forecaster says from every volume of each scan; the VAR is then fitted to
        what that leaves, and to be added to it.

    Returns
    -------
    Var
        Weights and chosen penalties.

    Raises
    ------
    ValueError
        If no scan is long enough or a penalty is not above zero.
    """
    if not ridges or min(ridges) <= 0 or lags < 1:
        raise ValueError(f"ridges must be > 0 and lags >= 1, but are {ridges} and {lags}")
    made: Sequence[Floats | None] = explained or [None] * len(series)
    usable = [
        (scan, other)
        for scan, other in zip(series, made, strict=True)
        if len(scan) >= lags + max(horizons)
    ]
    if not usable:
        raise ValueError(f"no scan has the {lags} lags and {max(horizons)} volumes ahead")
    folds = _fold_moments(usable, horizons, lags)
    total = folds[0]
    for fold in folds[1:]:
        total = total + fold
    middle = float(ridges[(len(ridges) - 1) // 2])
    chosen = _choose(folds, total, ridges) if len(folds) > 1 else [middle] * len(horizons)
    values, vectors = np.linalg.eigh(total.gram)
    weights = np.stack(
        [_solve(values, vectors, total.cross[i], ridge) for i, ridge in enumerate(chosen)]
    )
    return Var(weights, tuple(chosen), lags)


def _fold_moments(
    series: Sequence[tuple[NDArray[np.floating], Floats | None]],
    horizons: Sequence[int],
    lags: int,
) -> list[_Moments]:
    folds: list[_Moments] = []
    for index, (scan, explained) in enumerate(series):
        moments = _moments(np.asarray(scan, np.float64), explained, horizons, lags)
        if index < MAX_FOLDS:
            folds.append(moments)
        else:
            folds[index % MAX_FOLDS] = folds[index % MAX_FOLDS] + moments
    return folds


def _moments(x: Floats, explained: Floats | None, horizons: Sequence[int], lags: int) -> _Moments:
    n = len(x) - lags + 1 - max(horizons)
    origin = lags - 1
    design = np.concatenate([x[origin - lag : origin - lag + n] for lag in range(lags)], axis=1)
    targets = [x[origin + h : origin + h + n] for h in horizons]
    if explained is not None:
        targets = [
            target - explained[origin : origin + n, :, index]
            for index, target in enumerate(targets)
        ]
    return _Moments(
        design.T @ design,
        np.stack([design.T @ target for target in targets]),
        np.array([np.sum(np.square(target)) for target in targets]),
    )


def _solve(values: Floats, vectors: Floats, cross: Floats, ridge: float) -> Floats:
    return np.asarray(vectors @ ((vectors.T @ cross) / (np.maximum(values, 0.0) + ridge)[:, None]))


def _choose(folds: Sequence[_Moments], total: _Moments, ridges: Sequence[float]) -> list[float]:
    errors = np.zeros((len(ridges), len(total.power)))
    for fold in folds:
        rest = total - fold
        values, vectors = np.linalg.eigh(rest.gram)
        for i, ridge in enumerate(ridges):
            for j in range(len(total.power)):
                w = _solve(values, vectors, rest.cross[j], ridge)
                fit = np.sum(w * (fold.gram @ w)) - 2.0 * np.sum(w * fold.cross[j])
                errors[i, j] += fold.power[j] + fit
    return [float(ridges[i]) for i in np.argmin(errors, axis=0)]


def var_forecast(var: Var, series: NDArray[np.floating]) -> Floats:
    """Forecast from every volume of a scan; float64 (n_volumes, R, H), zero before the start.

    Element [t, r, i] forecasts volume t + horizons[i] from volumes up to and including t.
    """
    x = np.asarray(series, np.float64)
    design = np.zeros((len(x), var.lags * x.shape[1]))
    for lag in range(min(var.lags, len(x))):
        block = slice(lag * x.shape[1], (lag + 1) * x.shape[1])
        design[lag:, block] = x[: len(x) - lag]
    return np.stack([design @ w for w in var.weights], axis=2)
