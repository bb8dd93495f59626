"""Facts about files before anybody trains on them: what is there, and what would be refused.

Example
-------
>>> from pathlib import Path
>>> inspect([Path("missing.npy")])[0]["problems"]
['`missing.npy` must be a file, but is not there. Correct the path.']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boldcast.data import quality, readers, repetition_time
from boldcast.data.load import orient, region_names
from boldcast.data.readers.raw import Raw
from boldcast.data.scan_list import Entry, is_scan_list, read_scan_list
from boldcast.errors import DataRefused

T = TypeVar("T")
_MEASURED = (
    *("format", "shape", "n_volumes", "n_regions", "regions", "t_r", "t_r_source"),
    *("lag1", "n_nan", "n_infinite", "confounds", "masked"),
)


def inspect(
    paths: Sequence[Path], t_r: float | None = None, n_regions: int | None = None
) -> list[dict[str, Any]]:
    """Return the facts of each file, as JSON values; nothing is refused, problems are listed.

    Parameters
    ----------
    paths : sequence of Path
        Files of scans, or scan lists, which stand for the scans they list.
    t_r : float, optional
        Repetition time in seconds, as the setting ``data.t_r``.
    n_regions : int, optional
        Regions of the atlas, which orients files that do not say which axis is time.

    Returns
    -------
    list of dict
        With ``path``, ``format``, ``shape``, ``n_volumes``, ``n_regions``, ``regions``, ``t_r``
        (seconds), ``t_r_source``, ``lag1``, ``n_nan``, ``n_infinite``, ``confounds``, ``masked``,
        ``problems`` (each would be refused) and ``warnings``. What is not known is None.
    """
    facts = []
    for path in paths:
        if not is_scan_list(path):
            facts.append(_facts(Entry(path=path, label="", subject="", n_regions=n_regions), t_r))
            continue
        problems: list[str] = []
        entries = _attempt(problems, partial(read_scan_list, path))
        facts += [_nothing(path, problems)] if entries is None else []
        facts += [_facts(entry, t_r) for entry in entries or ()]
    return facts


def _nothing(path: Path, problems: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": str(path), "problems": problems, "warnings": []}
    return facts | dict.fromkeys(_MEASURED)


def _facts(entry: Entry, t_r: float | None) -> dict[str, Any]:
    path = entry.path
    problems: list[str] = []
    facts = _nothing(path, problems)
    raw = _attempt(problems, lambda: readers.read(path, key=entry.key))
    if raw is None:
        return facts
    facts["format"] = readers.split_suffix(path)[1]
    facts["shape"] = list(raw.series.shape)
    decided = _attempt(problems, lambda: _t_r(entry, raw, t_r))
    if decided is not None:
        facts["t_r"], facts["t_r_source"] = decided
    named = _attempt(problems, lambda: _upright(entry, raw))
    if named is not None:
        _describe(path, *named, facts)
    return facts


def _attempt(problems: list[str], action: Callable[[], T]) -> T | None:
    try:
        return action()
    except DataRefused as refusal:
        problems.append(str(refusal))
        return None


def _t_r(entry: Entry, raw: Raw, setting: float | None) -> tuple[float, str]:
    return repetition_time.decide(
        entry.path,
        setting=setting,
        listed=entry.t_r,
        sidecar=repetition_time.from_sidecar(entry.path),
        container=raw.t_r,
    )


def _upright(entry: Entry, raw: Raw) -> tuple[NDArray[np.float64], tuple[str, ...] | None]:
    names = region_names(entry)
    n_regions = entry.n_regions if names is None else len(names)
    series = orient(entry.path, raw.series, axes=raw.axes, n_regions=n_regions)
    return series, raw.regions if raw.regions is not None else names


def _describe(
    path: Path,
    series: NDArray[np.float64],
    regions: tuple[str, ...] | None,
    facts: dict[str, Any],
) -> None:
    masked = quality.masked_regions(series)
    lag1 = quality.lag1_autocorrelation(series)
    confounds = quality.confound_columns(series, regions)
    labels = [quality.region_label(regions, index) for index in confounds]
    facts["n_volumes"], facts["n_regions"] = series.shape
    facts["regions"] = None if regions is None else list(regions)
    facts["lag1"] = lag1 if np.isfinite(lag1) else None
    facts["n_nan"] = int(np.isnan(series).sum())
    facts["n_infinite"] = int(np.isinf(series).sum())
    facts["confounds"] = labels
    facts["masked"] = [
        quality.region_label(regions, int(index)) for index in np.flatnonzero(masked)
    ]
    if labels:
        facts["problems"].append(
            f"`{path}` must hold regions only, but by name or scale these look like confounds: "
            f"{', '.join(labels)}. Remove them, or set data.exclude_confounds to leave them out."
        )
    _attempt(facts["problems"], lambda: quality.refuse_missing(path, series, regions, masked))
    if facts["masked"]:
        facts["warnings"].append(
            "Constant or missing in the whole scan, masked in all subjects: "
            f"{', '.join(facts['masked'])}."
        )
    if lag1 > quality.BAND_PASSED:
        facts["warnings"].append(
            f"The lag-1 autocorrelation is {lag1:.3f}: band-passed, so any linear filter "
            "«forecasts» it."
        )
