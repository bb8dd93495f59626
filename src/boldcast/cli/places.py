"""Where data and packed stores live: a flag, else an environment variable, else a folder here.

And whether a file may be written where ``--out`` says, asked before the work whose result it holds.

Example
-------
>>> from pathlib import Path
>>> data_root(Path("elsewhere"))
PosixPath('elsewhere')
"""

from __future__ import annotations

import os
from pathlib import Path

from boldcast.errors import UsageRefused


def data_root(data: Path | None) -> Path:
    """Return the folder of the data: ``--data``, else ``$BOLDCAST_DATA``, else ``./data``."""
    return data or Path(os.environ.get("BOLDCAST_DATA") or "data")


def store_cache(root: Path) -> Path:
    """Return the folder of packed stores: under ``$BOLDCAST_CACHE``, else inside the data."""
    cache = os.environ.get("BOLDCAST_CACHE")
    return Path(cache) / "stores" if cache else root / ".boldcast"


def check_out(out: Path | None) -> None:
    """Refuse a file that could not be written.

    Raises
    ------
    UsageRefused
        If ``out`` is a folder, or in none that exists and can be written.
    """
    if out is None:
        return
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise UsageRefused(
            "`--out` must be a file in a folder that exists and can be written, but is "
            f"{out}. Name another."
        )
