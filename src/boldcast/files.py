r"""Write a file or a folder whole or not at all, read JSON strictly, and digest bytes.

Canonical JSON here means: sorted keys, UTF-8, one newline at the end, no NaN or Infinity, string
keys only, no integer that a double cannot hold (orjson alone would write NaN as null and load
large integers as floats).

Example
-------
>>> canonical_json({"b": 1, "a": [0.5]})
b'{"a":[0.5],"b":1}\n'
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

PART = ".part"
_MAX_EXACT_INT = 2**53 - 1


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal, reading it in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """Serialize ``value`` to the one byte string that stands for it.

    Raises
    ------
    TypeError
        If a key is not a plain string or a value is not JSON.
    ValueError
        If a float is not finite or an integer needs more than 53 bits.
    """
    _check_exact(value, "$")
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _check_exact(value: Any, where: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold")
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _MAX_EXACT_INT:
            raise ValueError(f"{where} is {value}, too large to survive JSON; store it as a string")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}, which is not a string")
            _check_exact(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_exact(item, f"{where}[{index}]")


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds either its old content or all of the new one."""
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a part-named folder to fill; it takes the name ``path`` only once it is complete.

    Every file is flushed to disk before the rename. If the body raises, nothing is left.
    """
    part = path.with_name(path.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        for file in sorted(part.rglob("*")):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        _sync_folder(part)
        part.replace(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
