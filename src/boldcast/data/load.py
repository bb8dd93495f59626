"""One entry of the scan list, read, set upright, named and checked.

What the file does not say itself is taken from the list or the sidecar; what nobody says is
refused, never guessed.

Example
-------
>>> from pathlib import Path
>>> import numpy as np
>>> orient(Path("a.mat"), np.zeros((94, 1200)), axes="unknown", n_regions=94).shape
(1200, 94)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boldcast.data import quality, readers, repetition_time
from boldcast.data.readers.raw import Axes, unique_names
from boldcast.data.scan_list import Entry
from boldcast.errors import DataRefused


@dataclass(frozen=True, eq=False)
class Loaded:
    """A scan in its own units.

    Attributes
    ----------
    series : float64 array, shape (n_volumes, n_regions)
        Finite outside the masked regions.
    regions : tuple of str or None
        Names, where anybody gave them.
    masked : bool array, shape (n_regions,)
        Regions that are constant or missing over the whole scan.
    t_r : float
        Repetition time in seconds.
    lag1 : float
        Mean lag-1 autocorrelation.
    dropped : tuple of str
        Confound columns that were left out.
    """

    series: NDArray[np.float64]
    regions: tuple[str, ...] | None
    masked: NDArray[np.bool_]
    t_r: float
    lag1: float
    dropped: tuple[str, ...]


def load(entry: Entry, *, t_r: float | None, exclude_confounds: bool) -> Loaded:
    """Read one scan and refuse it if it is unfit.

    Parameters
    ----------
    entry : Entry
        Line of the scan list.
    t_r : float or None
        The setting ``data.t_r`` in seconds, which goes before every other source.
    exclude_confounds : bool
        Leave out columns that look like confounds, instead of refusing the file.

    Raises
    ------
    DataRefused
        If the file is damaged, ambiguous, incomplete, without repetition time, or holds confounds.
    """
    raw = readers.read(entry.path, key=entry.key)
    names = region_names(entry)
    n_regions = entry.n_regions if names is None else len(names)
    series = orient(entry.path, raw.series, axes=raw.axes, n_regions=n_regions)
    regions = raw.regions if raw.regions is not None else names
    decided, _ = repetition_time.decide(
        entry.path,
        setting=t_r,
        listed=entry.t_r,
        sidecar=repetition_time.from_sidecar(entry.path),
        container=raw.t_r,
    )
    series, regions, dropped = _without_confounds(entry, series, regions, exclude_confounds)
    masked = quality.masked_regions(series)
    quality.refuse_missing(entry.path, series, regions, masked)
    lag1 = quality.lag1_autocorrelation(series)
    return Loaded(series, regions, masked, decided, lag1, dropped)


def region_names(entry: Entry) -> tuple[str, ...] | None:
    """Return the names in the entry's ``regions`` file, one a line, or None without one."""
    if entry.regions_path is None:
        return None
    lines = entry.regions_path.read_text(encoding="utf-8-sig").splitlines()
    return unique_names(entry.regions_path, tuple(line.strip() for line in lines))


def orient(
    path: Path, series: NDArray[np.float64], *, axes: Axes, n_regions: int | None
) -> NDArray[np.float64]:
    """Return the series with volumes down and regions across, contiguous in memory.

    Contiguous, because numpy sums a column of such an array volume by volume, in an order that
    does not depend on the processor.

    Raises
    ------
    DataRefused
        If neither the file nor the number of regions tells which axis is time.
    """
    rows, columns = series.shape
    if n_regions is None and axes == "unknown":
        raise DataRefused(
            f"`{path}` must say which axis is time, but is {rows} x {columns} and does not. Give "
            "the number of regions in the column n_regions of the scan list."
        )
    if n_regions is None and axes == "volumes_first" and rows < columns:
        raise DataRefused(
            f"`{path}` must have volumes down and regions across, but its {rows} rows are fewer "
            f"than its {columns} columns, as if it were turned. Give the number of regions in the "
            "column n_regions of the scan list."
        )
    if n_regions is not None and n_regions not in (
        (columns,) if axes == "named" else (rows, columns)
    ):
        raise DataRefused(
            f"`{path}` must have {n_regions} regions, as the scan list says, but is "
            f"{rows} x {columns}. Correct the list, or the file."
        )
    if n_regions is not None and axes == "unknown" and rows == columns:
        raise DataRefused(
            f"`{path}` must say which axis is time, but is {rows} x {columns} and does not. "
            "Save it as a table with region names, one line a volume."
        )
    turned = axes != "named" and n_regions is not None and columns != n_regions
    return np.ascontiguousarray(series.T if turned else series)


def _without_confounds(
    entry: Entry, series: NDArray[np.float64], regions: tuple[str, ...] | None, exclude: bool
) -> tuple[NDArray[np.float64], tuple[str, ...] | None, tuple[str, ...]]:
    found = quality.confound_columns(series, regions)
    if not found:
        return series, regions, ()
    labels = tuple(quality.region_label(regions, index) for index in found)
    if not exclude:
        raise DataRefused(
            f"`{entry.path}` must hold regions only, but by name or scale these look like "
            f"confounds: {', '.join(labels)}. Remove them, or set data.exclude_confounds to leave "
            "them out."
        )
    if len(found) == series.shape[1]:
        raise DataRefused(
            f"`{entry.path}` must hold regions, but every column looks like a confound. "
            "Take the file off the scan list."
        )
    kept = [index for index in range(series.shape[1]) if index not in found]
    names = None if regions is None else tuple(regions[index] for index in kept)
    return np.ascontiguousarray(series[:, kept]), names, labels
