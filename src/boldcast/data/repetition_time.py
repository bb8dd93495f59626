"""The repetition time of a scan: who is asked, in which order, and what is believed.

The setting comes first, then the scan list, the sidecar JSON, the file itself. A value outside
0.1 to 10 seconds is a unit mistake far more often than a scan, and is refused.

Example
-------
>>> from pathlib import Path
>>> decide(Path("a.npy"), setting=None, listed=0.72, sidecar=2.0, container=None)
(0.72, 'scan list')
"""

from __future__ import annotations

import math
from pathlib import Path

import orjson

from boldcast.data.readers import split_suffix
from boldcast.errors import DataRefused

SHORTEST_S = 0.1
LONGEST_S = 10.0
_KEYS = ("RepetitionTime", "t_r")


def sidecar_path(path: Path) -> Path:
    """Return where the sidecar of a scan would be: the same stem, ending in ``.json``."""
    return path.with_name(split_suffix(path)[0] + ".json")


def from_sidecar(path: Path) -> float | None:
    """Return the repetition time in seconds that the sidecar of ``path`` states, if any.

    Raises
    ------
    DataRefused
        If there is a sidecar that is not JSON, states no number, or two different ones.
    """
    sidecar = sidecar_path(path)
    if not sidecar.is_file():
        return None
    try:
        content = orjson.loads(sidecar.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataRefused(f"`{sidecar}` must be JSON, but is not ({error}). Correct it.") from None
    if not isinstance(content, dict):
        raise DataRefused(f"`{sidecar}` must hold a JSON object, but does not. Correct it.")
    stated = [content[key] for key in _KEYS if key in content]
    for value in stated:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataRefused(
                f"`{sidecar}` must state the repetition time as a number of seconds, but says "
                f"{value!r}. Correct it."
            )
        if value != stated[0]:
            raise DataRefused(
                f"`{sidecar}` must state one repetition time, but says {stated[0]} and {value}. "
                "Remove the wrong one."
            )
    return float(stated[0]) if stated else None


def decide(
    path: Path,
    *,
    setting: float | None,
    listed: float | None,
    sidecar: float | None,
    container: float | None,
) -> tuple[float, str]:
    """Return the repetition time in seconds and the source it was taken from.

    Raises
    ------
    DataRefused
        If no source states one, or the first that does states one outside 0.1 to 10 s.
    """
    sources = (
        (setting, "data.t_r"),
        (listed, "scan list"),
        (sidecar, "sidecar"),
        (container, "file"),
    )
    for value, source in sources:
        if value is not None:
            _check(path, value, source)
            return value, source
    raise DataRefused(
        f"`{path}` must have a repetition time, but neither the scan list, a sidecar nor the file "
        "states one. Set data.t_r, or the column t_r of the scan list, in seconds."
    )


def _check(path: Path, value: float, source: str) -> None:
    if math.isfinite(value) and SHORTEST_S <= value <= LONGEST_S:
        return
    advice = "Give it in seconds."
    if SHORTEST_S <= value / 1000 <= LONGEST_S:
        advice = f"It looks like milliseconds: write {value / 1000:g}."
    raise DataRefused(
        f"`t_r` of `{path}` must be from {SHORTEST_S:g} to {LONGEST_S:g} s, but is {value:g} s "
        f"({source}). {advice}"
    )
