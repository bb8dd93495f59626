"""CIFTI-2 parcellated series: axes, repetition time and names all come from the CIFTI header.

The NIfTI header's ``pixdim`` is 1.0 in these files whatever the repetition time is, so only
the step of the series axis is believed, and only in seconds.

Example
-------
>>> from pathlib import Path
>>> read(Path("sub-01.ptseries.nii")).axes  # doctest: +SKIP
'named'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.cifti2 import cifti2_axes

from boldcast.data.readers.raw import Raw, two_dimensional, unique_names
from boldcast.errors import DataRefused

SUFFIXES: tuple[str, ...] = (".ptseries.nii",)


def read(path: Path, *, key: str | None = None) -> Raw:
    """Read a ``.ptseries.nii`` file; see :func:`boldcast.data.readers.read`."""
    image = _image(path)
    axes = [image.header.get_axis(index) for index in range(image.ndim)]
    along = _only(path, axes, cifti2_axes.SeriesAxis, "series")
    across = _only(path, axes, cifti2_axes.ParcelsAxis, "parcels")
    series = axes[along]
    if series.unit != "SECOND":
        raise DataRefused(
            f"`{path}` must have a series axis in SECOND, but its unit is {series.unit}. "
            "Only a series over time can be forecast."
        )
    array = two_dimensional(path, np.asarray(image.dataobj))
    names = unique_names(path, tuple(str(name) for name in axes[across].name))
    return Raw(array.T if along == 1 else array, names, float(series.step), "named")


def _image(path: Path) -> Any:
    try:
        image: Any = nibabel.load(path)
    # A damaged header surfaces as one of many exceptions of XML and NIfTI parsing.
    except Exception as error:
        raise DataRefused(
            f"`{path}` must be a CIFTI-2 file, but cannot be read as one ({error}). "
            "Copy or export it again."
        ) from None
    if not isinstance(image, nibabel.Cifti2Image):
        raise DataRefused(
            f"`{path}` must be a CIFTI-2 file, but is a {type(image).__name__}. "
            "Give it the ending of what it is, or export a parcellated series."
        )
    return image


def _only(path: Path, axes: list[Any], kind: type, word: str) -> int:
    found = [index for index, axis in enumerate(axes) if isinstance(axis, kind)]
    if len(axes) != 2 or len(found) != 1:
        shown = ", ".join(type(axis).__name__ for axis in axes)
        raise DataRefused(
            f"`{path}` must have one series axis and one parcels axis, but the {word} axis was "
            f"found {len(found)} times in ({shown}). Parcellate the series first."
        )
    return found[0]
