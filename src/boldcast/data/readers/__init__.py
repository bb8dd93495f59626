"""Readers, one file a format; each has ``SUFFIXES`` and ``read(path, *, key=None) -> Raw``.

To add a format, write such a module and name it in ``_FORMATS``.

Example
-------
>>> from pathlib import Path
>>> split_suffix(Path("sub-01_bold.ptseries.nii"))
('sub-01_bold', '.ptseries.nii')
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from boldcast.data.readers import cifti, delimited, mat, npy
from boldcast.data.readers.raw import Raw
from boldcast.errors import DataRefused

__all__ = ["Raw", "known_suffixes", "read", "split_suffix"]


class _Format(Protocol):
    SUFFIXES: tuple[str, ...]

    def read(self, path: Path, *, key: str | None = None) -> Raw: ...


_FORMATS: tuple[_Format, ...] = (mat, npy, delimited, cifti)


def known_suffixes() -> tuple[str, ...]:
    """Return every file name ending that can be read."""
    return tuple(suffix for each in _FORMATS for suffix in each.SUFFIXES)


def split_suffix(path: Path) -> tuple[str, str]:
    """Split a file name into its stem and the known ending, which may contain a dot.

    Raises
    ------
    DataRefused
        If no reader takes the file.
    """
    lower = path.name.lower()
    for suffix in known_suffixes():
        if lower.endswith(suffix):
            return path.name[: -len(suffix)], suffix
    raise DataRefused(
        f"`{path}` must end in one of {', '.join(known_suffixes())}, but is `{path.name}`. "
        "Convert the scan to one of these formats."
    )


def read(path: Path, *, key: str | None = None) -> Raw:
    """Read one scan by the reader that its name asks for.

    Parameters
    ----------
    path : Path
        The file.
    key : str, optional
        Name of the array, for formats that hold several.

    Returns
    -------
    Raw
        Numbers and facts that the file itself holds.

    Raises
    ------
    DataRefused
        If the file is missing, damaged, of an unknown format, or not one 2-D array.
    """
    suffix = split_suffix(path)[1]
    if not path.is_file():
        raise DataRefused(f"`{path}` must be a file, but is not there. Correct the path.")
    chosen = next(each for each in _FORMATS if suffix in each.SUFFIXES)
    return chosen.read(path, key=key)
