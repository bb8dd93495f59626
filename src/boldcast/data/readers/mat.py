"""MATLAB ``.mat`` up to version 7: the array named by ``key``, or the only 2-D one.

The file does not say which axis is time; that is settled by the known number of regions. A scalar
named like a repetition time is taken as the container's word on it, in seconds.

Example
-------
>>> import numpy as np, pathlib, scipy.io, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "scan.mat")
...     scipy.io.savemat(path, {"tc": np.zeros((2, 5)), "TR": 0.72})
...     read(path).t_r
0.72
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from boldcast.data.readers.raw import Raw, two_dimensional
from boldcast.errors import DataRefused

SUFFIXES: tuple[str, ...] = (".mat",)
_T_R_NAMES = ("t_r", "tr", "repetitiontime", "repetition_time")


def read(path: Path, *, key: str | None = None) -> Raw:
    """Read a ``.mat`` file; see :func:`boldcast.data.readers.read`."""
    content = _content(path)
    name = key if key is not None else _only_array(path, content)
    if name not in content:
        raise DataRefused(
            f"`{path}` must hold an array `{name}`, but holds {_listed(content)}. "
            "Correct the column `key` of the scan list."
        )
    return Raw(two_dimensional(path, content[name]), None, _t_r(content), "unknown")


def _content(path: Path) -> dict[str, Any]:
    try:
        loaded = scipy.io.loadmat(path)
    except NotImplementedError:
        raise DataRefused(
            f"`{path}` must be a .mat file of version 7 or older, but is version 7.3 (HDF5). "
            "Save it again in MATLAB with save(..., '-v7')."
        ) from None
    # scipy's parser meets damage with whatever its current field makes of it.
    except Exception as error:
        raise DataRefused(
            f"`{path}` must be a MATLAB file, but cannot be read as one ({error}). "
            "Copy or export it again."
        ) from None
    return {name: value for name, value in loaded.items() if not name.startswith("__")}


def _only_array(path: Path, content: dict[str, Any]) -> str:
    found = [
        name
        for name, value in content.items()
        if isinstance(value, np.ndarray)
        and value.dtype.kind in "fiu"
        and value.ndim == 2
        and min(value.shape) > 1
    ]
    if len(found) != 1:
        raise DataRefused(
            f"`{path}` must hold one 2-D numeric array, but holds {len(found)} "
            f"({_listed(content)}). Name the right one in the column `key` of the scan list."
        )
    return found[0]


def _t_r(content: dict[str, Any]) -> float | None:
    for name, value in content.items():
        array = np.asarray(value)
        if name.lower() in _T_R_NAMES and array.size == 1 and array.dtype.kind in "fiu":
            return float(array.reshape(-1)[0])
    return None


def _listed(content: dict[str, Any]) -> str:
    shown = [f"`{name}` {np.shape(value)}" for name, value in sorted(content.items())]
    return ", ".join(shown) or "nothing"
