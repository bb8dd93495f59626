"""The bits of a run through interruptions, changes of world size and of loader workers.

Five factors: ranks before (1 to 4), loader workers before (0, 2), the interruption (SIGKILL of a
rank, SIGTERM), ranks after (1 to 4, another number) and workers after. Each run below is
interrupted three times. Together they hold every change of world size once, and every pair of
levels of any two factors at least once (tested here); every world size also trains to the end.
Uninterrupted runs on 1 to 3 ranks are in `test_runs.py`.
"""

import importlib.util
import itertools
import random
from pathlib import Path

import pytest

KILL, STOP = "SIGKILL of a rank", "SIGTERM"

# (ranks, workers), what ends it, (ranks, workers), ...
MATRIX = {
    "a": [(1, 0), KILL, (2, 0), STOP, (1, 2), STOP, (3, 2)],
    "b": [(3, 2), KILL, (1, 0), KILL, (4, 2), STOP, (2, 2)],
    "c": [(2, 2), STOP, (3, 0), KILL, (2, 0), KILL, (4, 0)],
    "d": [(4, 0), KILL, (3, 2), STOP, (4, 2), STOP, (1, 0)],
    "e": [(4, 2)],
}


def _soak():
    spec = importlib.util.spec_from_file_location("soak", Path(__file__).with_name("soak.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


soak = _soak()


def _transitions():
    for chain in MATRIX.values():
        for index in range(0, len(chain) - 2, 2):
            before, kind, after = chain[index : index + 3]
            yield *before, kind, *after


def test_the_matrix_holds_every_pair_of_levels():
    levels = [(1, 2, 3, 4), (0, 2), (KILL, STOP), (1, 2, 3, 4), (0, 2)]
    rows = list(_transitions())
    for one, other in itertools.combinations(range(5), 2):
        wanted = set(itertools.product(levels[one], levels[other]))
        if (one, other) == (0, 3):
            wanted -= {(n, n) for n in range(1, 5)}
        assert wanted <= {(row[one], row[other]) for row in rows}, (one, other)
    assert {chain[-1][0] for chain in MATRIX.values()} == {1, 2, 3, 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return soak.Runs(tmp_path_factory.mktemp("exact runs"))


@pytest.fixture(scope="module")
def undisturbed(runs):
    assert runs.end_of(runs.start("undisturbed", 1, 0), "undisturbed") == 0, runs.log("undisturbed")
    return soak.bits(runs.place / "undisturbed")


@pytest.mark.parametrize("name", MATRIX)
def test_nothing_on_the_way_changes_a_bit(runs, undisturbed, name):
    run_dir, rng = runs.place / name, random.Random(name)
    for (n_ranks, n_workers), kind in zip(MATRIX[name][:-1:2], MATRIX[name][1::2], strict=True):
        before = soak.newest(run_dir)
        process = runs.start(name, n_ranks, n_workers)
        soak.until(lambda p=process, n=before: p.poll() is not None or soak.newest(run_dir) > n)
        assert soak.interrupt(process, kind, run_dir, rng), runs.log(name)
        code = runs.end_of(process, name)
        alone = -9 if n_ranks == 1 else 1
        assert code == (75 if kind == STOP else alone), runs.log(name)
    assert runs.end_of(runs.start(name, *MATRIX[name][-1]), name) == 0, runs.log(name)
    assert soak.bits(run_dir) == undisturbed
    attempts = soak.manifest(run_dir)["attempts"]
    assert [a["world_size"] for a in attempts] == [n_ranks for n_ranks, _ in MATRIX[name][::2]]
    assert all(attempt["first_step"] > 0 for attempt in attempts[1:])
