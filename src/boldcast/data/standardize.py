"""Put regions of different scale side by side: z-scores over the scan, or over the past only.

The habit of the field is to z-score over the scan, which lets every value know the mean and the
deviation of volumes after it. ``causal_zscore`` uses none of them.

Example
-------
>>> import numpy as np
>>> scan_zscore(np.array([[1.0], [3.0]])).ravel().tolist()
[-1.0, 1.0]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CAUSAL_START = 16
"""Volumes from whose mean and deviation the first causal score is computed."""


def scan_zscore(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the series minus its mean, over its deviation (divided by n), region by region.

    A region without deviation becomes zero.

    Parameters
    ----------
    series : float64 array, shape (n_volumes, n_regions)
        A scan in its own units.
    """
    centred = series - series.mean(axis=0)
    deviation = np.sqrt((centred * centred).mean(axis=0))
    return _divided(centred, deviation)


def causal_zscore(
    series: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return each volume minus the mean, over the deviation, of the volumes up to and with it.

    The first 15 volumes (``CAUSAL_START`` - 1) have too few before them: they are zero and marked
    as not observed, so that no window holds them. Mean and deviation are carried forward by
    Welford's recurrence, which does not lose the digits that sums of squares would.

    Parameters
    ----------
    series : float64 array, shape (n_volumes, n_regions)
        A scan in its own units.

    Returns
    -------
    scores : float64 array, shape (n_volumes, n_regions)
    observed : bool array, shape (n_volumes,)

    References
    ----------
    Welford (1962), Technometrics 4, 419-420.
    """
    scores = np.zeros_like(series)
    mean = np.zeros(series.shape[1])
    squares = np.zeros(series.shape[1])
    for index, volume in enumerate(series):
        step = volume - mean
        mean = mean + step / (index + 1)
        squares = squares + step * (volume - mean)
        if index + 1 >= CAUSAL_START:
            scores[index] = _divided(volume - mean, np.sqrt(squares / (index + 1)))
    return scores, np.arange(len(series)) >= CAUSAL_START - 1


def _divided(centred: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    out: NDArray[np.float64] = np.zeros_like(centred)
    np.divide(centred, deviation, out=out, where=deviation > 0)
    return out
