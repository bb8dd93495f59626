"""Which files of a run folder are its result, and their digests.

Every regular file counts, so that a missing, changed or added one is noticed, except what is
volatile by design: the manifest itself, ``events.jsonl``, a stop request, part-named and hidden
files, and the folders of loggers and per-process messages. Links and devices are never a result:
their content is not the run's own.

Example
-------
>>> sums(Path("runs/demo"))["config.toml"]   # doctest: +SKIP
'9f86d081884c7d65...'
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from boldcast.errors import DataRefused
from boldcast.files import PART, sha256_file
from boldcast.record.fields import RELATIVE, matches

VOLATILE_FILES = frozenset({"manifest.json", "events.jsonl", "report.html", "stop"})
"""Files of the run folder that change without the result changing; a report is drawn from the
others, and fonts differ between machines."""

VOLATILE_FOLDERS = frozenset({"tensorboard", "wandb", "logs", "errors"})
"""Folders of the run folder written by loggers and by single processes."""

CHECKPOINT_DIGESTS = "digests.json"
"""In each checkpoint folder: file name relative to it, to SHA-256."""


def sums(run_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of every artifact of a run, by path relative to its folder."""
    return {relative: sha256_file(run_dir / relative) for relative in artifact_paths(run_dir)}


def artifact_paths(run_dir: Path) -> list[str]:
    """Return the relative paths of every artifact under ``run_dir``, sorted."""
    return sorted(relative for relative, plain in _walk(run_dir, run_dir) if plain)


def foreign_paths(run_dir: Path) -> list[str]:
    """Return what lies in ``run_dir`` and cannot be an artifact: links, devices, odd names."""
    return sorted(relative for relative, plain in _walk(run_dir, run_dir) if not plain)


def inside(root: Path, relative: str) -> Path:
    """Return the path of ``relative`` under ``root``, refusing whatever could lead elsewhere.

    Raises
    ------
    DataRefused
        If it is absolute, has a ``..`` or hidden part, a backslash or a control character, or
        passes through a symbolic link.
    """
    if not matches(relative, RELATIVE):
        raise DataRefused(
            f"`path` must be relative and stay inside its folder, but is {relative[:200]!r}. "
            "The record did not come from boldcast; do not use it."
        )
    path = root
    for part in relative.split("/"):
        path = path / part
        if path.is_symlink():
            raise DataRefused(
                f"`path` must not pass through a symbolic link, but {relative[:200]!r} does. "
                "Put the file itself there."
            )
    return path


def _walk(folder: Path, root: Path) -> Iterator[tuple[str, bool]]:
    """Yield (path relative to root, whether it is a regular file with a plain name)."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            relative = path.relative_to(root).as_posix()
            if _is_volatile(relative):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(path, root)
            else:
                yield relative, entry.is_file(follow_symlinks=False) and matches(relative, RELATIVE)


def _is_volatile(relative: str) -> bool:
    top, _, rest = relative.partition("/")
    last = relative.rpartition("/")[2]
    if last.startswith(".") or last.endswith(PART):
        return True
    return top in VOLATILE_FOLDERS or (not rest and top in VOLATILE_FILES)
