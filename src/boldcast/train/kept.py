"""The checkpoints of a run as they lie in its folder: which are whole, and which may go.

A checkpoint has its final name only when it is complete. Whatever else is there ends in ``.part``:
one being written, one being removed, and ``step_00000500.old.part``, the former checkpoint of a
step that is being replaced.

Example
-------
>>> from tempfile import mkdtemp
>>> newest(Path(mkdtemp()), print) is None
True
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from boldcast.files import PART, sha256_file

FOLDER = "checkpoints"
DIGESTS = "digests.json"
_OLD = f".old{PART}"


def place_of(run_dir: Path, step: int) -> Path:
    """Return the final name of the checkpoint of ``step``."""
    return run_dir / FOLDER / f"step_{step:08d}"


def newest(run_dir: Path, report: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint whose every digest holds, or None.

    Damaged ones are reported and passed over. What a kill left half done is undone: part-written
    ones are removed, and one that was to be replaced gets its name back.
    """
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return None
    for old in folder.glob(f"*{_OLD}"):
        final = old.with_name(old.name.removesuffix(_OLD))
        if not final.exists():
            old.rename(final)
    for part in folder.glob(f"*{PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    for path in sorted(folder.glob("step_*"), reverse=True):
        damage = find_damage(path)
        if damage is None:
            return path
        report(f"Checkpoint {path.name} is damaged ({damage}); it is passed over.")
    return None


def find_damage(path: Path) -> str | None:
    """Say what is wrong with a checkpoint folder, or return None if its digests all hold."""
    try:
        digests = orjson.loads((path / DIGESTS).read_bytes())
        present = {file.name for file in path.iterdir()} - {DIGESTS}
        if parted := sorted(present ^ set(digests)):
            return f"{parted[0]} is {'not recorded' if parted[0] in present else 'missing'}"
        if not {"state.json"} < present:
            return "it holds no state"
        for name, digest in digests.items():
            if sha256_file(path / name) != digest:
                return f"{name} does not have its recorded digest"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def set_aside(path: Path) -> Iterator[None]:
    """Free the name ``path`` for the body to take, and remove what had it once the body has.

    If the body raises, or the process is killed in it, the former one gets its name back, at once
    or from ``newest``.
    """
    old = path.with_name(path.name + _OLD)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    try:
        yield
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def prune(run_dir: Path, step: int, keep: int, best_step: int | None) -> None:
    """Remove all checkpoints but the best and, up to ``step``, the ``keep`` newest.

    Those above ``step``, which was just written, are of a future that was given up: a run resumed
    before them, so they are damaged or another run's, and must not count as kept.
    """
    stand = sorted(p for p in (run_dir / FOLDER).glob("step_*") if not p.name.endswith(PART))
    last = place_of(run_dir, step)
    best = None if best_step is None else place_of(run_dir, best_step)
    past = [path for path in stand if path.name <= last.name]
    for path in stand:
        if path not in past[-keep:] and path != best:
            _remove(path)


def _remove(path: Path) -> None:
    part = path.with_name(path.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    path.rename(part)  # a kill in the middle must not leave half of it under its final name
    shutil.rmtree(part)
