"""Run the real command line in processes of its own, several at a time, from one thread.

A lane is a generator that starts commands and yields conditions to wait for; ``Driver.run`` goes on
with each lane whose condition holds. One thread only, because the kernel ends a child when the
thread that started it ends, and that is what cleans up if the self-test is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import boldcast
from boldcast.launch.local import die_with_parent
from boldcast.parallel.place import PLACE_VARIABLES

Condition = Callable[[], bool]
Lane = Generator[Condition, None, None]

TIMEOUT_S = 150.0
"""After this a command is killed; its checks then fail."""

_POLL_S = 0.01


class Command:
    """One started command line.

    Attributes
    ----------
    began : float
        ``time.monotonic()`` at its start.
    """

    def __init__(self, words: Sequence[str], name: str, folder: Path, env: Mapping[str, str]):
        self.began = time.monotonic()
        self._out, self._err = (folder / f"{name}.{kind}" for kind in ("stdout", "stderr"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def ended(self) -> bool:
        """Tell whether it has ended; one that takes too long is killed."""
        if self.process.poll() is not None:
            return True
        if time.monotonic() - self.began > TIMEOUT_S:
            self.kill()
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process that the user would have started, and to no other."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it and everything in its session; ranks in sessions of their own follow."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def code(self) -> int | None:
        """Exit code; minus the signal that ended it; None while it runs."""
        return self.process.poll()

    @property
    def out(self) -> str:
        """What it wrote to stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it wrote to stderr so far."""
        return self._err.read_text(errors="replace")


class Driver:
    """Starts commands in a folder and ends all of them with itself.

    Parameters
    ----------
    folder : Path
        The self-test's own; commands run in ``logs`` inside it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        self.env = environment(os.environ, folder)
        self._commands: list[Command] = []

    def start(self, name: str, *words: str, python: Sequence[str] = ()) -> Command:
        """Start ``boldcast WORDS``; ``python`` are options of the interpreter."""
        line = [sys.executable, *python, "-m", "boldcast", *words]
        command = Command(line, name, self.logs, self.env)
        self._commands.append(command)
        return command

    def run(self, lanes: Sequence[Lane]) -> None:
        """Go through all lanes at once, until each has ended."""
        waiting: list[tuple[Lane, Condition]] = [(lane, lambda: True) for lane in lanes]
        while waiting:
            still = []
            for lane, condition in waiting:
                following = _advance(lane, condition)
                if following is not None:
                    still.append((lane, following))
            waiting = still
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        """Return the driver itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End whatever still runs."""
        for command in self._commands:
            command.kill()
            command.process.wait()


def _advance(lane: Lane, condition: Condition) -> Condition | None:
    """Return what the lane waits for next, or None at its end; a failing condition is its own."""
    try:
        if not condition():
            return condition
    except Exception as error:
        try:
            return lane.throw(error)
        except StopIteration:
            return None
    return next(lane, None)


def environment(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the commands: this installation, no GPU, no other run's place.

    Parameters
    ----------
    env : mapping
        The environment of the self-test.
    folder : Path
        Where packed data and temporary files go.
    """
    kept = {
        name: value
        for name, value in env.items()
        if name not in PLACE_VARIABLES and not name.startswith(("BOLDCAST_", "TORCHELASTIC_"))
    }
    package = str(Path(boldcast.__file__).resolve().parents[1])
    paths = [package, *(str(Path(p).absolute()) for p in _split(env.get("PYTHONPATH", "")))]
    return kept | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "CUDA_VISIBLE_DEVICES": "",
        "BOLDCAST_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),  # torchrun leaves a folder behind, and a kill leaves more
    }


def _split(paths: str) -> list[str]:
    return [path for path in paths.split(os.pathsep) if path]
