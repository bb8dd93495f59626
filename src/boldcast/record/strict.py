r"""Read JSON that a stranger may have made: bounded, canonical, and nothing but data.

Example
-------
>>> parse(b'{"a":1}\n', "manifest.json")
{'a': 1}
"""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any, NoReturn

from boldcast.errors import DataRefused
from boldcast.files import canonical_json

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 32
MAX_VALUES = 400_000
"""Commas and brackets; more would take seconds to look through, and no record needs as many."""


def read(path: Path) -> Any:
    """Return the content of a canonical JSON file.

    Raises
    ------
    DataRefused
        If it is no regular file, larger than 8 MiB, holds more than 400,000 values, nests deeper
        than 32, or is not canonical JSON:
        duplicate keys, NaN, Infinity, integers over 53 bits and stray bytes are all refused.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _refused(path.name, "be a regular file", "something else")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path.name, "be readable", f"not: {error.strerror}") from None
    return parse(raw, path.name)


def is_folder(path: Path) -> bool:
    """Say whether there is a folder at ``path``; refuse what the file system cannot answer."""
    try:
        return path.is_dir()
    except OSError as error:
        raise _refused(path.name[:60], "be a file or a folder", f"none: {error.strerror}") from None


def parse(raw: bytes, name: str) -> Any:
    """Return the value of canonical JSON ``raw``; ``name`` is for the message. See `read`."""
    if len(raw) > MAX_BYTES:
        raise _refused(name, "be at most 8 MiB", "larger")
    if sum(raw.count(mark) for mark in b",[{") > MAX_VALUES:
        raise _refused(name, "hold at most 400,000 values", "of more")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_int=_short_int,
            parse_float=_finite,
        )
    except RecursionError:
        raise _refused(name, f"nest at most {MAX_DEPTH} deep", "deeper") from None
    except ValueError as error:
        raise _refused(name, "be strict JSON", f"not: {str(error)[:200]}") from None
    if _deeper_than(value, MAX_DEPTH):
        raise _refused(name, f"nest at most {MAX_DEPTH} deep", "deeper")
    try:
        same = canonical_json(value) == raw
    except (TypeError, ValueError):
        same = False
    if not same:
        raise _refused(name, "be canonical JSON, byte for byte", "written differently")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _short_int(text: str) -> int:
    if len(text) > 17:
        raise ValueError(f"the integer {text[:20]}... is too large")
    return int(text)


def _finite(text: str) -> float:
    if len(text) > 40 or not math.isfinite(float(text)):
        raise ValueError(f"the number {text[:20]} is too large or too long")
    return float(text)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _refused(name: str, rule: str, found: str) -> DataRefused:
    return DataRefused(
        f"`{name}` must {rule}, but is {found}. Take the file that boldcast wrote, unchanged."
    )
