"""Whole runs that meet trouble: real processes, signals, killed, stopped and missing ranks."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orjson
import pytest

from boldcast.launch.supervise import descendants, state
from boldcast.record.verify import verify

TINY = Path(__file__).parents[1] / "run" / "tiny.toml"
BOLDCAST = [sys.executable, "-m", "boldcast", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
QUICK = ("--parallel.timeout_s", "3")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("in trouble")


@pytest.fixture(scope="module")
def env(place):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOLDCAST", "OMP", "MKL"))}
    return kept | {"BOLDCAST_CACHE": str(place / "cache")}


@pytest.fixture(scope="module")
def reference(place, env):
    """What every run of the tiny configuration must end in, however it came there."""
    run_dir = place / "reference"
    assert finish(start(env, run_dir, "--nproc", 1))[0] == 0
    return bits(run_dir)


def start(env, run_dir, *words, line=BOLDCAST):
    return subprocess.Popen(
        [*line, str(TINY), f"--run_dir={run_dir}", *map(str, words)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, timeout=120):
    try:
        _, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, err


def bits(run_dir):
    results = manifest(run_dir)["results"]
    weights = hashlib.sha256((run_dir / "model.safetensors").read_bytes()).hexdigest()
    same = ("weights", "optimizer", "trace")
    return [weights, results["digests"]["history.json"], *(results[name] for name in same)]


def manifest(run_dir):
    return orjson.loads((run_dir / "manifest.json").read_bytes())


def until(condition, patience_s=90.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def steps_done(run_dir):
    names = [p.name for p in (run_dir / "checkpoints").glob("step_????????")]
    return max((int(name[5:]) for name in names), default=0)


def listens(pid):
    """Whether a process has a handler for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def imported_torch(pid):
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def ranks_below(pid):
    """The processes of the ranks that ``pid`` or its torchrun started, by rank."""
    found = {}
    for below in descendants(pid):
        try:
            variables = Path(f"/proc/{below}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{below}/cmdline").read_bytes()
        except OSError:
            continue
        named = [v for v in variables if v.startswith(b"RANK=")]
        if named and b"boldcast" in words:
            found[int(named[0][5:])] = below
    return found


# Stopping


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_stop_before_torch_is_imported_is_not_lost(place, env, n_ranks):
    run_dir = place / f"early {n_ranks}"
    process = start(env, run_dir, "--nproc", n_ranks)
    until(lambda: listens(process.pid))
    assert not imported_torch(process.pid)
    process.send_signal(signal.SIGTERM)
    code, err = finish(process)
    assert code == 75, err
    assert "Traceback" not in err
    assert steps_done(run_dir) == 0


def test_a_stop_that_reaches_torchrun_before_its_workers_is_survived_and_passed_on(place, env):
    run_dir = place / "torchrun first"
    process = start(env, run_dir, "--nproc", 2)
    until(lambda: descendants(process.pid))
    time.sleep(0.5)  # torchrun imports torch
    os.kill(descendants(process.pid)[0], signal.SIGTERM)
    code, err = finish(process)
    assert code == 75, err
    assert manifest(run_dir)["results"]["first_cause"] == "SIGTERM"


def test_a_stop_file_stops_the_run_and_the_next_start_removes_it(place, env, reference):
    run_dir = place / "stop file"
    process = start(env, run_dir)
    until(lambda: steps_done(run_dir) >= 6)
    (run_dir / "stop").touch()
    code, err = finish(process)
    assert code == 75, err
    assert manifest(run_dir)["results"]["first_cause"] == "the file stop"
    assert finish(start(env, run_dir))[0] == 0
    assert not (run_dir / "stop").exists()
    assert bits(run_dir) == reference


def test_the_time_budget_counts_from_the_command(place, env):
    run_dir = place / "budget"
    code, err = finish(start(env, run_dir, "--train.time_budget_s", "0.01"))
    assert code == 75, err
    results = manifest(run_dir)["results"]
    assert (results["first_cause"], results["steps"]) == ("the time budget", 0)


def test_a_second_interrupt_ends_the_whole_tree_at_once(place, env):
    run_dir = place / "twice"
    process = start(env, run_dir, "--nproc", 2)
    until(lambda: steps_done(run_dir) >= 6)
    tree = descendants(process.pid)
    assert len(tree) >= 3
    os.kill(ranks_below(process.pid)[1], signal.SIGSTOP)  # else the first one might do
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _ = finish(process, timeout=10)
    assert code == 130
    until(lambda: all(state(pid) in "XZ" for pid in tree), patience_s=5)


# One verdict


def test_bad_windows_of_one_rank_end_all_ranks_with_one_verdict(place, env):
    """A glitch of 1e25 is finite in the file and infinite when squared, on rank 1 alone."""
    folder = place / "glitch"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["path\tsubject\tt_r\tsplit"]
    for subject, split in (("a", "train"), ("b", "train"), ("c", "held_out")):
        series = rng.standard_normal((120, 5)).cumsum(0).astype(np.float32)
        if subject == "b":
            series[60, 2] = 1e25
        np.save(folder / f"{subject}.npy", series)
        lines.append(f"{subject}.npy\t{subject}\t0.72\t{split}")
    (folder / "scans.tsv").write_text("\n".join(lines) + "\n")
    notes = folder / "notes"
    notes.mkdir()
    (notes / "launcher").write_text(str(os.getpid()))
    line = [*TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "--", "boldcast", "train"]
    words = ("--data.source", folder / "scans.tsv", "--data.standardize", "none")
    batch = ("--train.global_batch_size", "4", "--train.checkpoint_every", "1", "--seed", "3")
    process = start(
        env | {"BOLDCAST_OUTCOME": str(notes), "OMP_NUM_THREADS": "1"},
        folder / "run",
        *words,
        *batch,
        line=line,
    )
    code, err = finish(process)
    assert code == 0, err  # each rank ended by itself, none was torn down
    first, second = (orjson.loads((notes / f"rank_{r}.json").read_bytes()) for r in (0, 1))
    assert first["code"] == second["code"] == 7
    assert first["message"] == second["message"]
    assert "on rank 1, windows [" in first["message"]
    results = manifest(folder / "run")["results"]
    assert results["status"] == "diverged"
    assert f"step {results['steps'] + 1} " in first["message"]
    assert steps_done(folder / "run") == results["steps"] > 0
    assert all(finding.ok for finding in verify(folder / "run"))


# Lost ranks


def test_a_killed_rank_is_named_and_fewer_ranks_end_in_the_same_bits(place, env, reference):
    run_dir = place / "elastic"
    process = start(env, run_dir, "--nproc", "1:2")
    until(lambda: steps_done(run_dir) >= 6)
    victim = ranks_below(process.pid)[1]
    os.kill(victim, signal.SIGKILL)
    code, err = finish(process)
    assert code == 0, err
    lines = [line for line in err.splitlines() if "Restarting on 1 rank from step" in line]
    assert len(lines) == 1
    assert f"Rank 1 (process {victim}) ended without a word" in lines[0]
    assert bits(run_dir) == reference
    assert [a["world_size"] for a in manifest(run_dir)["attempts"]] == [2, 1]
    assert "Traceback" in (run_dir / "errors" / "rank_0.txt").read_text()
    assert all(finding.ok for finding in verify(run_dir))


def test_a_hanging_rank_ends_the_run_in_time_with_its_name(place, env):
    run_dir = place / "hanging"
    process = start(env, run_dir, "--nproc", 2, *QUICK)
    until(lambda: steps_done(run_dir) >= 6)
    began, tree = time.monotonic(), descendants(process.pid)
    os.kill(ranks_below(process.pid)[1], signal.SIGSTOP)
    code, err = finish(process, timeout=40)  # not torchrun's 300 s
    assert code == 1, err
    last = err.strip().splitlines()[-1]
    assert "No answer came within `parallel.timeout_s` from rank 1, which is stopped" in last
    assert last.endswith("The same command continues from the last checkpoint.")
    assert time.monotonic() - began < 40
    assert all(state(pid) in "XZ" for pid in tree)
    kept = (run_dir / "errors" / "rank_0.txt").read_text()
    assert "Traceback" in kept
    assert "take" in kept  # where it waited: in a step
    assert manifest(run_dir)["results"]["status"] == "failed"
    assert "127.0.0.1" not in orjson.dumps(manifest(run_dir)["results"]).decode()
    assert finish(start(env, run_dir, *QUICK))[0] == 0


def test_torchruns_own_restarts_continue_to_the_same_bits(place, env, reference):
    """Also where torchrun keeps one store through its restarts, which is its default."""
    run_dir = place / "restarted"
    line = [*TORCHRUN, "--nnodes=1", "--nproc-per-node=2", "--max-restarts=2", "--standalone"]
    by_hand = [*line, "-m", "--", "boldcast", "train"]
    process = start(env | {"OMP_NUM_THREADS": "1"}, run_dir, line=by_hand)
    until(lambda: steps_done(run_dir) >= 6)
    os.kill(ranks_below(process.pid)[1], signal.SIGKILL)
    code, err = finish(process)
    assert code == 0, err
    assert bits(run_dir) == reference
    assert len(manifest(run_dir)["attempts"]) == 2


# Ranks that do not find each other


def by_hand(env, rank, run_dir, port, *words):
    """One rank, without torchrun."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    named = {name: str(value) for name, value in (variables | where).items()}
    return start({"GLOO_SOCKET_IFNAME": "lo"} | env | named, run_dir, *words)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_rank_that_never_arrives_is_named_before_data_are_prepared(place, env):
    run_dir = place / "alone"
    words = ("--parallel.preflight_timeout_s", "2")
    code, err = finish(by_hand(env, 0, run_dir, free_port(), *words), timeout=40)
    assert code == 1, err
    assert "Rank 1 of 2 did not arrive within 2 s (`parallel.preflight_timeout_s`)" in err
    assert "Traceback" not in err
    assert not run_dir.exists()


def test_ranks_that_cannot_talk_get_advice(place, env):
    port = free_port()
    words = ("--parallel.preflight_timeout_s", "3")
    bad = env | {"GLOO_SOCKET_IFNAME": "nosuch0"}
    ranks = [by_hand(bad, rank, place / "mute", port, *words) for rank in (0, 1)]
    for code, err in map(finish, ranks):
        assert code == 1, err
        assert "`GLOO_SOCKET_IFNAME` set to the interface" in err
        assert "firewall" in err
        assert "Traceback" not in err


def test_ranks_with_other_instruction_sets_are_refused_together(place, env):
    port = free_port()
    ranks = [
        by_hand(env | {"ATEN_CPU_CAPABILITY": kind}, rank, place / "mixed", port)
        for rank, kind in enumerate(("default", "avx2"))
    ]
    (first, said), (second, _) = map(finish, ranks)
    assert (first, second) == (2, 2), said
    assert "`ATEN_CPU_CAPABILITY` must be the same on all ranks, but is 'avx2' on rank 1" in said
