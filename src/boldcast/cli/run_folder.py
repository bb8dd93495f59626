"""The folder of a run: where it is, whose it is, and that only one process trains in it.

The first start and every restart are the same command, so the folder's default name follows from
the configuration alone. A folder that holds another configuration, or somebody's other files, is
refused; a finished run is left as it is.

Example
-------
>>> from boldcast.config.schema import Config
>>> default_run_dir(Config(name="demo"), {}).name[:5]
'demo-'
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

import orjson

from boldcast.config.identity import differences, run_digest
from boldcast.config.resolve import resolve, to_toml
from boldcast.config.schema import Config
from boldcast.errors import DataRefused, UsageRefused
from boldcast.files import PART, write_bytes

_PATIENCE_S = 5.0
_PARTS = ("config.toml" + PART, "manifest.json" + PART, "events.jsonl" + PART)
_OWN = {".lock", "events.jsonl", "errors", "stop", *_PARTS}
"""What a start may leave in a folder that holds no run yet, however it ended."""


def default_run_dir(config: Config, env: Mapping[str, str] = os.environ) -> Path:
    """Return ``NAME-DIGEST`` under ``$BOLDCAST_RUNS``, or under ``runs`` in the current folder."""
    return Path(env.get("BOLDCAST_RUNS") or "runs") / f"{config.name}-{run_digest(config)[:8]}"


def state(run_dir: Path, config: Config) -> Literal["new", "unfinished", "complete"]:
    """Say what ``run_dir`` holds of a run of ``config``.

    Raises
    ------
    UsageRefused
        If it holds a run of another configuration, or files that are no run.
    """
    recorded = run_dir / "config.toml"
    with _usable(run_dir):
        if not recorded.exists():
            _refuse_foreign(run_dir)
            return "new"
    try:
        parted = differences(config, resolve(recorded, {}))
    except UsageRefused as error:
        raise UsageRefused(
            f"`--run_dir` must be new or hold a run of this configuration, but the config.toml in "
            f"{run_dir} cannot be read: {error.problems[0]} Use another folder."
        ) from None
    if parted:
        shown = "; ".join(parted[:3]) + ("; ..." if len(parted) > 3 else "")
        raise UsageRefused(
            f"`--run_dir` must be new or hold a run of this configuration, but {run_dir} holds "
            f"another one: {shown}. Use another folder, or its config.toml."
        )
    return "complete" if _is_complete(run_dir / "manifest.json") else "unfinished"


def start(run_dir: Path, config: Config) -> None:
    """Write the resolved configuration of this start, which makes the folder this run's."""
    write_bytes(run_dir / "config.toml", to_toml(config).encode())


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the folder for this process alone; the kernel lets go of it when the process ends.

    A run that was refused before its record was opened leaves nothing in the folder.

    Raises
    ------
    UsageRefused
        If another process trains in it, and goes on for a few seconds: a killed one may take a
        moment to be gone.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (lock := _locked(run_dir)) is None:
        if time.monotonic() > deadline:
            raise UsageRefused(
                f"`--run_dir` must not be in use, but another process is training in "
                f"{run_dir}. Wait for it, stop it, or use another folder."
            )
        time.sleep(0.1)
    with lock:
        try:
            yield
        finally:
            if not any((run_dir / name).exists() for name in ("config.toml", "manifest.json")):
                _clear(run_dir)


def _locked(run_dir: Path) -> TextIO | None:
    """Return the folder's lock, open and held, or None if another process holds it."""
    with _usable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # its holder may have removed the file between our opening and our locking it
        if os.path.samestat(os.fstat(lock.fileno()), (run_dir / ".lock").stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None


@contextmanager
def _usable(run_dir: Path) -> Iterator[None]:
    """Refuse a folder that cannot be made, read or written, by the word of the system."""
    try:
        yield
    except OSError as error:
        raise UsageRefused(
            f"`--run_dir` must be a folder that can be made and written, but for {run_dir} the "
            f"system says: {error.strerror or error}. Use another, or change its permissions."
        ) from None


def _clear(run_dir: Path) -> None:
    """Remove what starts that were refused have put into a new folder, and the folder if empty."""
    with suppress(OSError):
        for kept in (run_dir / "errors").glob("rank_*.txt"):
            kept.unlink()
        (run_dir / "errors").rmdir()
    with suppress(OSError):
        for name in ("events.jsonl", "stop", *_PARTS, ".lock"):
            (run_dir / name).unlink(missing_ok=True)
        run_dir.rmdir()


def refuse_other_data(run_dir: Path, data_digest: str) -> None:
    """Refuse to continue a run on data that are not those it began with.

    Raises
    ------
    DataRefused
        If the run's record names other data.
    """
    try:
        manifest = orjson.loads((run_dir / "manifest.json").read_bytes())
        before = manifest["data"]["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != data_digest:
        raise DataRefused(
            f"The data must be those that the run in {run_dir} began with, but their digest is "
            f"{data_digest[:12]} and was {before[:12]}. Bring the old data back, or use another "
            "`--run_dir`."
        )


def _is_complete(manifest: Path) -> bool:
    try:
        return bool(orjson.loads(manifest.read_bytes())["results"]["status"] == "completed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _refuse_foreign(run_dir: Path) -> None:
    if not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise UsageRefused(f"`--run_dir` must be a folder, but {run_dir} is a file. Use another.")
    foreign = sorted(p.name for p in run_dir.iterdir() if p.name not in _OWN)
    if foreign:
        raise UsageRefused(
            f"`--run_dir` must be new, empty or a run's folder, but {run_dir} holds other files "
            f"({', '.join(foreign[:3])}). Use another folder."
        )
