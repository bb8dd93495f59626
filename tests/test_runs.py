"""Whole runs through the command line, as a user starts them: real processes, files and signals."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from boldcast.record.events import read_events
from boldcast.record.trace import read_trace
from boldcast.record.verify import verify
from boldcast.train.kept import find_damage

ROOT = Path(__file__).parents[1]
TINY = ROOT / "run" / "tiny.toml"
COMMAND = [sys.executable, "-m", "boldcast"]


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with a space in its name, for runs and packed stores."""
    return tmp_path_factory.mktemp("my runs")


@pytest.fixture(scope="session")
def env(place):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOLDCAST", "OMP", "MKL"))}
    return kept | {"BOLDCAST_CACHE": str(place / "cache"), "BOLDCAST_RUNS": str(place / "runs")}


def start(env, *words, config=TINY, **options):
    return subprocess.Popen(
        [*COMMAND, "train", str(config), *map(str, words)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def train(env, *words, **options):
    return finish(start(env, *words, **options))


def bits(run_dir):
    """What must be equal between two runs of one configuration, however they came about."""
    results = orjson.loads((run_dir / "manifest.json").read_bytes())["results"]
    weights = hashlib.sha256((run_dir / "model.safetensors").read_bytes()).hexdigest()
    return (
        weights,
        results["weights"],
        results["optimizer"],
        results["trace"],
        results["digests"]["history.json"],
        results["digests"]["evaluation.json"],
    )


@pytest.fixture(scope="session")
def undisturbed(place, env):
    run_dir = place / "undisturbed"
    code, out, err = train(env, "--run_dir", run_dir, "--nproc", 1)
    assert code == 0, err
    assert str(run_dir / "report.html") in out
    return run_dir


def test_a_finished_run_is_whole_and_sealed(undisturbed):
    names = {p.name for p in undisturbed.iterdir() if not p.name.startswith(".")}
    assert names == {
        "manifest.json",
        "config.toml",
        "events.jsonl",
        "trace.jsonl",
        "checkpoints",
        "model.safetensors",
        "history.json",
        "evaluation.json",
        "report.html",
    }
    findings = verify(undisturbed)
    assert all(finding.ok for finding in findings), findings
    assert len(read_trace(undisturbed / "trace.jsonl")) == 24
    weights = load_file(undisturbed / "model.safetensors")
    assert not [name for name in weights if name.startswith("module.")]
    results = orjson.loads((undisturbed / "manifest.json").read_bytes())["results"]
    assert results["status"] == "completed"


def test_the_record_holds_no_time_and_no_name_of_this_machine(undisturbed):
    manifest = orjson.loads((undisturbed / "manifest.json").read_bytes())
    manifest["requested"].pop("argv")  # as received, with the folder that was typed
    text = orjson.dumps(manifest).decode()
    for secret in (os.uname().nodename, str(undisturbed), str(ROOT)):
        assert secret not in text
    started = read_events(undisturbed / "events.jsonl")[0]["time"][:10]
    assert started not in text


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_the_number_of_ranks_changes_no_bit(undisturbed, place, env, n_ranks):
    run_dir = place / f"ranks {n_ranks}"
    code, _, err = train(env, "--run_dir", run_dir, "--nproc", n_ranks, "--data.num_workers", "2")
    # num_workers is another setting, hence another record, but the bits are the same
    assert code == 0, err
    assert bits(run_dir)[:4] == bits(undisturbed)[:4]


def test_torchrun_by_hand_is_the_same_run(undisturbed, place, env):
    run_dir = place / "by hand"
    line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    done = subprocess.run(
        [sys.executable, *line, "boldcast", "train", str(TINY), f"--run_dir={run_dir}"],
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert bits(run_dir) == bits(undisturbed)
    assert done.stdout.count("report.html") == 1
    again = subprocess.run(
        [sys.executable, *line, "boldcast", "train", str(TINY), f"--run_dir={run_dir}"],
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (again.returncode, again.stderr.count("already complete")) == (0, 1), again.stderr
    assert again.stdout == done.stdout


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_sigkill_at_random_moments_ends_in_the_same_bits(undisturbed, place, env, n_ranks):
    run_dir = place / f"killed {n_ranks}"
    words = ("--run_dir", run_dir, "--nproc", n_ranks)
    kills = 0
    moment = random.Random(os.getpid())
    while kills < 3:
        process = start(env, *words)
        wanted = moment.choice([0, 3, 9, 15, 21])
        until(lambda at=wanted, p=process: steps_done(run_dir) >= at or p.poll() is not None)
        time.sleep(moment.random() / 2)
        kills += process.poll() is None
        process.kill()
        code, _, err = finish(process)
        if code == 0:
            break
        assert code == -signal.SIGKILL, err
    code, _, err = train(env, *words)
    assert code == 0, err
    assert bits(run_dir) == bits(undisturbed)
    assert kills >= 1


def test_one_killed_rank_brings_the_run_down_and_it_continues(undisturbed, place, env):
    run_dir = place / "one rank killed"
    process = start(env, "--run_dir", run_dir, "--nproc", 2)
    until(lambda: steps_done(run_dir) >= 6)
    victim = [pid for pid in ranks_of(run_dir) if pid != process.pid][-1]
    os.kill(victim, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1, err
    assert train(env, "--run_dir", run_dir, "--nproc", 3)[0] == 0
    assert bits(run_dir) == bits(undisturbed)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_stop_request_saves_exits_75_and_goes_on_elsewhere(undisturbed, place, env, n_ranks):
    run_dir = place / f"stopped {n_ranks}"
    process = start(env, "--run_dir", run_dir, "--nproc", n_ranks)
    until(lambda: steps_done(run_dir) >= 2)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 75, err
    assert "same command continues" in err
    manifest = orjson.loads((run_dir / "manifest.json").read_bytes())
    assert manifest["results"]["status"] == "stopped"
    assert manifest["results"]["first_cause"] == "SIGTERM"
    assert all(finding.ok for finding in verify(run_dir))
    code, _, err = train(env, "--run_dir", run_dir, "--nproc", 3 - n_ranks)
    assert code == 0, err
    assert bits(run_dir) == bits(undisturbed)
    ends = orjson.loads((run_dir / "manifest.json").read_bytes())["attempts"]
    assert [a["end"] for a in ends] == ["stopped", "completed"]
    assert [a["world_size"] for a in ends] == [n_ranks, 3 - n_ranks]


def test_a_finished_run_answers_and_another_configuration_is_refused(undisturbed, env):
    before = bits(undisturbed)
    code, out, err = train(env, "--run_dir", undisturbed)
    assert (code, "already complete" in err) == (0, True)
    assert "report.html" in out
    code, _, err = train(env, "--run_dir", undisturbed, "--seed", 1)
    assert code == 2
    assert "holds another one" in err
    assert bits(undisturbed) == before


def test_a_folder_with_other_files_is_refused(place, env):
    folder = place / "photos"
    folder.mkdir()
    (folder / "cat.jpg").touch()
    code, _, err = train(env, "--run_dir", folder)
    assert code == 2
    assert "cat.jpg" in err
    assert [p.name for p in folder.iterdir()] == ["cat.jpg"]


def test_two_runs_in_one_folder_are_one_too_many(undisturbed, place, env):
    run_dir = place / "contended"
    first = start(env, "--run_dir", run_dir)
    until(lambda: (run_dir / "config.toml").exists())
    first.send_signal(signal.SIGSTOP)
    code, _, err = train(env, "--run_dir", run_dir)
    assert code == 2, err
    assert "another process is training" in err
    first.send_signal(signal.SIGCONT)
    assert finish(first)[0] == 0
    assert bits(run_dir) == bits(undisturbed)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_divergence_exits_7_with_a_good_checkpoint(place, env, n_ranks):
    run_dir = place / f"diverged {n_ranks}"
    hot = (
        *("--optim.lr", "1e20", "--optim.clip_norm", "0", "--optim.warmup_steps", "0"),
        *("--train.checkpoint_every", "1"),
    )
    code, _, err = train(env, "--run_dir", run_dir, "--nproc", n_ranks, *hot)
    assert code == 7, err
    assert "is not finite" in err
    assert "Traceback" not in err
    manifest = orjson.loads((run_dir / "manifest.json").read_bytes())
    assert manifest["results"]["status"] == "diverged"
    assert all(finding.ok for finding in verify(run_dir))
    checkpoints = list(run_dir.glob("checkpoints/step_*"))
    assert checkpoints
    for path in checkpoints:
        assert find_damage(path) is None
        weights = load_file(path / "model.safetensors")
        assert all(np.isfinite(tensor).all() for tensor in weights.values())


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_missed_bar_is_complete_sealed_and_exits_4(place, env, n_ranks):
    run_dir = place / f"missed {n_ranks}"
    bars = ("--validation.heldout_decreased_by", "0.9", "--validation.baseline_ratio", "0.1")
    code, out, err = train(env, "--run_dir", run_dir, "--nproc", n_ranks, *bars)
    assert code == 4, err
    assert "misses the limit" in err
    assert "report.html" in out
    results = orjson.loads((run_dir / "manifest.json").read_bytes())["results"]
    assert results["status"] == "completed"
    assert len(results["scores"]["missed"]) == 2
    assert all(finding.ok for finding in verify(run_dir))
    code, _, err = train(env, "--run_dir", run_dir, "--nproc", n_ranks, *bars)
    assert (code, "already complete" in err) == (0, True)
    assert all(sentence in err for sentence in results["scores"]["missed"])


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_nan_in_the_data_is_refused_with_its_place(place, env, n_ranks):
    folder = place / f"nan {n_ranks}"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["path\tsubject\tt_r\tsplit"]
    for subject, split in (("a", "train"), ("b", "train"), ("c", "held_out")):
        series = rng.standard_normal((60, 5)).cumsum(0)
        if subject == "b":
            series[41, 3] = np.nan
        np.save(folder / f"{subject}.npy", series)
        lines.append(f"{subject}.npy\t{subject}\t0.72\t{split}")
    (folder / "scans.tsv").write_text("\n".join(lines) + "\n")
    run_dir = folder / "run"
    source = ("--data.source", folder / "scans.tsv", "--run_dir", run_dir, "--nproc", n_ranks)
    code, _, err = train(env, *source)
    assert code == 3, err
    assert "b.npy" in err
    assert "41" in err
    assert "3" in err.split("b.npy")[1]
    assert "Traceback" not in err
    assert not run_dir.exists()


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_cache_below_a_file_is_refused_in_words(place, env, n_ranks):
    (place / "file").touch()
    run_dir = place / "no cache"
    bad = env | {"BOLDCAST_CACHE": str(place / "file" / "cache")}
    code, _, err = train(bad, "--run_dir", run_dir, "--nproc", n_ranks)
    assert code == 1, err
    assert "cannot be used: Not a directory" in err
    assert "Traceback" not in err
    assert not run_dir.exists()


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_half_precision_on_the_cpu_that_auto_finds_is_refused(place, env, n_ranks):
    blind = env | {"CUDA_VISIBLE_DEVICES": ""}
    half = ("--train.dtype", "bfloat16", "--train.device", "auto", "--nproc", n_ranks)
    code, _, err = train(blind, "--run_dir", place / "half", *half)
    assert code == 2, err
    assert err.count('`train.dtype` must be "float32" on the CPU') == 1
    assert not (place / "half").exists()


def test_a_run_is_not_continued_on_other_data(place, env):
    folder = place / "changing data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["path\tsubject\tt_r\tsplit"]
    for subject, split in (("a", "train"), ("b", "train"), ("c", "held_out")):
        np.save(folder / f"{subject}.npy", rng.standard_normal((60, 5)).cumsum(0))
        lines.append(f"{subject}.npy\t{subject}\t0.72\t{split}")
    (folder / "scans.tsv").write_text("\n".join(lines) + "\n")
    words = ("--data.source", folder / "scans.tsv", "--run_dir", folder / "run", "--nproc", 1)
    process = start(env, *words)
    until(lambda: steps_done(folder / "run") >= 6)
    process.kill()
    finish(process)
    series = np.load(folder / "a.npy")
    np.save(folder / "a.npy", series + np.eye(60, 5))
    settings = (folder / "run" / "config.toml").read_bytes()
    code, _, err = train(env, *words, "--log.tensorboard", "true")
    assert code == 3, err
    assert "began with" in err
    assert (folder / "run" / "config.toml").read_bytes() == settings


def test_tensorboard_and_wandb_log_offline_when_asked(place, env):
    run_dir = place / "logged"
    loggers = ("--log.tensorboard", "true", "--log.wandb", "true")
    code, _, err = train(env, "--run_dir", run_dir, *loggers)
    assert code == 0, err
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))
    assert list((run_dir / "wandb").glob("offline-run-*"))
    assert all(finding.ok for finding in verify(run_dir))


def until(condition, patience_s=120.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def steps_done(run_dir):
    """Return the step of the newest checkpoint."""
    names = [p.name for p in (run_dir / "checkpoints").glob("step_????????")]
    return max((int(name[5:]) for name in names), default=0)


def ranks_of(run_dir):
    """Return the processes whose command line names ``run_dir``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(run_dir).encode() in words and b"torch.distributed.run" not in words:
            found.append(int(path.parent.name))
    return sorted(found)
