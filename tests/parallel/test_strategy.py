"""Strategies: which is chosen, what is refused, and their gradients over real ranks."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from boldcast.config.schema import ParallelConfig
from boldcast.errors import UsageRefused
from boldcast.launch.local import command
from boldcast.parallel.strategy import chosen, gradient_source, unwrap, wrap
from boldcast.parallel.world import World

WORKER = Path(__file__).with_name("strategy_worker.py")
TWO = World(rank=0, local_rank=0, world_size=2, local_world_size=2)


@pytest.mark.parametrize("asked", ["auto", "single", "ddp", "fsdp2"])
def test_one_rank_needs_no_wrapper(asked):
    model = nn.Linear(2, 1)
    assert chosen(ParallelConfig(strategy=asked), World()) == "single"
    assert unwrap(wrap(model, ParallelConfig(strategy=asked), World())) is model


def test_several_ranks_use_ddp_unless_told():
    assert chosen(ParallelConfig(), TWO) == "ddp"
    assert chosen(ParallelConfig(strategy="ddp"), TWO) == "ddp"
    assert chosen(ParallelConfig(strategy="fsdp2"), TWO) == "fsdp2"
    with pytest.raises(UsageRefused, match=r"`parallel.strategy` must be ddp, fsdp2 or auto"):
        wrap(nn.Linear(2, 1), ParallelConfig(strategy="single"), TWO)


def test_shared_statistics_need_cuda():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageRefused, match=r"`parallel.sync_bn` must be false on the CPU"):
        wrap(model, ParallelConfig(sync_bn=True), TWO)


@pytest.mark.parametrize("level", ["deterministic", "fast"])
def test_micro_batches_that_do_not_divide_are_refused_below_exact(level):
    model = nn.Linear(2, 1)
    with pytest.raises(UsageRefused, match="its 5 micro-batches do not divide among 2 ranks"):
        gradient_source(level, model, 5, TWO)


def result(n_ranks, *words):
    arguments = [str(WORKER), *map(str, words)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as logs:
        line = [sys.executable, *arguments]
        if n_ranks > 1:
            line = command(n_ranks, arguments, Path(logs))
        done = subprocess.run(
            line, env=env, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return next(json.loads(t[7:]) for t in done.stdout.splitlines() if t.startswith("RESULT "))


@pytest.fixture(scope="module")
def alone():
    """Every case on one rank, without a process group."""
    return result(1)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_fsdp2_has_the_bits_of_one_process_at_exact(alone, n_ranks):
    """Both layouts, with dropout and recomputed activations; 4 and 5 micro-batches."""
    found = result(n_ranks)
    for case, digest in alone["exact"].items():
        assert found["exact"][case] == digest, case


def test_torchs_own_sums_are_close_and_the_model_is_shared_out_as_asked(alone):
    found = result(2, "more")
    for strategy in ("ddp 4", "ddp static 2", "fsdp2 4"):
        mine = torch.tensor(found["deterministic"][strategy], dtype=torch.float64)
        # the same sum in another order
        expected = torch.tensor(alone["deterministic"][strategy[-1]], dtype=torch.float64)
        assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-6), strategy
    assert found["exempt"] == alone["exempt"]
    assert alone["exempt"] > 0
    assert found["refused"].startswith("`parallel.wrap_classes` must name a class")
    assert "Residual" in found["refused"]
    # a Mamba block's weights are freed between its uses, the remainder's when backward ends
    assert found["units"] == 3
