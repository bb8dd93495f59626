"""Where data and packed stores live: a flag, else an environment variable, else a folder here.

Example
-------
>>> from pathlib import Path
>>> data_root(Path("elsewhere"))
PosixPath('elsewhere')
"""

from __future__ import annotations

import os
from pathlib import Path


def data_root(data: Path | None) -> Path:
    """Return the folder of the data: ``--data``, else ``$BOLDCAST_DATA``, else ``./data``."""
    return data or Path(os.environ.get("BOLDCAST_DATA") or "data")


def store_cache(root: Path) -> Path:
    """Return the folder of packed stores: under ``$BOLDCAST_CACHE``, else inside the data."""
    cache = os.environ.get("BOLDCAST_CACHE")
    return Path(cache) / "stores" if cache else root / ".boldcast"
