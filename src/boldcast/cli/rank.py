"""One rank of a run, from joining the others to the sealed record.

Everything that is decided by looking at a disk is decided by rank 0 for all: whose folder it is,
where the packed data lie, which checkpoint to continue from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import orjson
import torch
from torch.distributed.distributed_c10d import _get_default_store

from boldcast.cli import blocks, run_folder
from boldcast.config.resolve import batch_arithmetic, check_world
from boldcast.config.schema import Config
from boldcast.data.store import Store, prepare
from boldcast.errors import AcceptanceMissed, Diverged, StoppedOnRequest, UsageRefused
from boldcast.launch import outcome
from boldcast.model.forecaster import describe
from boldcast.parallel.agree import from_rank_zero
from boldcast.parallel.world import World
from boldcast.record.events import EventLog
from boldcast.record.manifest import open_manifest, seal
from boldcast.score.report import write_report
from boldcast.train import numerics
from boldcast.train.log import RunLog
from boldcast.train.run import Job, build, conclude
from boldcast.train.stop import StopRequest

T = TypeVar("T")

_POLL_S = 0.05


def run(
    config: Config, argv: Sequence[str], run_dir: Path, root: Path, cache: Path, stop: StopRequest
) -> bool:
    """Train ``config`` in ``run_dir`` as the rank that the environment says.

    Parameters
    ----------
    argv : sequence of str
        The command line, for the record.
    root, cache : Path
        Folders of the data and of packed stores.

    Returns
    -------
    bool
        False if the run was complete already.

    Raises
    ------
    StoppedOnRequest, Diverged, AcceptanceMissed, UsageRefused, DataRefused
        As the run ended.
    """
    world = World.from_env()
    device = world.device(config.train.device)
    _refuse_place(config, world, device)
    with ExitStack() as folder:
        patience = config.parallel.timeout_s, config.parallel.preflight_timeout_s
        with world.process_group(device, *patience):
            place = from_rank_zero(world, lambda: _enter(folder, run_dir, config))
            if place == "complete":
                return False
            _watch(stop, config, run_dir, world)
            store = Store.open(_at_length(world, lambda: prepare(config, root, cache)))
            from_rank_zero(world, lambda: run_folder.refuse_other_data(run_dir, store.digest))
            log = _log(config, run_dir, world)
            folder.callback(log.close)
            job = build(config, store, world, run_dir, log, stop)
            numerics.verify(config.numerics, job.model, device, world)
            found = blocks.build(config, argv, store, world, device, job)
            record = _Record(run_dir, config, found) if world.is_rank_zero else None
            _announce(log, config, job, world, str(device))
            status = _fit(job, record)
        if record is not None:
            _finish(job, record, status, log)
        if status == "stopped":
            raise StoppedOnRequest(
                f"Stopped on request after step {job.trainer.state.step}. "
                "The same command continues the run."
            )
    return True


def _refuse_place(config: Config, world: World, device: torch.device) -> None:
    """Refuse, on every rank for itself, what ``config`` cannot do on these ranks or this device."""
    problems = check_world(config, world.world_size)
    if config.train.dtype == "bfloat16" and device.type == "cpu":
        problems.append(
            '`train.dtype` must be "float32" on the CPU, but is "bfloat16", and `train.device` '
            f'"{config.train.device}" found no GPU. Set `train.dtype` to "float32", or train where '
            "there is one."
        )
    if problems:
        refused = UsageRefused(problems)
        refused.on_every_rank = True
        raise refused


def _at_length(world: World, work: Callable[[], T]) -> T:
    """Do as ``from_rank_zero``, for work that may take longer than a rank waits for another."""
    if world.world_size == 1:
        return work()
    store = _get_default_store()

    def announced() -> T:
        try:
            return work()
        except OSError as error:  # of rank 0's disk, but every rank ends for it
            raise outcome.in_words(error) from error
        finally:
            store.set("boldcast/done", "1")

    while not (world.is_rank_zero or store.check(["boldcast/done"])):
        time.sleep(_POLL_S)
    return from_rank_zero(world, announced)


def _log(config: Config, run_dir: Path, world: World) -> RunLog:
    quiet = not world.is_rank_zero
    every = config.train.log_every
    return RunLog(config.log, run_dir, config.name, quiet=quiet, log_every=every)


def _watch(stop: StopRequest, config: Config, run_dir: Path, world: World) -> None:
    """Look for stop requests that come as files: from the launching process, or from a user."""
    passed_on = outcome.folder()
    files = [passed_on / outcome.STOP] if passed_on is not None else []
    if world.is_rank_zero:
        files.append(run_dir / outcome.STOP)
    stop.watch(files, config.train.time_budget_s)


def _enter(folder: ExitStack, run_dir: Path, config: Config) -> str:
    run_folder.state(run_dir, config)  # refuses before so much as a lock is put into it
    folder.enter_context(run_folder.held(run_dir))
    place = run_folder.state(run_dir, config)
    if place != "complete":
        (run_dir / outcome.STOP).unlink(missing_ok=True)  # it stopped an earlier attempt
    return place


class _Record:
    """The manifest and the events of one attempt; rank 0 has it."""

    def __init__(self, run_dir: Path, config: Config, found: dict[str, Any]) -> None:
        self.run_dir = run_dir
        self._config = config
        self.events = EventLog(run_dir / "events.jsonl")
        self._blocks = found
        self._attempts = _earlier_attempts(run_dir)

    def open(self, step: int, resumed_from: dict[str, Any] | None) -> None:
        """Say that an attempt begins at ``step``, and who wrote what it continues."""
        world_size = self._blocks["parallel"]["world_size"]
        self._attempts.append(
            {
                "first_step": step,
                "last_step": None,
                "world_size": world_size,
                "strategy": self._blocks["parallel"]["strategy"],
                "resumed_from": resumed_from,
                "end": "open",
            }
        )
        run_folder.start(self.run_dir, self._config)
        self.events.write("started", step=step, world_size=world_size)
        open_manifest(self.run_dir, self._blocks, self._attempts)

    def seal(self, status: str, step: int, **results: Any) -> None:
        """Say how the attempt ended."""
        self._attempts[-1] |= {"last_step": step, "end": status}
        self.events.write(status, step=step)
        seal(
            self.run_dir,
            self._blocks,
            {"status": status, "steps": step, **results},
            self._attempts,
        )


def _fit(job: Job, record: _Record | None) -> str:
    """Train; an end by error is sealed before it goes on."""
    job.trainer.resume()
    if record is not None:
        record.open(job.trainer.state.step, job.trainer.resumed_from)
    try:
        return job.fit().status
    except Exception as error:
        if record is not None:
            status = "diverged" if isinstance(error, Diverged) else "failed"
            record.seal(status, job.trainer.state.step, first_cause=str(outcome.in_words(error)))
        raise


def _finish(job: Job, record: _Record, status: str, log: RunLog) -> None:
    """Score and report a completed run, and seal the record."""
    step = job.trainer.state.step
    if status == "stopped":
        record.seal(
            "stopped", step, first_cause=f"{job.trainer.stop.signal_name or 'a stop request'}"
        )
        return
    log.say("Scoring the held-out scans.")
    scores = conclude(job, record.run_dir)
    write_report(record.run_dir)
    record.seal("completed", step, scores=scores, **blocks.final_digests(job))
    if scores["missed"]:
        raise AcceptanceMissed("The run is complete, but: " + " ".join(scores["missed"]))


def _announce(log: RunLog, config: Config, job: Job, world: World, device: str) -> None:
    counts = describe(job.model)
    log.say(f"{config.name}: {batch_arithmetic(config, world.world_size)}")
    log.say(
        f"{counts['total']:,} parameters on {device}, level {config.numerics.level}, "
        f"{job.batches.order.n:,} training and {len(job.held_out):,} held-out windows of "
        f"{config.data.context_length} volumes x {len(job.store.regions)} regions"
    )
    for note in job.store.notes:
        log.say(f"note: {note}")


def _earlier_attempts(run_dir: Path) -> list[dict[str, Any]]:
    try:
        manifest = orjson.loads((run_dir / "manifest.json").read_bytes())
        attempts = [dict(attempt) for attempt in manifest["attempts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [{**a, "end": "killed"} if a.get("end") == "open" else a for a in attempts]
