"""A rank that takes a few steps with every strategy, and rank 0 prints what came of them."""

import hashlib
import json
import sys

import torch

from boldcast.config.schema import ModelConfig, OptimConfig, ParallelConfig
from boldcast.errors import UsageRefused
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.fsdp import gathered, whole_tensors
from boldcast.parallel.strategy import gradient_source, unwrap, wrap
from boldcast.parallel.world import World
from boldcast.train.optim import build_optimizer

CASES = {  # layout, micro-batches, recomputed activations
    "frame 4": ("frame", 4, False),
    "frame 5": ("frame", 5, False),
    "region 5": ("region", 5, False),
    "region 4 recomputed": ("region", 4, True),
    "frame 5 recomputed": ("frame", 5, True),
}


def build(layout, recomputed=False):
    neighbours = None
    if layout == "region":
        neighbours = (torch.arange(7)[:, None] + torch.arange(3)) % 7
    settings = ModelConfig(
        layout=layout,
        d_model=16,
        headdim=8,
        d_state=8,
        n_layer=2,
        skip="trained",
        dropout=0.1,
        spatial_k=3,
        activation_checkpointing=recomputed,
    )
    return build_forecaster(
        settings,
        n_regions=7,
        horizons=(1, 2),
        neighbours=neighbours,
        seed=0,
        device=torch.device("cpu"),
    )


def train(world, level, parallel, layout, n_micro, recomputed=False):
    """Take three steps, with forward passes between them that differ in number between ranks."""
    model = wrap(build(layout, recomputed), parallel, world)
    optimizer = build_optimizer(unwrap(model), OptimConfig(lr=0.01))
    gradient = gradient_source(level, model, n_micro, world)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 12, 7, generator=generator) for _ in range(n_micro)]
    if layout == "region":
        inputs = [x.unsqueeze(-1) for x in inputs]
    for step in range(3):
        for leaf in gradient.leaves:
            torch.manual_seed(100 * step + leaf)
            with gradient.around(leaf):
                (model(inputs[leaf]) - 1.5).square().sum().backward()
            gradient.add(leaf)
        gradient.finish(torch.tensor(3.7, dtype=torch.float64))
        norm = gradient.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with gathered(model), torch.no_grad():
            for _ in range(world.rank):
                unwrap(model)(inputs[0])
        model.train()
    tensors = whole_tensors(unwrap(model).state_dict())
    exempt = len(optimizer.param_groups[1]["params"])
    return [*tensors.values(), norm.double().view(1)], exempt, model


def digest(tensors):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def sums(tensors):
    return [t.double().sum().item() for t in tensors]


def more(world, found):
    for name, parallel, n_micro in (
        ("ddp 4", ParallelConfig(strategy="ddp"), 4),
        ("ddp static 2", ParallelConfig(strategy="ddp", static_graph=True), 2),
        ("fsdp2 4", ParallelConfig(strategy="fsdp2"), 4),
    ):
        tensors, _, model = train(world, "deterministic", parallel, "frame", n_micro)
        found["deterministic"][name] = sums(tensors)
    found["units"] = sum("FSDP" in type(m).__name__ for m in model.modules())
    try:
        wrap(build("frame"), ParallelConfig(strategy="fsdp2", wrap_classes=("Block",)), world)
    except UsageRefused as error:
        found["refused"] = str(error)


def main(*words):
    torch.set_num_threads(1)
    world = World.from_env()
    found = {"exact": {}, "deterministic": {}}
    with world.process_group(torch.device("cpu"), 60):
        fsdp2 = ParallelConfig(strategy="fsdp2")
        cases = CASES if not words else {"frame 4": CASES["frame 4"]}
        for name, case in cases.items():
            tensors, exempt, _ = train(world, "exact", fsdp2, *case)
            found["exact"][name] = digest(tensors)
            if name == "frame 4":
                found["exempt"] = exempt
        if world.world_size == 1:
            for n_micro in (2, 4):
                found["deterministic"][str(n_micro)] = sums(
                    train(world, "deterministic", ParallelConfig(), "frame", n_micro)[0]
                )
        if words:
            more(world, found)
    if world.is_rank_zero:
        sys.stdout.write(f"RESULT {json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
