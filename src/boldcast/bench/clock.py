"""Time consecutive steps without disturbing them.

A step begins where the last one ended, so nothing between two steps goes unseen. On a CPU each mark
reads the monotonic clock. On a GPU each mark is a CUDA event in the stream of the work: nothing
waits for the device until all steps are enqueued, as in training, where the one wait of a step is
its finite check.

Example
-------
>>> clock = clock_for(torch.device("cpu"))
>>> for _ in range(3):
...     clock.mark()
>>> len(clock.steps_s())
2
"""

from __future__ import annotations

import itertools
import time
from typing import Protocol

import torch


class Clock(Protocol):
    """Marks the boundaries between steps."""

    def settle(self) -> None:
        """Wait until all work enqueued so far is done."""

    def mark(self) -> None:
        """Note the boundary between the step that ends here and the one that begins."""

    def steps_s(self) -> list[float]:
        """Return the seconds between each mark and the next."""


class CpuClock:
    """The monotonic clock; work on a CPU is done when its call returns."""

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def settle(self) -> None:
        """Do nothing."""

    def mark(self) -> None:
        """Read the clock."""
        self._marks_ns.append(time.perf_counter_ns())

    def steps_s(self) -> list[float]:
        """Return the seconds between each mark and the next."""
        return [(b - a) / 1e9 for a, b in itertools.pairwise(self._marks_ns)]


class CudaClock:
    """CUDA events on the current stream of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def mark(self) -> None:
        """Enqueue an event behind the work so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)

    def steps_s(self) -> list[float]:
        """Wait for the last event and return the seconds between each mark and the next."""
        self.settle()
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(self._marks)]


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
