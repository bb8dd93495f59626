"""The forecasts that a model has to beat, on the very windows and positions of its own loss.

Three need no training: *zero* (the mean of z-scored data), *persistence* (the volume stays as it
is) and *window mean* (the mean of the window so far). The fourth, an autoregression of each region
on its own past, is the simplest one that the field considers an honest opponent; it is fitted for
each horizon directly, not by iterating one-step forecasts. Shapes: B windows, T ``context_length``,
R regions, H horizons, L lags.

Example
-------
>>> import numpy as np
>>> x = np.zeros((1, 5, 2), np.float32)
>>> scores = trivial_mse([(x, np.ones((1, 5), bool))], 4, (1,), np.ones(2, bool))
>>> float(scores["zero"][0])
0.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Span = tuple[NDArray[np.float32], Bools]
Forecast = Callable[[Floats, Bools], Floats]
"""From a window's volumes (T, R) and their observation mask (T,) to forecasts (T, R, H)."""


def trivial_mse(
    spans: Iterable[Span], context_length: int, horizons: Sequence[int], region_mask: Bools
) -> dict[str, Floats]:
    """Mean squared error of the three forecasts that need no training.

    Every position t = 0 .. T-1 forecasts volume t+h. A target counts where its volume is observed
    and its region unmasked. Unobserved volumes are not looked at: persistence repeats the last
    observed one, the window mean leaves them out, and both say zero before the first.

    Parameters
    ----------
    spans : iterable of (array, array)
        Windows with the volumes they forecast, float32 (B, T + max(horizons), R), and which
        volumes were observed, bool (B, T + max(horizons)). In window order; how they are grouped
        into batches does not change a bit of the result.
    context_length : int
        T, volumes.
    horizons : sequence of int
        Volumes ahead, each at least 1.
    region_mask : bool array (R,)
        Regions that count.

    Returns
    -------
    dict
        ``zero``, ``persistence`` and ``window_mean`` to a float64 array (H,).

    Raises
    ------
    ValueError
        If a shape does not fit, or no target is observed at some horizon.
    """
    n = len(horizons)
    forecasts: dict[str, Forecast] = {
        "zero": lambda x, seen: np.zeros((*x.shape, n)),
        "persistence": lambda x, seen: np.repeat(_last_observed(x, seen)[:, :, None], n, axis=2),
        "window_mean": lambda x, seen: np.repeat(_running_mean(x, seen)[:, :, None], n, axis=2),
    }
    return window_mse(forecasts, spans, context_length, horizons, region_mask)


def ar_mse(
    weights: Floats,
    spans: Iterable[Span],
    context_length: int,
    horizons: Sequence[int],
    region_mask: Bools,
) -> Floats:
    """Mean squared error (H,) of a fitted autoregression, as ``trivial_mse`` counts it.

    Lags that reach before the window's start, and unobserved volumes, are zero.
    """
    kept = weights[:, np.asarray(region_mask, bool)]

    def forecast(x: Floats, seen: Bools) -> Floats:
        return ar_forecast(kept, np.where(seen[:, None], x, 0.0))

    return window_mse({"ar": forecast}, spans, context_length, horizons, region_mask)["ar"]


def window_mse(
    forecasts: Mapping[str, Forecast],
    spans: Iterable[Span],
    context_length: int,
    horizons: Sequence[int],
    region_mask: Bools,
) -> dict[str, Floats]:
    """Mean squared error (H,) of each forecast over windows; see ``trivial_mse``."""
    mask = np.asarray(region_mask, bool)
    length = context_length + max(horizons)
    totals = {name: np.zeros(len(horizons)) for name in forecasts}
    cells = np.zeros(len(horizons), np.int64)
    for batch, observed in spans:
        _check_span(batch, observed, length, mask)
        for window, seen in zip(batch, observed, strict=True):
            x = window[:, mask].astype(np.float64)
            cells += [int(seen[h : h + context_length].sum()) * x.shape[1] for h in horizons]
            for name, forecast in forecasts.items():
                made = forecast(x[:context_length], seen[:context_length])
                totals[name] += _window_errors(x, seen, made, horizons)
    if not cells.all():
        raise ValueError(f"no observed target at horizons {list(horizons)}: counted {list(cells)}")
    return {name: total / cells for name, total in totals.items()}


def _window_errors(x: Floats, seen: Bools, made: Floats, horizons: Sequence[int]) -> Floats:
    length = len(made)
    errors = np.empty(len(horizons))
    for index, h in enumerate(horizons):
        difference = (x[h : h + length] - made[:, :, index])[seen[h : h + length]]
        errors[index] = np.sum(np.square(difference))
    return errors


def _check_span(batch: NDArray[np.float32], observed: Bools, length: int, mask: Bools) -> None:
    if batch.ndim != 3 or batch.shape[1:] != (length, len(mask)):
        raise ValueError(f"span must be (B, {length}, {len(mask)}), but is {batch.shape}")
    if observed.shape != batch.shape[:2]:
        raise ValueError(f"observed must be {batch.shape[:2]}, but is {observed.shape}")


def _last_observed(x: Floats, seen: Bools) -> Floats:
    last = np.maximum.accumulate(np.where(seen, np.arange(len(x)), -1))
    return np.where((last >= 0)[:, None], x[np.maximum(last, 0)], 0.0)


def _running_mean(x: Floats, seen: Bools) -> Floats:
    count = np.maximum(np.cumsum(seen), 1)[:, None]
    return np.asarray(np.cumsum(np.where(seen[:, None], x, 0.0), axis=0) / count)


def fit_ar(
    series: Sequence[NDArray[np.floating]],
    horizons: Sequence[int],
    lags: int = 8,
    ridge: float = 1.0,
) -> Floats:
    """Fit one ridge autoregression per region and horizon.

    Solves min over w of sum over t of (x[t+h] - sum over j of w[j] x[t-j])^2 + ridge |w|^2, over
    all scans together, in float64, with t such that every lag and every horizon lies in the scan.

    Parameters
    ----------
    series : sequence of arrays (n_volumes, R)
        Training scans, standardized as the model sees them (there is no intercept).
    horizons : sequence of int
        Volumes ahead.
    lags : int
        L; lag 0 is the newest volume.
    ridge : float
        Penalty, in units of one z-scored volume's square.

    Returns
    -------
    array, float64 (H, R, L)
        Weight of x[t-j] in the forecast of x[t+h].

    Raises
    ------
    ValueError
        If no scan is long enough, or ``lags`` or ``ridge`` is out of range.
    """
    if lags < 1 or ridge < 0:
        raise ValueError(f"lags must be >= 1 and ridge >= 0, but are {lags} and {ridge}")
    gram: Floats | float = 0.0
    cross: Floats | float = 0.0
    for scan in series:
        x = np.asarray(scan, np.float64)
        n = len(x) - lags + 1 - max(horizons)
        if n < 1:
            continue
        design = sliding_window_view(x, lags, axis=0)[:n, :, ::-1].transpose(1, 2, 0)
        origin = lags - 1
        target = np.stack([x[origin + h : origin + h + n].T for h in horizons], axis=2)
        gram = gram + design @ design.transpose(0, 2, 1)
        cross = cross + design @ target
    if isinstance(gram, float):
        raise ValueError(f"no scan has the {lags} lags and {max(horizons)} volumes ahead")
    return np.ascontiguousarray(
        np.linalg.solve(gram + ridge * np.eye(lags), cross).transpose(2, 0, 1)
    )


def ar_forecast(weights: Floats, series: NDArray[np.floating]) -> Floats:
    """Forecast from every volume of a scan or window with a fitted autoregression.

    Parameters
    ----------
    weights : array (H, R, L)
        From ``fit_ar``.
    series : array (n_volumes, R)
        What is known; volumes before its start count as zero.

    Returns
    -------
    array, float64 (n_volumes, R, H)
        Element [t, r, i] forecasts volume t + horizons[i] from volumes up to and including t.
    """
    x = np.asarray(series, np.float64)
    out = np.zeros((*x.shape, len(weights)))
    for lag in range(min(weights.shape[2], len(x))):
        out[lag:] += x[: len(x) - lag, :, None] * weights[:, :, lag].T
    return out
