"""What no record may say: times, hosts, users, secrets, places on a machine.

Each function yields the places in a manifest that say such a thing. What a user named, settings and
artifacts, is theirs and recorded as it stands, but for absolute paths and subjects.

Example
-------
>>> list(times({"software": {"built": "2026-01-31T12:00:00"}}))
["'software.built'"]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from boldcast.record.privacy import hide_gpu_ids, hide_paths, hide_secrets, is_secret_name

MAX_TEXT = 16 * 2**10
"""Characters of the longest text that is still a fact about a run."""

_TIME = re.compile(r"\b(?:19|20)\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d")
_TIME_NAME = re.compile(r"(?:^|_)(?:time|date|created|started|ended|timestamp)(?:$|_at$)")
_HOST_NAME = re.compile(r"(?:^|_)(?:host|hostname|user|username|node_name)$", re.IGNORECASE)
_NO_RULES = ("requested.config.", "results.digests.")
"""What a user named: settings and files are theirs; of settings only places are looked at."""


def times(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what says when."""
    for path, key, value in _leaves(manifest):
        if _TIME_NAME.search(key) or (isinstance(value, str) and _TIME.search(value)):
            yield short(path)


def hosts(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what says where or by whom."""
    for path, key, _ in _leaves(manifest):
        if _HOST_NAME.search(key):
            yield short(path)


def secrets(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what looks like a token or a password."""
    for path, key, value in _leaves(manifest):
        if (is_secret_name(key) and value) or (
            isinstance(value, str) and len(value) <= MAX_TEXT and hide_secrets(value) != value
        ):
            yield short(path)


def paths(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what points into a machine."""
    for path, _, value in _leaves(manifest):
        if isinstance(value, str) and len(value) <= MAX_TEXT and hide_paths(value) != value:
            yield short(path)
    for section in ("data", "model"):
        block = manifest["requested"]["config"].get(section)
        for name, value in block.items() if isinstance(block, dict) else ():
            if isinstance(value, str) and value.startswith("/"):
                yield short(f"requested.config.{section}.{name}")


def boards(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what names a GPU by its own number."""
    for path, _, value in _leaves(manifest):
        if isinstance(value, str) and len(value) <= MAX_TEXT and hide_gpu_ids(value) != value:
            yield short(path)


def texts(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what holds control characters or is too long to be a fact."""
    for path, key, value in _leaves(manifest):
        for text in (key, value):
            if isinstance(text, str) and (len(text) > MAX_TEXT or not _plain(text)):
                yield short(path)
                break


def _plain(text: str) -> bool:
    """Say whether a text has no control character but line breaks and tabs."""
    return all(c in "\n\t" or c.isprintable() or c.isspace() for c in text)


def _leaves(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield (path, last name, value) of every leaf but those that the user named."""
    if path.startswith(_NO_RULES):
        return
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", key)
    else:
        yield path, key, value


def short(value: Any) -> str:
    """Return a value as plain text of a bounded length."""
    return ascii(value)[:80]
