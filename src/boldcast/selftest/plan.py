"""What the self-test runs, and when.

Two cores are kept busy: while one lane waits for a process to start, another computes. Starting
Python, torch and torchrun takes longer than training does, so there are as few starts as the checks
allow: the run that is killed goes on, is asked to stop, and goes on to its end.

Example
-------
>>> STEPS % CHECKPOINT_EVERY
0
"""

from __future__ import annotations

import fcntl
import math
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from boldcast.config.resolve import preset, resolve
from boldcast.config.schema import Config
from boldcast.selftest import checks, study
from boldcast.selftest.driver import Command, Condition, Driver, Lane
from boldcast.selftest.report import NotOk, Report

STEPS = 24
CHECKPOINT_EVERY = 6
_RELEASE_S = 10.0
_NAN_AT = (17, 2)
"""Volume and region."""

_CHANGED_AT = (30, 1)


def run(driver: Driver, report: Report) -> None:
    """Run every command and check what each leaves."""
    plan = _Plan(driver, report)
    driver.run(plan.guarded(plan.interrupted, plan.undisturbed, plan.refusals))
    driver.run(plan.guarded(plan.compared, plan.planted))
    plan.order()


class _Plan:
    """The commands of the self-test and their run folders."""

    def __init__(self, driver: Driver, report: Report) -> None:
        self.driver = driver
        self.report = report
        folder = driver.folder
        self.config = _config()
        self.commands: dict[str, Command] = {}
        self.runs = {name: folder / "runs" / name for name in _RUNS}
        self.data = {name: folder / "data" / name for name in ("plain", "changed", "missing")}
        study.write(self.data["plain"], self.config.synthetic)
        self.scans = sorted(path.name for path in self.data["plain"].glob("*.npy"))
        self._plant("missing", _NAN_AT, math.nan)
        self._plant("changed", _CHANGED_AT, 1e-3)

    def _plant(self, name: str, place: tuple[int, int], value: float) -> None:
        study.plant(
            self.data["plain"],
            self.data[name],
            self.scans[0],
            volume=place[0],
            region=place[1],
            value=value,
        )

    def train(self, run: str, nproc: int, name: str, *words: str, data: str = "plain") -> Command:
        """Start the training of a run; the same words continue it."""
        self.commands[name] = self.driver.start(
            name,
            "train",
            str(preset("tiny")),
            f"--run_dir={self.runs[run]}",
            f"--nproc={nproc}",
            f"--data={self.data[data]}",
            *_SETTINGS,
            *words,
        )
        return self.commands[name]

    def guarded(self, *lanes: Callable[[], Lane]) -> list[Lane]:
        """Return the lanes so that one that cannot go on is a check that does not hold."""

        def guard(lane: Callable[[], Lane]) -> Lane:
            try:
                yield from lane()
            except Exception as error:
                self.report.check(f"part `{lane.__name__}`", partial(_cannot_go_on, error))

        return [guard(lane) for lane in lanes]

    def undisturbed(self) -> Lane:
        """Train on one rank, then on two."""
        one = self.train("one", 1, "one-rank")
        yield one.ended
        self.report.check(
            "trains on one rank", lambda: checks.trains(one, self.runs["one"], STEPS), one.began
        )
        two = self.train("two", 2, "two-ranks")
        yield two.ended
        self.report.check(
            "trains on two ranks", lambda: checks.trains(two, self.runs["two"], STEPS), two.began
        )
        self.report.check(
            "two ranks give the bits of one",
            lambda: checks.same_bits(self.runs["one"], self.runs["two"], STEPS),
        )

    def interrupted(self) -> Lane:
        """Kill a run on two ranks, continue it, ask it to stop, continue it to its end."""
        folder = self.runs["interrupted"]
        killed = self.train("interrupted", 2, "killed")
        yield lambda: killed.ended() or checks.newest_checkpoint(folder) > 0
        killed.send(signal.SIGKILL)
        yield killed.ended
        self.report.check(
            "killed in the middle", lambda: checks.was_killed(killed, folder, STEPS), killed.began
        )
        yield _released(folder)
        before = checks.newest_checkpoint(folder)
        stopped = self.train("interrupted", 2, "stopped")
        yield lambda: stopped.ended() or checks.newest_checkpoint(folder) > before
        stopped.send(signal.SIGTERM)
        yield stopped.ended
        self.report.check(
            "continues, stops when asked",
            lambda: checks.was_stopped(stopped, folder, before, STEPS),
            stopped.began,
        )
        yield self.train("interrupted", 2, "continued").ended

    def compared(self) -> Lane:
        """Replay the run on two ranks from its own record; compare the interrupted one."""
        two, replay = self.runs["two"], self.runs["replay"]
        continued = self.commands["continued"]

        def interrupted() -> str:
            checks.exited(continued, 0)
            return checks.same_bits(two, self.runs["interrupted"], STEPS)

        self.report.check("ends with the bits of an undisturbed run", interrupted, continued.began)
        command = self.driver.start(
            "replay",
            "train",
            str(two / "config.toml"),
            f"--run_dir={replay}",
            "--nproc=2",
            f"--data={self.data['plain']}",
        )
        yield command.ended

        def replayed() -> str:
            checks.exited(command, 0)
            return checks.same_bits(two, replay, STEPS)

        self.report.check("replays bit for bit on two ranks", replayed, command.began)

    def refusals(self) -> Lane:
        """Give a flag that does not exist, and data with a NaN."""
        flag = self.driver.start(
            "unknown-flag", "train", "--stepz", "5", python=("-X", "importtime")
        )
        yield flag.ended
        self.report.check(
            "refuses an unknown flag",
            lambda: checks.refuses_flag(flag, "--stepz", "train.steps"),
            flag.began,
        )
        missing = self.train("missing", 1, "nan", data="missing")
        yield missing.ended
        volume, region = _NAN_AT
        self.report.check(
            "refuses a NaN in the data",
            lambda: checks.refuses_nan(
                missing,
                self.runs["missing"],
                file=self.scans[0],
                region=f"S{region + 1:03d}",
                volume=volume,
            ),
            missing.began,
        )

    def planted(self) -> Lane:
        """Verify a record; flip a bit of the weights; change one value of the data, the seed."""
        verified = self.driver.start("verify", "verify", str(self.runs["two"]))
        yield verified.ended
        self.report.check("its record verifies", lambda: checks.verifies(verified), verified.began)
        shutil.copytree(self.runs["two"], self.runs["flipped"])
        study.flip_bit(self.runs["flipped"] / "model.safetensors")
        flipped = self.driver.start("verify-flipped", "verify", str(self.runs["flipped"]))
        yield flipped.ended
        self.report.check(
            "notices a flipped bit in the weights",
            lambda: checks.finds_flipped(flipped, "model.safetensors"),
            flipped.began,
        )
        changed = self.train("changed", 1, "changed-data", data="changed")
        yield changed.ended
        self._notices("notices one changed value in the data", changed, "changed", "data", "digest")
        seed = self.train("seed", 1, "changed-seed", "--seed=1")
        yield seed.ended
        self._notices("notices another seed", seed, "seed", "requested", "config_digest")

    def _notices(self, name: str, command: Command, run: str, *cause: str) -> None:
        self.report.check(
            name,
            lambda: checks.notices(command, self.runs["one"], self.runs[run], cause),
            command.began,
        )

    def order(self) -> None:
        """Look at the order in which the windows of the study come."""
        for n_ranks in (1, 2):
            self.report.check(
                f"order of windows, {n_ranks} rank{'s' if n_ranks > 1 else ''}",
                partial(self._order, n_ranks),
            )

    def _order(self, n_ranks: int) -> str:
        # here and not above: torch takes seconds, during which no signal could be sent in time
        from boldcast.selftest.order import windows_of_ranks

        cache = self.driver.folder / "cache" / "stores"
        n_windows, ranks = windows_of_ranks(self.config, self.data["plain"], cache, n_ranks)
        return checks.shares_out(n_windows, ranks)


_RUNS = ("one", "two", "interrupted", "replay", "missing", "flipped", "changed", "seed")

_SETTINGS = (
    f"--data.source={study.SCAN_LIST}",
    f"--train.steps={STEPS}",
    f"--train.checkpoint_every={CHECKPOINT_EVERY}",
    "--train.device=cpu",
)


def _config() -> Config:
    words = (word.removeprefix("--").split("=", 1) for word in _SETTINGS)
    return resolve(preset("tiny"), {name: value for name, value in words})


def _cannot_go_on(error: Exception) -> str:
    raise NotOk(f"could not go on: {type(error).__name__}: {error}")


def _released(run_dir: Path) -> Condition:
    """Return whether the ranks of a killed run are gone, which takes the kernel a moment."""
    deadline = time.monotonic() + _RELEASE_S

    def free() -> bool:
        with (run_dir / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return time.monotonic() > deadline
        return True

    return free
