"""A request to stop, noted when the signal comes and acted upon at the next step boundary.

Saving inside a signal handler meets half-done work; one rank that leaves alone hangs the others.
So a handler only sets a flag, and the ranks agree on it with each step's one collective.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """The flag. A second interrupt from the keyboard ends the process at once."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.signal_name is not None

    def listen(self) -> StopRequest:
        """Catch SIGTERM, SIGINT and SIGUSR1 from here on."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested:
            os._exit(128 + number)
        self.signal_name = signal.Signals(number).name
