import itertools

import pytest
import torch

from boldcast.bench import clock as module
from boldcast.bench.clock import CpuClock, CudaClock, clock_for


def test_a_step_lasts_from_one_mark_to_the_next(monkeypatch):
    readings = iter([0, 5_000_000, 2_000_000_000])
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: next(readings))
    clock = CpuClock()
    for _ in range(3):
        clock.mark()
    assert clock.steps_s() == [0.005, 1.995]


def test_each_device_has_its_clock():
    assert isinstance(clock_for(torch.device("cpu")), CpuClock)
    assert isinstance(clock_for(torch.device("cuda", 0)), CudaClock)


@pytest.fixture
def cuda(monkeypatch):
    """A GPU that only writes down what is asked of it; its events are 0, 3, 6 ... ms apart."""
    calls = []
    numbers = itertools.count()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.at_ms = 3.0 * sum(range(next(numbers) + 1))

        def record(self, stream):
            calls.append(("record", stream))

        def elapsed_time(self, later):
            assert calls[-1][0] == "synchronize"
            return later.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: calls.append(("synchronize", str(device)))
    )
    return calls


def test_a_gpu_is_timed_by_events_in_its_stream_and_waited_for_once_at_the_end(cuda):
    clock = CudaClock(torch.device("cuda", 1))
    for _ in range(3):
        clock.mark()
    assert cuda == [("record", "stream of cuda:1")] * 3
    assert clock.steps_s() == pytest.approx([0.003, 0.006])
    assert cuda[3:] == [("synchronize", "cuda:1")]
