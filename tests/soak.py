"""Kill and stop runs at random moments, go on elsewhere, and compare the bits with a calm run's.

Run on purpose, not by pytest: `just soak 100`, or

    python tests/soak.py 100 --seed 7

A run is interrupted again and again, each time started with another number of ranks and loader
workers, until it is complete; then the next run begins, until there have been as many
interruptions as asked for. Interruptions are SIGKILL of the launching process, SIGKILL of one
rank, and SIGTERM, at a moment that is half the time anywhere between start and end and half the
time shortly after a checkpoint appears. The exit code is 0 if every run ended in the bits of one
undisturbed run on one rank.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import orjson

TINY = Path(__file__).parents[1] / "run" / "tiny.toml"
LONGER = ("--train.steps", "60", "--train.checkpoint_every", "3", "--validation.every", "20")
"""A run with enough checkpoints for several interruptions."""

KINDS = ("SIGKILL of the launcher", "SIGKILL of a rank", "SIGTERM")


class Runs:
    """Starts, interrupts and compares runs of one configuration below one folder.

    Parameters
    ----------
    place : Path
        Run folders, logs and the packed store.
    """

    def __init__(self, place):
        self.place = place
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOLDCAST", "OMP", "MKL"))}
        # torchrun leaves folders behind when it is killed
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        self.env = kept | {"BOLDCAST_CACHE": str(place / "cache"), "TMPDIR": str(place / "tmp")}

    def start(self, name, n_ranks, n_workers):
        """Start or continue the run ``name``."""
        run_dir = self.place / name
        words = ["train", str(TINY), "--run_dir", str(run_dir), "--nproc", str(n_ranks)]
        with (self.place / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "boldcast", *words, *LONGER]
                + ["--data.num_workers", str(n_workers)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end_of(self, process, name, timeout_s=300):
        """Wait until ``process`` and all its ranks are gone; return the exit code."""
        code = process.wait(timeout=timeout_s)
        until(lambda: not processes_of(self.place / name), timeout_s)
        return code

    def log(self, name):
        return (self.place / f"{name}.log").read_text(errors="replace")[-3000:]


def processes_of(run_dir):
    """Return the living processes whose command line names ``run_dir``, torchrun's own excluded."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run_dir).encode() in words and b"torch.distributed.run" not in words:
            found.append(int(path.parent.name))
    return sorted(found)


def ranks_of(process, run_dir):
    """Return the process ids of the ranks that ``process`` runs: its own if it is the only one."""
    below = [pid for pid in processes_of(run_dir) if pid != process.pid and is_rank(pid)]
    return below or [process.pid]


def is_rank(pid):
    """Tell whether torchrun started ``pid``; its loader workers have another parent."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return b"torch.distributed.run" in Path(f"/proc/{parent}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False


def interrupt(process, kind, run_dir, rng):
    """Send what ``kind`` says; tell whether there was anything left to send it to."""
    if process.poll() is not None:
        return False
    victim = process.pid
    if kind == "SIGKILL of a rank":
        victim = rng.choice(ranks_of(process, run_dir))
    number = signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL
    try:
        os.kill(victim, number)
    except ProcessLookupError:
        return False
    return True


def newest(run_dir):
    """Return the step of the newest checkpoint, 0 without one."""
    names = [p.name for p in (run_dir / "checkpoints").glob("step_????????")]
    return max((int(name[5:]) for name in names), default=0)


def until(condition, patience_s=120.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.005)


def manifest(run_dir):
    return orjson.loads((run_dir / "manifest.json").read_bytes())


def bits(run_dir):
    """What must be equal between two runs, however they came about."""
    results = manifest(run_dir)["results"]
    weights = hashlib.sha256((run_dir / "model.safetensors").read_bytes()).hexdigest()
    names = ("trace.jsonl", "history.json", "evaluation.json")
    files = {name: hashlib.sha256((run_dir / name).read_bytes()).hexdigest() for name in names}
    return {
        "weights": (weights, results["weights"]),
        "optimizer": results["optimizer"],
        "trace": results["trace"],
    } | files


def soak(n, seed, place, say=print):
    """Interrupt runs ``n`` times; return the figures."""
    rng = random.Random(seed)
    runs = Runs(place)
    began = time.monotonic()
    process = runs.start("undisturbed", 1, 0)
    if runs.end_of(process, "undisturbed"):
        raise SystemExit(runs.log("undisturbed"))
    takes_s = time.monotonic() - began
    wanted = bits(place / "undisturbed")
    kinds, figures = Counter(), Counter()
    unequal = []
    while kinds.total() < n:
        name = f"run {figures['runs']:03}"
        figures["runs"] += 1
        while True:
            n_ranks, n_workers = rng.choice((1, 2, 3, 4)), rng.choice((0, 2))
            before = newest(place / name)
            process = runs.start(name, n_ranks, n_workers)
            figures["starts"] += 1
            figures["resumes"] += before > 0
            kind = "to the end"
            if kinds.total() < n and wait_for_a_moment(process, place / name, rng, takes_s):
                kind = rng.choice(KINDS)
                kinds[kind] += interrupt(process, kind, place / name, rng)
            code = runs.end_of(process, name)
            say(f"{name}: {n_ranks} ranks, {n_workers} workers, from {before}, {kind}: {code}")
            if code == 0:
                break
            if kind == "to the end":
                raise SystemExit(runs.log(name))
        if bits(place / name) != wanted:
            unequal.append(name)
    return {
        "interruptions": dict(kinds),
        **figures,
        "seconds": round(time.monotonic() - began),
        "unequal": unequal,
        "final_bits_equal": not unequal,
    }


def wait_for_a_moment(process, run_dir, rng, takes_s):
    """Wait for a random moment; tell whether ``process`` is still there."""
    if rng.random() < 0.5:
        began = newest(run_dir)
        until(lambda: process.poll() is not None or newest(run_dir) > began, 300)
        delay = rng.uniform(0.0, 0.3)
    else:
        delay = rng.uniform(0.0, 0.9 * takes_s)
    deadline = time.monotonic() + delay
    until(lambda: process.poll() is not None or time.monotonic() > deadline, 300)
    return process.poll() is None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="?", type=int, default=100, help="interruptions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the figures as JSON to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="boldcast-soak-") as folder:
        figures = soak(arguments.n, arguments.seed, Path(folder))
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n")
    sys.exit(0 if figures["final_bits_equal"] else 1)


if __name__ == "__main__":
    main()
