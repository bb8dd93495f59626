import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from boldcast.launch.local import command
from boldcast.train.stop import BEGAN, SIGNALS, StopRequest

WORKER = Path(__file__).with_name("stop_worker.py")


@pytest.fixture
def restored():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.usefixtures("restored")
def test_a_signal_is_noted_also_if_it_came_before_anyone_listened(number):
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.pthread_kill(threading.get_ident(), number)  # other threads do not hold it back
    stop = StopRequest()
    assert not stop.requested
    stop.listen()
    assert stop.requested
    assert stop.signal_name == number.name


def test_a_file_is_a_request_and_a_signals_name_in_it_is_the_cause(tmp_path):
    stop = StopRequest()
    stop.watch([tmp_path / "passed on", tmp_path / "stop"], 0.0)
    assert not stop.requested
    (tmp_path / "stop").write_text("because I say so")
    assert stop.requested
    assert stop.signal_name == "the file stop"
    other = StopRequest()
    (tmp_path / "passed on").write_text("SIGUSR1")
    other.watch([tmp_path / "passed on", tmp_path / "stop"], 0.0)
    assert other.requested
    assert other.signal_name == "SIGUSR1"


def test_the_budget_counts_from_when_the_command_began(monkeypatch):
    monkeypatch.setenv(BEGAN, str(time.monotonic() - 100))
    used, left, none = StopRequest(), StopRequest(), StopRequest()
    used.watch([], 99.0)
    left.watch([], 200.0)
    none.watch([], 0.0)
    assert used.requested
    assert used.signal_name == "the time budget"
    assert not left.requested
    assert not none.requested


def run_worker(n_ranks, *words):
    arguments = [str(WORKER), *map(str, words)]
    line = (
        command(n_ranks, arguments, words[0] / "logs")
        if n_ranks > 1
        else [sys.executable, *arguments]
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((words[0] / f"result_{rank}.json").read_text()) for rank in range(n_ranks)]


def test_a_stop_in_a_validation_gives_it_up_on_all_ranks_and_is_made_up_for(tmp_path):
    """Ranks with uneven shares neither hang nor part; the history is that of a whole run."""
    (whole,) = run_worker(1, tmp_path / "whole", -1, 0)
    assert whole["history"]["step"] == [0, 2, 4]
    first, second = run_worker(2, tmp_path / "cut", 2, 20)
    assert first["status"] == second["status"] == "stopped"
    assert first["step"] == second["step"] == 2
    assert first["history"]["step"] == second["history"]["step"] == [0]
    assert first["training"]
    assert second["seen"] < 33 + 33  # not the whole of the second validation
    (rest,) = run_worker(1, tmp_path / "cut", -1, 0)
    assert rest["status"] == "completed"
    assert rest["history"] == whole["history"]
    assert (rest["weights"], rest["best"]) == (whole["weights"], whole["best"])


def test_a_stop_in_the_first_validation_takes_no_step(tmp_path):
    (result,) = run_worker(1, tmp_path, 0, 9)
    assert (result["status"], result["step"], result["seen"]) == ("stopped", 0, 16)
    assert not (tmp_path / "checkpoints").exists()
