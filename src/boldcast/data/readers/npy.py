"""NumPy ``.npy``: rows are volumes, columns regions; pickled content is never opened.

Example
-------
>>> import numpy as np, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "scan.npy")
...     np.save(path, np.zeros((5, 2)))
...     read(path).series.shape
(5, 2)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boldcast.data.readers.raw import Raw, two_dimensional
from boldcast.errors import DataRefused

SUFFIXES: tuple[str, ...] = (".npy",)


def read(path: Path, *, key: str | None = None) -> Raw:
    """Read a ``.npy`` file; see :func:`boldcast.data.readers.read`."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataRefused(
            f"`{path}` must be a plain .npy array, but cannot be read as one ({error}). "
            "Save it with numpy.save from a floating-point array, without pickling."
        ) from None
    return Raw(two_dimensional(path, array), None, None, "volumes_first")
