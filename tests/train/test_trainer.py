"""The loop itself: the seed's form over real ranks, and its guards in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from boldcast.config.schema import (
    Config,
    LogConfig,
    ModelConfig,
    NumericsConfig,
    OptimConfig,
    TrainConfig,
)
from boldcast.errors import Diverged
from boldcast.launch.local import command
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.strategy import unwrap
from boldcast.parallel.world import World
from boldcast.record.trace import read_trace
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.trainer import Trainer

WORKER = Path(__file__).with_name("seed_form_worker.py")


def run_worker(n_ranks, run_dir, level):
    arguments = [str(WORKER), str(run_dir), level]
    line = (
        command(n_ranks, arguments, run_dir / "logs")
        if n_ranks > 1
        else [sys.executable, *arguments]
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [text[7:] for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    return sorted((json.loads(line) for line in lines), key=lambda result: result["rank"])


@pytest.mark.parametrize("level", ["exact", "deterministic"])
def test_torchs_sampler_on_two_ranks(tmp_path, level):
    first, second = run_worker(2, tmp_path, level)
    assert first["status"] == second["status"] == "completed"
    # 6 steps of 2 micro-batches a rank are two cycles of 6 windows: one call before each
    assert first["epochs"] == second["epochs"] == [0, 1]
    for cycle in (slice(0, 6), slice(6, 12)):
        assert sorted(first["asked"][cycle] + second["asked"][cycle]) == list(range(12))
    assert first["asked"][:6] != first["asked"][6:12]
    assert first["weights"] == second["weights"]
    assert first["val_steps"] == [0, 3, 6]
    assert first["val_loss"] == second["val_loss"]
    assert first["val_loss"][-1] < first["val_loss"][0]
    assert first["training"]
    # rank 0 alone writes: six whole, chained lines
    assert [line["step"] for line in read_trace(tmp_path / "trace.jsonl")] == [1, 2, 3, 4, 5, 6]


def trainer_for(model, run_dir, steps=3, **numerics):
    config = Config(
        train=TrainConfig(steps=steps, global_batch_size=4, micro_batch_size=2),
        numerics=NumericsConfig(**numerics),
        optim=OptimConfig(lr=0.05, warmup_steps=0),
    )
    log = RunLog(LogConfig(), run_dir, "test", quiet=True, log_every=1)
    return Trainer(model, config, Objective(8, (1,), torch.ones(4)), World(), run_dir, log)


def small_model(horizons=(1,)):
    return build_forecaster(
        ModelConfig(d_model=8, headdim=4, d_state=4, n_layer=1, skip="trained"),
        n_regions=4,
        horizons=horizons,
        seed=0,
    )


def batches(n=4, poison=None):
    generator = torch.Generator().manual_seed(3)
    made = []
    for index in range(n):
        span = torch.randn(2, 9, 4, generator=generator)
        if index == poison:
            span[0, 3, 1] = float("nan")
        made.append((span, torch.ones(2, 9, dtype=torch.bool)))
    return made


def test_one_step_is_that_of_one_big_batch(tmp_path):  # FunASR#3472
    """Micro-batches, weights and divisor together must give the plain mean-loss gradient."""
    model = small_model()
    twin = small_model()
    trainer = trainer_for(model, tmp_path, steps=1)
    trainer.global_step.accumulate(iter(batches()), step=0)
    whole = torch.cat([span for span, _ in batches()[:2]])
    loss = nn.functional.mse_loss(twin(whole[:, :8]).squeeze(-1), whole[:, 1:])
    loss.backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("level", ["exact", "deterministic"])
def test_a_nan_is_judged_before_the_optimizer_moves(tmp_path, level):
    model = small_model()
    trainer = trainer_for(model, tmp_path, steps=3, level=level)
    seen = []
    original = trainer.optimizer.step

    def step(*args, **kwargs):
        seen.append([p.detach().clone() for p in model.parameters()])
        return original(*args, **kwargs)

    trainer.optimizer.step = step
    with pytest.raises(Diverged, match=r"step 2 .*micro-batch 1 on rank 0.*nan"):
        trainer.fit(batches(poison=3))
    assert len(seen) == 1
    assert trainer.state.step == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert len(read_trace(tmp_path / "trace.jsonl")) == 1


def test_a_gradient_that_overflows_is_judged_too(tmp_path):
    model = small_model()
    trainer = trainer_for(model, tmp_path)
    model.body.head.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(Diverged, match="gradient of step 1 is not finite"):
        trainer.fit(batches())


def test_the_horizon_guard_looks_through_wrappers(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    trainer = trainer_for(small_model(horizons=(2,)), tmp_path)
    trainer.model = Wrapper(Wrapper(trainer.model))
    with pytest.raises(ValueError, match="horizon"):
        trainer.fit(batches())
    assert unwrap(trainer.model).horizons == (2,)


def test_one_rank_needs_no_process_group_and_no_validation(tmp_path):
    outcome = trainer_for(small_model(), tmp_path).fit(batches())
    assert outcome.status == "completed"
    assert outcome.state.history["step"] == []


def test_the_trace_holds_what_the_step_computed(tmp_path):
    model = small_model()
    trainer = trainer_for(model, tmp_path, steps=1)
    trainer.fit(batches())
    twin = small_model()
    whole = torch.cat([span for span, _ in batches()[:2]])
    loss = nn.functional.mse_loss(twin(whole[:, :8]).squeeze(-1), whole[:, 1:])
    loss.backward()
    norm = torch.cat([p.grad.reshape(-1) for p in twin.parameters()]).norm()
    line = read_trace(tmp_path / "trace.jsonl")[0]
    assert float.fromhex(line["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert float.fromhex(line["grad_norm"]) == pytest.approx(norm.item(), rel=1e-4)
    assert float.fromhex(line["lr"]) == 0.05


@pytest.mark.parametrize(
    ("level", "name", "before", "same_bits"),
    [
        ("exact", "world_size", 4, True),
        ("exact", "strategy", "fsdp2", True),
        ("exact", "device", "cuda", False),
        ("exact", "processor", "another processor", False),
        ("exact", "kernels", "other kernels", False),
        ("exact", "torch", "1.0", False),
        ("exact", "torch", None, False),  # a record that does not say
        ("deterministic", "world_size", 4, False),
        ("deterministic", "torch", "1.0", False),
        ("deterministic", None, None, True),
    ],
)
def test_same_bits_are_promised_only_where_they_can_be(tmp_path, level, name, before, same_bits):
    """The checkpoint says that it was written elsewhere."""
    first = trainer_for(small_model(), tmp_path, steps=1, level=level)
    if name is not None:
        elsewhere = first.checkpoints._written_by
        elsewhere[name] = before
        if before is None:
            del elsewhere[name]
    first.fit(batches())
    second = trainer_for(small_model(), tmp_path, steps=1, level=level)
    said = []
    second.log.say = said.append
    assert second.resume()
    assert second.resumed_from["same_bits"] is same_bits
    notes = [line for line in said if line.startswith("note:")]
    assert bool(notes) is not same_bits
    if name in second.place and not same_bits and name not in ("world_size", "strategy"):
        assert f"{name} {before or 'not recorded'}" in notes[0]
        assert f"{name} {second.place[name]}" in notes[0]


def test_the_place_says_what_decides_the_bits(tmp_path):
    assert trainer_for(small_model(), tmp_path).place == {
        "world_size": 1,
        "strategy": "single",
        "device": "cpu",
        "processor": torch.backends.cpu.get_cpu_capability(),
        "kernels": "boldcast",
        "torch": torch.__version__,
    }
