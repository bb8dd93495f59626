import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from boldcast.launch.local import command
from boldcast.parallel import drift
from boldcast.parallel.drift import digests, weights_digest

WORKER = Path(__file__).with_name("drift_worker.py")


def by_definition(tensor, odd):
    """The digest of one tensor in Python's own integers, modulo 2**64."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    size = tensor.element_size()
    words = [raw[i : i + size] for i in range(0, len(raw), size)]
    values = [int.from_bytes(word, "little", signed=True) for word in words]
    total = 0
    whole = len(values) // drift._BLOCK * drift._BLOCK
    for place, value in enumerate(values):
        block = 2 * (place // drift._BLOCK + 1) + 1 if place < whole else 1
        total += value * odd[place % drift._BLOCK] * block
    return total % 2**64


@pytest.mark.parametrize("n", [1, 7, 64, 65, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool])
def test_the_digest_is_its_definition(monkeypatch, n, dtype):
    monkeypatch.setattr(drift, "_BLOCK", 16)
    monkeypatch.setattr(drift, "_SLAB", 2)
    tensor = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    odd = drift._odd(16, torch.device("cpu")).tolist()
    assert all(number % 2 for number in odd)
    assert len(set(odd)) == 16
    assert digests([tensor]).item() % 2**64 == by_definition(tensor, odd)


def test_every_single_bit_counts(monkeypatch):
    monkeypatch.setattr(drift, "_BLOCK", 8)
    tensor = torch.randn(21, generator=torch.Generator().manual_seed(1))
    seen = {digests([tensor]).item()}
    for place in range(len(tensor)):
        for bit in range(32):
            other = tensor.clone()
            other.view(torch.int32)[place] ^= 1 << bit if bit < 31 else -(2**31)
            seen.add(digests([other]).item())
    assert len(seen) == 1 + 21 * 32


def test_places_count_and_layout_does_not():
    model, twin = nn.Linear(40, 30), nn.Linear(40, 30)
    twin.load_state_dict(model.state_dict())
    assert weights_digest(model) == weights_digest(twin)
    twin.weight.data = twin.weight.data.t().contiguous().t()  # the same values, other strides
    assert weights_digest(model) == weights_digest(twin)
    with torch.no_grad():
        twin.weight[[0, 1]] = twin.weight[[1, 0]]
    assert weights_digest(model) != weights_digest(twin)


def run_worker(n_ranks, *words):
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    line = command(n_ranks, [str(WORKER), *map(str, words)], words[0] / "logs")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [
        json.loads((words[0] / f"result_{rank}.json").read_text()) for rank in range(n_ranks)
    ]
    return [result["ended"] for result in results]


def test_a_flipped_bit_of_one_rank_is_named_before_a_checkpoint_is_written(tmp_path):
    """Step 3 flips it; nothing compares before the checkpoint of step 4."""
    first, second = run_worker(2, tmp_path, 1, 3, "weight", 100, 2)
    assert first == second
    kind, shared, message = first
    assert (kind, shared) == ("BoldcastError", True)
    assert "After step 4 rank 1 holds other bits than rank 0 in" in message
    assert "body.head.weight" in message
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000002"]


def test_of_three_ranks_the_odd_one_is_named_and_optimizer_state_counts(tmp_path):
    """Rank 0 drifts: the other two outvote it, although it writes the checkpoints."""
    ended = run_worker(3, tmp_path, 0, 3, "optimizer", 3, 100)
    assert ended[0] == ended[1] == ended[2]
    message = ended[0][2]
    assert (
        "After step 3 rank 0 holds other bits than rank 1 in body.head.weight/exp_avg." in message
    )
    assert not (tmp_path / "checkpoints").exists()
