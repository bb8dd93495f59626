"""A small training on the ranks of torchrun in which one bit flips on one rank.

Arguments: run folder, the rank and the step at which the bit flips, `weight` or `optimizer`,
`drift_check_every`, `checkpoint_every`. Each rank writes down how it ended.
"""

import json
import sys
from pathlib import Path

import torch

from boldcast.config.schema import (
    Config,
    LogConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    TrainConfig,
)
from boldcast.errors import BoldcastError
from boldcast.launch.outcome import end_rank
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.world import World
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.trainer import Trainer


def main(run_dir, victim, flip_step, what, drift_check_every, checkpoint_every):
    run_dir.mkdir(exist_ok=True)
    world = World.from_env()
    device = torch.device("cpu")
    with world.process_group(device, 60):
        config = Config(
            train=TrainConfig(
                steps=6, global_batch_size=3, micro_batch_size=1, checkpoint_every=checkpoint_every
            ),
            optim=OptimConfig(warmup_steps=0),
            parallel=ParallelConfig(drift_check_every=drift_check_every),
        )
        model = build_forecaster(
            ModelConfig(d_model=8, headdim=4, d_state=4, n_layer=1),
            n_regions=4,
            horizons=(1,),
            seed=0,
        )
        log = RunLog(LogConfig(), run_dir, "test", quiet=True, log_every=1)
        trainer = Trainer(model, config, Objective(8, (1,), torch.ones(4)), world, run_dir, log)
        step_of = trainer.optimizer.step

        def step(*args, **kwargs):
            step_of(*args, **kwargs)
            if world.rank == victim and trainer.state.step + 1 == flip_step:
                weight = model.body.head.weight
                target = weight if what == "weight" else trainer.optimizer.state[weight]["exp_avg"]
                target.detach().view(torch.int32).view(-1)[5] ^= 1

        trainer.optimizer.step = step
        generator = torch.Generator().manual_seed(world.rank)
        batches = [
            (torch.randn(1, 9, 4, generator=generator), torch.ones(1, 9, dtype=torch.bool))
            for _ in range(4)
        ]
        try:
            ended = trainer.fit(batches).status
        except BoldcastError as error:
            ended = [type(error).__name__, error.on_every_rank, str(error)]
    (run_dir / f"result_{world.rank}.json").write_text(
        json.dumps({"rank": world.rank, "ended": ended})
    )


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), int(words[1]), int(words[2]), words[3], int(words[4]), int(words[5]))
    end_rank(0)
