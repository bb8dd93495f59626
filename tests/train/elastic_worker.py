"""A rank that continues a run to a given step, and tells what it loaded and where it came to."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import Dataset

from boldcast.config.schema import (
    Config,
    LogConfig,
    ModelConfig,
    NumericsConfig,
    OptimConfig,
    ParallelConfig,
    TrainConfig,
)
from boldcast.data.order import Order
from boldcast.errors import BoldcastError
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.world import World
from boldcast.train import shards
from boldcast.train.loader import MicroBatches, ValidationBatches, loader
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.seeding import tensors_digest
from boldcast.train.trainer import Trainer

CONFIG = Config(
    train=TrainConfig(steps=9, global_batch_size=6, micro_batch_size=1, checkpoint_every=2),
    optim=OptimConfig(lr=0.02, warmup_steps=2),
    model=ModelConfig(d_model=8, headdim=4, d_state=4, n_layer=2, skip="trained", dropout=0.1),
)


class Waves(Dataset):
    """Windows of a noisy wave; five for validation, an odd number for the ranks to share."""

    def __init__(self, n):
        generator = torch.Generator().manual_seed(n)
        time = torch.arange(n * 9).view(n, 9, 1) / 3
        self.values = torch.sin(time) + 0.1 * torch.randn(n, 9, 5, generator=generator)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index], torch.ones(9, dtype=torch.bool)


class Said(RunLog):
    """Keeps the lines."""

    def say(self, line):
        self.lines = [*getattr(self, "lines", []), line]


def digest(trainer):
    model, moments = trainer._whole_state()
    return tensors_digest({**model.state_dict(), **moments})


def run(world, run_dir, level, strategy, stop_at, fail_at):
    config = replace(
        CONFIG,
        numerics=NumericsConfig(level=level),
        parallel=ParallelConfig(strategy=strategy, wrap_classes=("Residual",)),
    )
    model = build_forecaster(
        config.model, n_regions=5, horizons=(1,), seed=0, device=torch.device("cpu")
    )
    log = Said(LogConfig(), run_dir, "waves", quiet=True, log_every=1)
    objective = Objective(8, (1,), torch.ones(5))
    trainer = Trainer(model, config, objective, world, run_dir, log)
    stop_after(trainer, stop_at)
    result = {"rank": world.rank, "resumed": trainer.resume(), "loaded": digest(trainer)}
    batches = MicroBatches(
        Order(40, 7), trainer.global_step.gradient.leaves, n_micro=6, micro_batch_size=1
    )
    held_out = ValidationBatches(5, 1, world, "sharded")
    if fail_at is not None and world.rank == world.world_size - 1:
        fail_on_this_rank(trainer, fail_at)
    try:
        outcome = trainer.fit(
            loader(Waves(40), batches),
            sampler=batches,
            val_loader=loader(Waves(5), held_out),
            val_every=3,
        )
        result |= {"status": outcome.status, "ended": digest(trainer)}
    except BoldcastError as error:
        result |= {"status": "failed", "cause": str(error)}
    local = [p.to_local() if hasattr(p, "to_local") else p for p in trainer.model.parameters()]
    return result | {
        "step": trainer.state.step,
        "held": sum(p.numel() for p in local),
        "val_loss": trainer.state.history["val_loss"],
        "resumed_from": trainer.resumed_from,
        "place": trainer.place,
        "said": getattr(log, "lines", []),
    }


def stop_after(trainer, n_steps):
    """Let a stop be asked for in step ``n_steps``, unless it is the run's last."""
    original = trainer.global_step.take

    def take(batches, step, stop, sampler):
        asked = step + 1 == n_steps < trainer.config.train.steps
        return original(batches, step, stop or asked, sampler)

    trainer.global_step.take = take


def fail_on_this_rank(trainer, step):
    original = shards.ShardWriter.write_data

    def refuse(self, plan, planner):
        if trainer.state.step >= step:
            raise OSError(28, "No space left on device")
        return original(self, plan, planner)

    shards.ShardWriter.write_data = refuse


def main(run_dir, level, strategy, stop_at, fail_at=None):
    torch.set_num_threads(1)
    world = World.from_env()
    with world.process_group(torch.device("cpu"), 60):
        fail = None if fail_at is None else int(fail_at)
        result = run(world, Path(run_dir), level, strategy, int(stop_at), fail)
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
