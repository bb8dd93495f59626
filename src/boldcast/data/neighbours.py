"""The nearest regions of each region, itself first: by correlation, or by place in the brain.

Correlations come from the training side alone; the held-out subjects have no say in the model.

Example
-------
>>> import numpy as np
>>> nearest(np.array([[0.0, 2.0, 1.0], [2.0, 0.0, 3.0], [1.0, 3.0, 0.0]]), k=2).tolist()
[[0, 2], [1, 0], [2, 0]]
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boldcast.data.store import Store
from boldcast.errors import DataRefused, UsageRefused

# Ties are settled by the index, so last digits that differ between machines must not break them.
_DECIMALS = 6


def nearest(distance: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return for each region the ``k`` nearest, itself first, ties by the lower index.

    Parameters
    ----------
    distance : float64 array, shape (n_regions, n_regions)
        Smaller is nearer; the diagonal is not looked at.
    k : int
        Neighbours of a region, itself included.

    Returns
    -------
    int64 array, shape (n_regions, k)

    Raises
    ------
    UsageRefused
        If there are fewer regions than ``k``.
    """
    n_regions = len(distance)
    if not 1 <= k <= n_regions:
        raise UsageRefused(
            f"`model.spatial_k` must be from 1 to the number of regions, {n_regions}, but is {k}. "
            "Lower it."
        )
    rounded = np.round(distance, _DECIMALS)
    np.fill_diagonal(rounded, -np.inf)
    return np.argsort(rounded, axis=1, kind="stable")[:, :k].astype(np.int64)


def correlation_neighbours(store: Store, k: int) -> NDArray[np.int64]:
    """Return the ``k`` regions most correlated with each over the training scans, itself first.

    Means are taken a scan at a time, so that scans of other units or levels cannot feign a
    correlation. Masked regions are the last choice.

    Returns
    -------
    int64 array, shape (n_regions, k)
    """
    n_regions = len(store.regions)
    total = np.zeros((n_regions, n_regions))
    for index, scan in enumerate(store.scans):
        if scan.split != "train":
            continue
        rows = store.volumes(index)
        series = np.asarray(store.series[rows][store.observed[rows]], dtype=np.float64)
        centred = series - series.mean(axis=0)
        total += centred.T @ centred
    scale = np.sqrt(np.diag(total))
    scale[scale == 0] = 1.0
    distance = 1.0 - total / scale[:, None] / scale[None, :]
    distance[:, ~store.region_mask] = 3.0
    return nearest(distance, k)


def coordinate_neighbours(path: Path, regions: Sequence[str], k: int) -> NDArray[np.int64]:
    """Return the ``k`` regions nearest to each in space, itself first.

    Parameters
    ----------
    path : Path
        A ``.tsv`` with the columns region, x, y, z (mm); regions not asked for are passed over.
    regions : sequence of str
        Names of the store's regions.
    k : int
        Neighbours of a region, itself included.

    Raises
    ------
    DataRefused
        If the table is missing, malformed or lacks a region.
    """
    places = _places(path)
    missing = [name for name in regions if name not in places]
    if missing:
        raise DataRefused(
            f"`{path}` must place every region, but lacks {len(missing)}, the first `{missing[0]}`."
            " Add a line for each."
        )
    points = np.array([places[name] for name in regions])
    offsets = points[:, None, :] - points[None, :, :]
    return nearest(np.sqrt((offsets * offsets).sum(axis=2)), k)


def _places(path: Path) -> dict[str, tuple[float, float, float]]:
    if not path.is_file():
        raise DataRefused(f"`{path}` must be a table of coordinates, but is not there. Correct it.")
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t")
        if not {"region", "x", "y", "z"} <= set(reader.fieldnames or ()):
            raise DataRefused(
                f"`{path}` must have the columns region, x, y, z, but has "
                f"{', '.join(reader.fieldnames or ()) or 'none'}. Name them in the first line."
            )
        places = {}
        for row in reader:
            try:
                place = (float(row["x"]), float(row["y"]), float(row["z"]))
            except (TypeError, ValueError):
                place = (np.nan, np.nan, np.nan)
            if not np.isfinite(place).all():
                raise DataRefused(
                    f"`{path}` line {reader.line_num} must hold three numbers in mm, but does not."
                    " Correct it."
                )
            if row["region"] in places:
                raise DataRefused(
                    f"`{path}` must place `{row['region']}` once, but does twice. Remove one line."
                )
            places[row["region"]] = place
    return places
