"""Watch the ranks of one machine, see which of them is in trouble, and end what does not end.

torchrun notices a rank that exits, not one that hangs, and waits long for one that does not react.
So the launching process looks itself: a rank that is gone without a note was killed, one that is
silent after another has failed hangs, and what first went wrong is what the user is told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from boldcast.errors import BoldcastError
from boldcast.launch import outcome

GRACE_S = 5.0
"""How long ranks may go on, to see and to note their own failure, after the first has failed."""

_POLL_S = 0.05
_STACK_S = 0.5
_END_S = 10.0
AGAIN = "The same command continues from the last checkpoint."


class Stop(Protocol):
    """A request to stop, as the launching process sees it."""

    signal_name: str | None
    at_once: Callable[[], None]
    """What a second interrupt does first."""

    @property
    def requested(self) -> bool:
        """Whether somebody asked."""


class Supervisor:
    """Watches torchrun and its ranks until the last has ended.

    Parameters
    ----------
    process : Popen
        torchrun.
    place : Path
        The folder of the ranks' notes.
    stop : Stop or None
        Passed on to the ranks; None if they do not listen.
    """

    def __init__(self, process: subprocess.Popen[bytes], place: Path, stop: Stop | None) -> None:
        self.process = process
        self.place = place
        self.stop = stop
        self.stacks: dict[int, str] = {}
        self._cause: BoldcastError | None = None
        self._deadline: float | None = None

    def wait(self) -> BoldcastError | None:
        """Wait for the end; return what the ranks ended for, None for success."""
        while self._running():
            self._relay()
            if self._deadline is None and self._in_trouble():
                self._cause = self._first_cause()
                self._deadline = time.monotonic() + GRACE_S
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._end_hanging()
        cause = self._cause or self._first_cause()
        if cause is None and self.process.returncode:
            notes = outcome.notes(self.place)
            return outcome.as_error(notes[0]) if notes else _without_a_word(self.process.returncode)
        return cause

    def kill(self) -> None:
        """End torchrun and all that it started, at once."""
        below = descendants(self.process.pid)
        _kill([self.process.pid, *below])

    def _running(self) -> bool:
        try:
            self.process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _relay(self) -> None:
        if self.stop is None:
            return
        asked = self.stop.signal_name if self.stop.requested else pending_stop(self.process.pid)
        if asked is not None and not (self.place / outcome.STOP).exists():
            (self.place / outcome.STOP).write_text(asked)

    def _silent(self) -> list[int]:
        """Return the ranks that are gone and did not say why."""
        gone = [rank for rank, pid in outcome.pids(self.place).items() if state(pid) in "ZX"]
        spoke = {note.rank for note in outcome.notes(self.place)}
        # a rank removes its process id before it ends well: look again
        return sorted(set(gone) & set(outcome.pids(self.place)) - spoke)

    def _in_trouble(self) -> bool:
        return any(not note.shared for note in outcome.notes(self.place)) or bool(self._silent())

    def _first_cause(self) -> BoldcastError | None:
        note = outcome.first_cause(self.place)
        if note is not None and not note.lost_contact:
            return outcome.as_error(note)
        if silent := self._silent():
            return _killed(silent, outcome.pids(self.place))
        return None

    def _end_hanging(self) -> None:
        """Kill every rank that is still there, once it was asked for its stack."""
        spoke = {note.rank for note in outcome.notes(self.place)}
        hanging = {r: p for r, p in outcome.pids(self.place).items() if r not in spoke}
        states = {rank: state(pid) for rank, pid in hanging.items()}
        hanging = {rank: pid for rank, pid in hanging.items() if states[rank] not in "ZX"}
        for pid in hanging.values():
            _send(pid, signal.SIGUSR2)
        if hanging:
            time.sleep(_STACK_S)
        for rank in hanging:
            self.stacks[rank] = (self.place / f"stack_{rank}").read_text(errors="replace")
        if self._cause is None and hanging:
            self._cause = _hangs(states, sorted(hanging), outcome.notes(self.place))
        _kill(descendants(self.process.pid))
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()


def _killed(silent: list[int], pids: dict[int, int]) -> outcome.RankLost:
    who = ", ".join(f"{rank} (process {pids[rank]})" for rank in silent)
    many = len(silent) > 1
    return outcome.RankLost(
        f"Rank{'s' if many else ''} {who} ended without a word: killed, out of memory, or crashed "
        f"in compiled code; the system's log (`dmesg`) tells which. {AGAIN}",
        len(silent),
    )


def _hangs(states: dict[int, str], hanging: list[int], notes: list[outcome.Note]) -> BoldcastError:
    how = {"T": "is stopped", "t": "is stopped", "D": "waits for a disk or a device"}
    who = " and ".join(f"rank {r}, which {how.get(states[r], 'still runs')}" for r in hanging)
    waited = ", ".join(str(note.rank) for note in notes)
    return outcome.RankLost(
        f"No answer came within `parallel.timeout_s` from {who}. Rank {waited} waited for it. "
        f"All ranks were ended. {AGAIN}",
        len(hanging),
    )


def _without_a_word(code: int) -> outcome.RankLost:
    return outcome.RankLost(
        f"A rank ended without a word (torchrun exit {code}): killed, or out of memory. {AGAIN}"
    )


def state(pid: int) -> str:
    """Return the letter of a process's state (see ``ps``); X if there is none."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def descendants(pid: int) -> list[int]:
    """Return the processes that ``pid`` started, and those that they started, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def pending_stop(pid: int) -> str | None:
    """Return the name of a stop signal that was sent to ``pid``, which holds it back."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    pending = sum(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        if pending >> (number - 1) & 1:
            return number.name
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's ``stat`` from the state on; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
