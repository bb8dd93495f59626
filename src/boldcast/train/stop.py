"""A request to stop, noted when it comes and acted upon at the next step boundary.

Saving inside a signal handler meets half-done work; one rank that leaves alone hangs the others.
So a handler only sets a flag, and the ranks agree on it with each step's one collective. A request
comes as SIGTERM, SIGINT or SIGUSR1, as a file that someone puts into the run folder, as a file from
the launching process, or because the time is up.

Example
-------
>>> from pathlib import Path
>>> stop = StopRequest()
>>> stop.requested
False
>>> stop.watch([Path("/")], time_budget_s=0.0)
>>> stop.requested, stop.signal_name
(True, 'the file /')
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_NAMES = {number.name for number in SIGNALS}
BEGAN = "BOLDCAST_BEGAN"
"""Variable with the ``time.monotonic()`` at which the command began, through every restart."""


class StopRequest:
    """The flag. A second interrupt from the keyboard ends the process at once.

    Attributes
    ----------
    signal_name : str or None
        What asked: a signal's name, a file, or the time budget; None while nobody did.
    at_once : callable
        What the second interrupt does before the process ends.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self.at_once: Callable[[], None] = lambda: None
        self._files: tuple[Path, ...] = ()
        self._deadline: float | None = None
        self._signalled = False

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop; looks at the clock and at the files."""
        if self.signal_name is None:
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.signal_name = "the time budget"
            for file in self._files:
                if file.exists():
                    self.signal_name = self.signal_name or _asked_by(file)
        return self.signal_name is not None

    def listen(self) -> StopRequest:
        """Catch SIGTERM, SIGINT and SIGUSR1 from here on, and those that were held back so far."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return self

    def watch(self, files: Sequence[Path], time_budget_s: float) -> None:
        """Count the presence of a file, or the end of the time, as a request from here on.

        Parameters
        ----------
        files : sequence of Path
            One that holds the name of a signal says that this signal asked for the stop.
        time_budget_s : float
            Seconds since the command began; 0: no end.
        """
        self._files = tuple(files)
        if time_budget_s:
            began = float(os.environ.get(BEGAN) or time.monotonic())
            self._deadline = began + time_budget_s

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signalled:
            self.at_once()
            os._exit(128 + number)
        self._signalled = True
        self.signal_name = self.signal_name or signal.Signals(number).name


def _asked_by(file: Path) -> str:
    try:
        words = file.read_text(errors="replace").strip()
    except OSError:  # a folder, or gone again
        words = ""
    return words if words in _NAMES else f"the file {file.name or file}"
