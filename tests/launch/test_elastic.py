import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from boldcast.errors import BoldcastError, StoppedOnRequest
from boldcast.launch import elastic, local, outcome, supervise
from boldcast.launch.outcome import LostContact, RankLost
from boldcast.train.stop import StopRequest


class Machine:
    """Starts that end as told: the ranks lost (0: success), and the step reached."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.started = []
        self.said = []
        self.step = 0

    def start(self, size):
        self.started.append(size)
        n_lost, self.step = self.ends.pop(0)
        if n_lost:
            raise RankLost(f"Lost. {supervise.AGAIN}\nTraceback", n_lost)

    def run(self, sizes, stop=None):
        stop = stop or StopRequest()
        elastic.run(sizes, self.start, lambda: self.step, self.said.append, stop)


def test_fewer_ranks_go_on_and_each_restart_says_one_line():
    machine = Machine((1, 5), (2, 9), (0, 20))
    machine.run([4, 3, 2, 1])
    assert machine.started == [4, 3, 1]
    assert machine.said == [
        "Lost. Restarting on 3 ranks from step 5.",
        "Lost. Restarting on 1 rank from step 9.",
    ]


def test_sizes_that_do_not_divide_are_left_out_and_the_least_is_kept():
    machine = Machine((1, 5), (1, 6), (0, 7))
    machine.run([4, 2])
    assert machine.started == [4, 2, 2]


def test_restarts_without_progress_are_bounded_and_progress_resets_the_count():
    machine = Machine(*[(1, 3)] * 3, *[(1, 8)] * 9)
    with pytest.raises(RankLost, match="Lost"):
        machine.run([2, 1])
    # one start that came to step 3, two restarts in vain, one to step 8, and three in vain
    assert len(machine.started) == 7


def test_the_same_internal_error_is_not_restarted_twice():
    bugs = iter(["a", "b", "a", "c"])
    started = []

    def start(size):
        started.append(size)
        raise RankLost("Traceback", bug=next(bugs))

    # progress at every start, so that only the error itself can end it
    steps = iter(range(100))
    with pytest.raises(RankLost, match="Traceback") as caught:
        elastic.run([4, 3, 2, 1], start, lambda: next(steps), print, StopRequest())
    assert caught.value.bug == "a"
    assert started == [4, 3, 2]


def test_nothing_is_restarted_once_a_stop_was_asked_for():
    stop = StopRequest()
    stop.signal_name = "SIGTERM"
    machine = Machine((1, 5), (0, 9))
    with pytest.raises(StoppedOnRequest):
        machine.run([2, 1], stop)
    assert machine.started == [2]


def test_what_is_not_a_lost_rank_is_not_restarted():
    def refuse(size):
        raise BoldcastError("disk full")

    with pytest.raises(BoldcastError, match="disk full"):
        elastic.run([2, 1], refuse, lambda: 0, print, StopRequest())


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        ("[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4", True),
        ("Timed out waiting 3000ms for recv operation to complete", True),
        ("ProcessGroupGloo::allgather: invalid tensor size at index 0", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_what_says_that_a_peer_is_gone_is_lost_contact(message, is_one):
    assert outcome.lost_contact(RuntimeError(message)) is is_one
    assert not outcome.lost_contact(ValueError(message))
    told = outcome.in_words(RuntimeError(message))
    assert (type(told) is LostContact) is is_one
    assert "127.0.0.1" not in str(told) or not is_one


def test_a_later_note_of_a_real_error_comes_before_one_of_lost_contact(tmp_path, monkeypatch):
    monkeypatch.setenv(outcome.VARIABLE, str(tmp_path))
    outcome.leave(RuntimeError("Connection closed by peer"), rank=0)
    outcome.leave(KeyError("the real one"), rank=1)
    note = outcome.first_cause(tmp_path)
    assert note.rank == 1
    assert isinstance(outcome.as_error(note), RankLost)
    assert outcome.as_error(note).bug == "KeyError: 'the real one'"


RANK = """
import os, sys, time
from boldcast.launch import local, outcome
local.die_with_parent()
rank = int(os.environ["RANK"])
outcome.enter(rank)
def waits_here():
    time.sleep(120)
if rank == 0:
    outcome.leave(RuntimeError("Timed out waiting 10ms for recv operation"), rank)
    sys.exit(1)
waits_here()
"""


def test_a_hanging_rank_is_asked_for_its_stack_and_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_S", 1.0)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    stop = StopRequest()  # with it the ranks hold back torchrun's SIGTERM, as a hung one does
    with pytest.raises(RankLost, match="from rank 1, which still runs") as caught:
        local.run(2, [str(script)], dict(os.environ), stop, tmp_path)
    assert caught.value.n_lost == 1
    assert "in waits_here" in (tmp_path / "errors" / "rank_1.txt").read_text()


def test_a_rank_whose_launching_process_is_gone_ends(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / outcome.LAUNCHER).write_text(str(gone.pid))
    done = subprocess.run(
        [sys.executable, "-c", "from boldcast.launch import outcome; outcome.enter(0); print(7)"],
        env=os.environ | {outcome.VARIABLE: str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_held_back_signal_is_seen_from_outside():
    code = "import signal, sys, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    line = [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(60)"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        assert supervise.pending_stop(process.pid) is None
        process.send_signal(signal.SIGTERM)
        assert supervise.pending_stop(process.pid) == "SIGTERM"
        process.kill()
    assert supervise.state(process.pid) == "X"


def test_a_stop_before_the_ranks_are_started_starts_none(tmp_path):
    stop = StopRequest()
    stop.signal_name = "SIGTERM"
    script = tmp_path / "rank.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(StoppedOnRequest, match="before the ranks were started"):
        local.run(1, [str(script)], dict(os.environ), stop)
    assert not (tmp_path / "ran").exists()


def test_an_interrupt_of_a_launching_process_whose_ranks_do_not_listen_ends_them(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\ntime.sleep(60)\n"
    )

    def interrupt():
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        local.run(1, [str(script)], dict(os.environ))
    deadline = time.monotonic() + 10
    while supervise.state(int((tmp_path / "pid").read_text())) not in "XZ":
        assert time.monotonic() < deadline
