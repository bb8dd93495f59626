"""Ranks with uneven shares of the held-out windows, asked to stop in the middle of a validation.

Arguments: run folder, steps after which the stop comes (or -1), and the windows validated then.
Each rank writes down how it ended; the second start of the same folder continues.
"""

import json
import sys
from pathlib import Path

import torch

from boldcast.config.schema import Config, LogConfig, ModelConfig, OptimConfig, TrainConfig
from boldcast.launch.outcome import end_rank
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.world import World
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.seeding import tensors_digest
from boldcast.train.stop import StopRequest
from boldcast.train.trainer import Trainer


class Held:
    """This rank's held-out windows; asks for the stop when the last rank has seen some."""

    def __init__(self, spans, ask):
        self.spans = spans
        self.ask = ask
        self.seen = 0

    def __len__(self):
        return len(self.spans)

    def __iter__(self):
        for index, span in enumerate(self.spans):
            self.ask(index)
            self.seen += 1
            yield span, torch.ones(1, 9, dtype=torch.bool)


def main(run_dir, stop_step, stop_index):
    run_dir.mkdir(exist_ok=True)
    world = World.from_env()
    torch.set_num_threads(1)
    with world.process_group(torch.device("cpu"), 30):
        config = Config(
            train=TrainConfig(steps=4, global_batch_size=2, micro_batch_size=1),
            optim=OptimConfig(warmup_steps=0, lr=0.01),
        )
        model = build_forecaster(
            ModelConfig(d_model=8, headdim=4, d_state=4, n_layer=1),
            n_regions=4,
            horizons=(1,),
            seed=0,
        )
        log = RunLog(LogConfig(), run_dir, "test", quiet=True, log_every=1)
        stop = StopRequest()
        objective = Objective(8, (1,), torch.ones(4))
        trainer = Trainer(model, config, objective, world, run_dir, log, stop)
        trainer.resume()

        def ask(index):
            here = trainer.state.step == stop_step and index == stop_index
            if here and world.rank == world.world_size - 1:
                stop.signal_name = "SIGTERM"

        spans = torch.randn(45, 1, 9, 4, generator=torch.Generator().manual_seed(7))
        # 12 on rank 0 and 33 on rank 1: one look at the requests against four
        mine = spans if world.world_size == 1 else spans[:12] if world.rank == 0 else spans[12:]
        held = Held(mine, ask)
        micro = torch.randn(2, 1, 9, 4, generator=torch.Generator().manual_seed(8))
        leaves = [(micro[i], torch.ones(1, 9, dtype=torch.bool)) for i in world.share(2)]
        outcome = trainer.fit(leaves, val_loader=held, val_every=2)
    result = {
        "rank": world.rank,
        "status": outcome.status,
        "step": outcome.state.step,
        "seen": held.seen,
        "history": outcome.state.history,
        "best": outcome.state.best_step,
        "weights": tensors_digest(model.state_dict()),
        "training": model.training,
    }
    (run_dir / f"result_{world.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    end_rank(0)
