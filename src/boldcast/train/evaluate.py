"""Forecast whole held-out scans, for the scores and pictures of the report.

The scan is cut into windows that overlap by half, and of each window only the second half of its
positions counts, so that every origin has between half a context and a whole one behind it, at
twice the cost of one pass over the data.

Example
-------
>>> window_starts(n_volumes=10, context_length=4)
[0, 2, 4, 6]
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boldcast.train.objective import Objective


def window_starts(n_volumes: int, context_length: int) -> list[int]:
    """Return where the half-overlapping windows of a scan start; the last ends with the scan."""
    hop = max(1, context_length // 2)
    last = n_volumes - context_length
    return [*range(0, last, hop), last]


@torch.no_grad()
def forecast_scan(
    model: nn.Module, series: NDArray[np.float32], objective: Objective, batch_size: int
) -> tuple[NDArray[np.float32], int]:
    """Forecast from every origin of one scan that has at least half a context behind it.

    Parameters
    ----------
    series : ndarray, shape (n_volumes, n_regions), float32
        Standardized as the training data.
    batch_size : int
        Windows per forward pass.

    Returns
    -------
    forecasts : ndarray, shape (n_origins, n_regions, n_horizons), float32
        Forecasts from volume ``first_origin`` on, one row an origin, up to the last volume.
    first_origin : int
        ``context_length // 2``.
    """
    model.eval()
    length = objective.context_length
    device = objective.region_mask.device
    starts = window_starts(len(series), length)
    first = length // 2
    result = np.empty((len(series) - first, series.shape[1], len(objective.horizons)), np.float32)
    for begin in range(0, len(starts), batch_size):
        group = starts[begin : begin + batch_size]
        volumes = torch.from_numpy(np.stack([series[s : s + length] for s in group])).to(device)
        forecasts = objective.forecast(model, volumes)[:, first:].cpu().numpy()
        for start, rows in zip(group, forecasts, strict=True):
            result[start : start + length - first] = rows
    return result, first
