"""Judge what a command left behind: each check returns what it saw, or raises ``NotOk``.

They look at bytes, exit codes and messages, not at what a run says about itself.

Example
-------
>>> shares_out(4, [[[0, 3], [1, 0]], [[2, 1], [2, 3]]])
'2 whole epochs of 4 windows, each window once in each, 2 orders'
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from boldcast.errors import DataRefused, NotTheSame, StoppedOnRequest, UsageRefused
from boldcast.files import sha256_file
from boldcast.record.trace import read_trace
from boldcast.selftest.report import NotOk

_IMPORTED = re.compile(r"^import time:[^|]*\|[^|]*\|\s*(\S+)", re.MULTILINE)
_LAST_LINES = 3


class Ended(Protocol):
    """A command that has ended."""

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal."""

    @property
    def out(self) -> str:
        """Its stdout."""

    @property
    def err(self) -> str:
        """Its stderr."""


def exited(command: Ended, code: int) -> None:
    """Raise ``NotOk`` unless ``command`` ended with ``code``."""
    if command.code != code:
        said = " / ".join(command.err.strip().splitlines()[-_LAST_LINES:])
        raise NotOk(f"exit code {command.code} instead of {code}; it said: {said or 'nothing'}")


def names(text: str, wanted: Iterable[str]) -> None:
    """Raise ``NotOk`` unless ``text`` holds all of ``wanted``."""
    missing = [word for word in wanted if word not in text]
    if missing:
        raise NotOk(f"the message does not name {', '.join(missing)}: {text.strip()[:300]}")


def refuses_flag(command: Ended, flag: str, meant: str) -> str:
    """Check that a misspelt flag was refused, and that torch was not imported for it.

    Parameters
    ----------
    command : Ended
        Started with ``-X importtime``.
    """
    exited(command, UsageRefused.exit_code)
    imported = _IMPORTED.findall(command.err)
    if "boldcast.cli" not in imported:
        raise NotOk("the list of imported modules could not be read")
    if heavy := [name for name in imported if name.split(".")[0] in ("torch", "fire")]:
        raise NotOk(f"{heavy[0]} was imported before the refusal")
    said = "\n".join(line for line in command.err.splitlines() if "import time" not in line)
    names(said, [f"`{flag}`", f"`--{meant}`"])
    return f"exit 2, names {meant}, torch is not imported"


def refuses_nan(command: Ended, run_dir: Path, *, file: str, region: str, volume: int) -> str:
    """Check that a NaN was refused with its place, before anything was trained."""
    exited(command, DataRefused.exit_code)
    names(command.err, [file, f"`{region}`", f"volume {volume},"])
    if (run_dir / "trace.jsonl").exists() or (run_dir / "checkpoints").exists():
        raise NotOk("training began")
    return f"exit 3, names {file}, region {region}, volume {volume}"


def trains(command: Ended, run_dir: Path, steps: int) -> str:
    """Check that a run ended well, left what it should, and that its loss fell."""
    exited(command, 0)
    _has_status(run_dir, "completed")
    losses = [float.fromhex(line["loss"]) for line in read_trace(run_dir / "trace.jsonl")]
    if len(losses) != steps:
        raise NotOk(f"{len(losses)} of {steps} steps were recorded")
    first, last = (math.fsum(part) / 3 for part in (losses[:3], losses[-3:]))
    if not last < first:
        raise NotOk(f"the loss did not fall: {first:.4f} to {last:.4f} in {steps} steps")
    if missing := [n for n in ("model.safetensors", "report.html") if not (run_dir / n).is_file()]:
        raise NotOk(f"{', '.join(missing)} not there")
    return f"{steps} steps, loss {first:.3f} to {last:.3f}"


def result_files(run_dir: Path, steps: int) -> dict[str, Path]:
    """Return the files whose bytes are a run's result."""
    return {
        "weights": run_dir / "model.safetensors",
        "optimizer": run_dir / "checkpoints" / f"step_{steps:08d}" / "optimizer.safetensors",
        "trace": run_dir / "trace.jsonl",
    }


def same_bits(one: Path, other: Path, steps: int) -> str:
    """Check that two runs left the same weights, optimizer state and trace."""
    files, others = result_files(one, steps), result_files(other, steps)
    parted = [name for name in files if sha256_file(files[name]) != sha256_file(others[name])]
    if parted:
        where = first_difference(one, other)
        raise NotOk(f"{', '.join(parted)} differ; {where or 'every step of the trace is equal'}")
    return f"weights {sha256_file(files['weights'])[:12]}, optimizer and all {steps} steps equal"


def first_difference(one: Path, other: Path) -> str | None:
    """Say at which step, and in what, the traces of two runs part; None if they do not."""
    traces = [read_trace(run / "trace.jsonl") for run in (one, other)]
    for left, right in zip(*traces, strict=False):
        parted = [key for key in left if key != "chain" and left[key] != right.get(key)]
        if parted:
            return f"the traces part at step {left['step']} in {', '.join(sorted(parted))}"
    lengths = [len(trace) for trace in traces]
    return None if len(set(lengths)) == 1 else f"one trace has {lengths[0]} steps, one {lengths[1]}"


def was_killed(command: Ended, run_dir: Path, steps: int) -> str:
    """Check that a run was killed in its middle, with a checkpoint, and does not claim an end."""
    exited(command, -signal.SIGKILL)
    _has_status(run_dir, "open")
    newest = newest_checkpoint(run_dir)
    if not 0 < newest < steps:
        raise NotOk(f"its newest checkpoint is of step {newest}, not from its middle")
    return f"killed with a checkpoint of step {newest}, record still open"


def was_stopped(command: Ended, run_dir: Path, before: int, steps: int) -> str:
    """Check that a run went on from ``before`` and ended as asked, with its state saved."""
    exited(command, StoppedOnRequest.exit_code)
    names(command.err, [f"Continuing from step_{before:08d}"])
    _has_status(run_dir, "stopped")
    newest = newest_checkpoint(run_dir)
    if not before < newest < steps:
        raise NotOk(f"its newest checkpoint is of step {newest}, it had begun at {before}")
    return f"went on from step {before}, exit 75 at step {newest}"


def newest_checkpoint(run_dir: Path) -> int:
    """Return the step of the newest finished checkpoint, or 0."""
    steps = [path.name[5:] for path in (run_dir / "checkpoints").glob("step_*")]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def verifies(command: Ended) -> str:
    """Check that ``verify`` found nothing."""
    exited(command, 0)
    return f"{command.out.count(chr(10)) - 1} digests and facts hold"


def finds_flipped(command: Ended, file: str) -> str:
    """Check that ``verify`` found the file that was changed, and no other."""
    exited(command, NotTheSame.exit_code)
    bad = [line.split()[2] for line in command.out.splitlines() if line.startswith("NOT OK")]
    if bad != [file]:
        raise NotOk(f"verify names {', '.join(bad) or 'nothing'} instead of {file}")
    return f"exit 5, names {file}"


def notices(command: Ended, plain: Path, planted: Path, cause: Sequence[str]) -> str:
    """Check that a run with one thing changed differs, and that the records say in what.

    Parameters
    ----------
    plain, planted : Path
        Runs without and with the change.
    cause : sequence of str
        Keys of the manifest that lead to the one fact of ``requested`` and ``data`` that differs.
    """
    exited(command, 0)
    where = first_difference(plain, planted)
    if where is None:
        raise NotOk("the traces of both runs are equal")
    records = [_manifest(run) for run in (plain, planted)]
    told = [key for key in _FACTS if _at(records[0], key) != _at(records[1], key)]
    if told != [tuple(cause)]:
        found = ", ".join(".".join(key) for key in told) or "nothing"
        raise NotOk(f"the records differ in {found}, not in {'.'.join(cause)}")
    return f"{where}; the records differ in {'.'.join(cause)}"


_FACTS = (("requested", "config_digest"), ("data", "digest"))


def shares_out(n_windows: int, ranks: Sequence[Sequence[Sequence[int]]]) -> str:
    """Check the order of training windows as the ranks receive them.

    Parameters
    ----------
    n_windows : int
        Windows of an epoch.
    ranks : sequence, shape (n_ranks, n_steps) of sequences of int
        The windows of each step, by rank; a step's windows are the first rank's, then the next's.
    """
    stream = [w for step in zip(*ranks, strict=True) for part in step for w in part]
    epochs = [
        stream[begin : begin + n_windows]
        for begin in range(0, len(stream) - n_windows + 1, n_windows)
    ]
    if len(epochs) < 2:
        raise NotOk(f"{len(stream)} windows are not two epochs of {n_windows}")
    for number, epoch in enumerate(epochs):
        missing = set(range(n_windows)) - set(epoch)
        if missing:
            raise NotOk(
                f"in epoch {number} {len(missing)} windows never come, such as {min(missing)}, and "
                f"as many come twice"
            )
    orders = {tuple(epoch) for epoch in epochs}
    if len(orders) < len(epochs):
        raise NotOk(f"{len(epochs)} epochs have only {len(orders)} orders")
    return (
        f"{len(epochs)} whole epochs of {n_windows} windows, each window once in each, "
        f"{len(orders)} orders"
    )


def _manifest(run_dir: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = orjson.loads((run_dir / "manifest.json").read_bytes())
    return manifest


def _at(record: dict[str, Any], key: Sequence[str]) -> Any:
    for part in key:
        record = record[part]
    return record


def _has_status(run_dir: Path, wanted: str) -> None:
    status = _manifest(run_dir)["results"]["status"]
    if status != wanted:
        raise NotOk(f"its record says {status}, not {wanted}")
