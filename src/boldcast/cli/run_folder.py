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
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import orjson

from boldcast.config.resolve import digest, resolve, to_toml
from boldcast.config.schema import Config
from boldcast.errors import DataRefused, UsageRefused
from boldcast.files import write_bytes

_PATIENCE_S = 5.0
_OWN = {".lock", "events.jsonl"}


def default_run_dir(config: Config, env: Mapping[str, str] = os.environ) -> Path:
    """Return ``NAME-DIGEST`` under ``$BOLDCAST_RUNS``, or under ``runs`` in the current folder."""
    return Path(env.get("BOLDCAST_RUNS") or "runs") / f"{config.name}-{digest(config)[:8]}"


def state(run_dir: Path, config: Config) -> Literal["new", "unfinished", "complete"]:
    """Say what ``run_dir`` holds of a run of ``config``.

    Raises
    ------
    UsageRefused
        If it holds a run of another configuration, or files that are no run.
    """
    recorded = run_dir / "config.toml"
    if not recorded.exists():
        _refuse_foreign(run_dir)
        return "new"
    try:
        same = digest(resolve(recorded, {})) == digest(config)
    except UsageRefused as error:
        raise UsageRefused(
            f"`--run_dir` must be new or hold a run of this configuration, but the config.toml in "
            f"{run_dir} cannot be read: {error.problems[0]} Use another folder."
        ) from None
    if not same:
        raise UsageRefused(
            f"`--run_dir` must be new or hold a run of this configuration, but {run_dir} holds "
            "another one (see its config.toml). Use another folder, or that configuration."
        )
    return "complete" if _is_complete(run_dir / "manifest.json") else "unfinished"


def start(run_dir: Path, config: Config) -> None:
    """Make the folder and write the resolved configuration into it, if it is not there yet."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not (run_dir / "config.toml").exists():
        write_bytes(run_dir / "config.toml", to_toml(config).encode())


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the folder for this process alone; the kernel lets go of it when the process ends.

    Raises
    ------
    UsageRefused
        If another process trains in it, and goes on for a few seconds: a killed one may take a
        moment to be gone.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / ".lock").open("w") as lock:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UsageRefused(
                        f"`--run_dir` must not be in use, but another process is training in "
                        f"{run_dir}. Wait for it, stop it, or use another folder."
                    ) from None
                time.sleep(0.1)
        yield


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
