"""The gradient sum over real Gloo processes against the sequential definition."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from boldcast.launch.local import command

WORKER = Path(__file__).with_name("reduce_worker.py")
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13)
POWERS_OF_TWO = (1, 2, 4, 8)
N_ELEMENTS = 3 * 5 + 7 + 1 + 64 * 64


def _worker_module():
    spec = importlib.util.spec_from_file_location("reduce_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _defined(leaves):
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return _defined(leaves[:left]) + _defined(leaves[left:])


def _expected(n_micro):
    leaf_gradients = _worker_module().leaf_gradients
    leaves = [torch.cat([g.reshape(-1) for g in leaf_gradients(i)]) for i in range(n_micro)]
    total = _defined(leaves) / float(n_micro)
    return hashlib.sha256(total.numpy().tobytes()).hexdigest()


def _run(line, folder):
    words = [*line, str(folder), *map(str, COUNTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(path.read_text()) for path in folder.iterdir() if path.is_file()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 8])
def test_every_world_size_holds_the_bits_of_the_definition(world_size, tmp_path):
    results = _run(command(world_size, [str(WORKER)], tmp_path / "logs"), tmp_path)
    assert len(results) == world_size
    expected = {str(n): _expected(n) for n in COUNTS}
    ring = 2 * (world_size - 1) / world_size * N_ELEMENTS
    for digests, sent in results:
        assert digests == expected
        for n_micro in POWERS_OF_TWO:
            if n_micro >= world_size and world_size in POWERS_OF_TWO:
                assert sent[str(n_micro)] <= 1.1 * ring


def test_one_process_without_torchrun_has_the_same_bits(tmp_path):
    ((digests, sent),) = _run([sys.executable, str(WORKER)], tmp_path)
    assert digests == {str(n): _expected(n) for n in COUNTS}
    assert set(sent.values()) == {0}
