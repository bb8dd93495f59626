"""What a file says by itself, before a scan list or a sidecar is asked.

Example
-------
>>> import numpy as np
>>> Raw(series=np.zeros((10, 3)), regions=None, t_r=None, axes="volumes_first").axes
'volumes_first'
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boldcast.errors import DataRefused

Axes = Literal["named", "volumes_first", "unknown"]


@dataclass(frozen=True, eq=False)
class Raw:
    """The content of one file.

    Attributes
    ----------
    series : float64 array of two dimensions
        The numbers, missing values as NaN.
    regions : tuple of str or None
        Names of the regions where the file holds them.
    t_r : float or None
        Repetition time in seconds where the file holds it.
    axes : str
        ``named``: the file itself says that rows are volumes; ``volumes_first``: they are by
        convention of the format, unless a known number of regions says otherwise;
        ``unknown``: only a known number of regions can tell.
    """

    series: NDArray[np.float64]
    regions: tuple[str, ...] | None
    t_r: float | None
    axes: Axes


def two_dimensional(path: Path, array: Any) -> NDArray[np.float64]:
    """Return ``array`` as float64 with two dimensions, or refuse the file.

    Raises
    ------
    DataRefused
        If it does not hold real numbers, is not 2-D, or is empty.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "fiu":
        raise DataRefused(
            f"`{path}` must hold real numbers, but holds the type {array.dtype}. "
            "Save the series as a plain floating-point array."
        )
    if array.ndim != 2:
        raise DataRefused(
            f"`{path}` must hold a 2-D array (volumes, regions), but its shape is {array.shape}. "
            "Save one scan a file."
        )
    if array.size == 0:
        raise DataRefused(
            f"`{path}` must hold at least one volume and one region, but its shape is "
            f"{array.shape}. Write the file again or take it off the scan list."
        )
    return np.asarray(array, dtype=np.float64)


def unique_names(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``names`` if each is filled in and occurs once, or refuse the file."""
    for index, name in enumerate(names):
        if not name:
            raise DataRefused(
                f"`{path}` must name every region, but column {index} has no name. If it is a "
                "row index, save the table without it."
            )
        if names.index(name) != index:
            raise DataRefused(
                f"`{path}` must name every region once, but `{name}` is the name of columns "
                f"{names.index(name)} and {index}. Rename one of them."
            )
    return names
