"""A rank that trains through `Trainer.fit` in the seed's own form, with torch's sampler."""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from boldcast.config.schema import Config, LogConfig, ModelConfig, NumericsConfig, TrainConfig
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.world import World
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.seeding import tensors_digest
from boldcast.train.trainer import Trainer


class Waves(Dataset):
    """Twelve windows of a noisy wave; remembers which were asked for."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        time = torch.arange(12 * 9).view(12, 9, 1) / 3
        self.values = torch.sin(time) + 0.1 * torch.randn(12, 9, 4, generator=generator)
        self.asked = []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.asked.append(index)
        return self.values[index], torch.ones(9, dtype=torch.bool)


class Spy(DistributedSampler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)
        super().set_epoch(epoch)


def main(run_dir, level):
    config = Config(
        train=TrainConfig(steps=6, global_batch_size=4, micro_batch_size=1),
        numerics=NumericsConfig(level=level),
    )
    world = World.from_env()
    device = torch.device("cpu")
    torch.set_num_threads(1)
    with world.process_group(device, 60):
        windows = Waves()
        sampler = Spy(windows, num_replicas=world.world_size, rank=world.rank)
        model = build_forecaster(
            ModelConfig(d_model=8, headdim=4, d_state=4, n_layer=1),
            n_regions=4,
            horizons=(1,),
            seed=0,
            device=device,
        )
        log = RunLog(LogConfig(), run_dir, "waves", quiet=True, log_every=1)
        objective = Objective(8, (1,), torch.ones(4))
        trainer = Trainer(model, config, objective, world, run_dir, log)
        held_out = DataLoader(Waves(), batch_size=4)
        outcome = trainer.fit(
            DataLoader(windows, batch_size=1, sampler=sampler),
            sampler=sampler,
            val_loader=held_out,
            val_every=3,
        )
    result = {
        "rank": world.rank,
        "status": outcome.status,
        "epochs": sampler.epochs,
        "asked": windows.asked,
        "val_steps": outcome.state.history["step"],
        "val_loss": outcome.state.history["val_loss"],
        "weights": tensors_digest(model.state_dict()),
        "training": trainer.model.training,
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
