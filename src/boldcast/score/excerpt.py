"""A short stretch of one held-out scan, for the picture of observed and forecast signals.

The forecasts are laid under the volume that they are *about*: at volume v stands, for horizon h,
what the model said at v - h.

Example
-------
>>> import numpy as np
>>> x = np.arange(8.0)[:, None]
>>> cut = cut_excerpt(x, x[:, :, None] + 1, 0, (1,), length=4)
>>> cut["first_volume"], bool((cut["observed"] == cut["forecast"][:, :, 0]).all())
(2, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LENGTH = 120


def cut_excerpt(
    truth: Floats,
    forecast: Floats,
    first_origin: int,
    horizons: Sequence[int],
    length: int = LENGTH,
) -> dict[str, Any] | None:
    """Cut ``length`` volumes from the middle of what is forecast at every horizon.

    Returns
    -------
    dict or None
        ``first_volume``, ``observed`` (n, R) and ``forecast`` (n, R, H), copied so that the scan
        can be let go; None if no volume is forecast at every horizon.
    """
    low = first_origin + max(horizons)
    high = min(len(truth), first_origin + len(forecast) + min(horizons))
    n = min(length, high - low)
    if n < 1:
        return None
    first = low + (high - low - n) // 2
    columns = [
        forecast[first - h - first_origin : first - h - first_origin + n, :, index]
        for index, h in enumerate(horizons)
    ]
    return {
        "first_volume": int(first),
        "observed": truth[first : first + n].copy(),
        "forecast": np.stack(columns, axis=2),
    }


def describe_excerpt(
    excerpt: dict[str, Any] | None, regions: Sequence[str], r2: Floats | None
) -> dict[str, Any] | None:
    """Keep the best, upper-quartile, median and worst forecast region of an excerpt, as plain data.

    Parameters
    ----------
    excerpt : dict or None
        From ``cut_excerpt``.
    regions : sequence of str
        Names of its R regions.
    r2 : array (R,) or None
        Skill of each region at the first horizon; decides which regions are shown.
    """
    if excerpt is None or r2 is None:
        return None
    order = [int(i) for i in np.argsort(-r2, kind="stable") if np.isfinite(r2[i])]
    if not order:
        return None
    last = len(order) - 1
    ranks = {"best": 0, "upper quartile": last // 4, "median": last // 2, "worst": last}
    shown: dict[int, str] = {}
    for role, rank in ranks.items():
        shown.setdefault(order[rank], role)
    return {
        "scan": 0,
        "first_volume": excerpt["first_volume"],
        "regions": [
            {
                "name": regions[i],
                "role": role,
                "r2": float(r2[i]),
                "observed": _plain(excerpt["observed"][:, i]),
                "forecast": [_plain(column) for column in excerpt["forecast"][:, i].T],
            }
            for i, role in shown.items()
        ],
    }


def _plain(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
