"""Step time of the level `exact` against DDP's all-reduce and against torch's bare loop.

Run on purpose, not by pytest: `just bench-exact`, or

    python tests/parallel/bench_reduce.py --world_sizes 1,2,4 --sizes small,medium --rounds 30

All variants are in the same processes and take one step per round, in an order that rotates by one
from round to round, so that whatever else the machine does meets them alike. A step is zero_grad,
forward and backward of every micro-batch, the sum over ranks, clipping and AdamW. `bare` is the
loop a user would write with DDP and `no_sync`; it is there twice, and the ratio of the two is the
noise floor. `exact, sent late` sends no bucket before backward has ended. A step's time is that of
its slowest rank; CPU time is added over ranks.
"""

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from boldcast.config.schema import Config, ModelConfig, NumericsConfig, TrainConfig
from boldcast.launch.local import command
from boldcast.model.forecaster import build_forecaster
from boldcast.parallel.strategy import wrap
from boldcast.parallel.world import World
from boldcast.train.objective import Objective
from boldcast.train.optim import build_optimizer
from boldcast.train.seeding import fix_numerics
from boldcast.train.step import GlobalStep

N_REGIONS, HORIZONS = 48, (1, 2)
VARIANTS = ("bare", "bare again", "deterministic", "exact", "exact, sent late")
SIZES = {
    "small": ModelConfig(d_model=48, n_layer=2, d_state=16, headdim=16, chunk_size=32),
    "medium": ModelConfig(d_model=192, n_layer=3, d_state=64, headdim=32, chunk_size=32),
    "large": ModelConfig(d_model=576, n_layer=4, d_state=64, headdim=64, chunk_size=32),
}


class BareLoop:
    """Gradient accumulation as torch's tutorials write it."""

    def __init__(self, model, config, objective, world):
        self.optimizer = build_optimizer(model, config.optim)
        self.model = DistributedDataParallel(model) if world.world_size > 1 else model
        self.objective = objective

    def take(self, batches, step):
        last = len(batches) - 1
        for index, (span, observed) in enumerate(batches):
            silent = (
                self.model.no_sync() if self._wrapped(index, last) else contextlib.nullcontext()
            )
            with silent:
                squared, cells = self.objective.errors(self.model, span, observed)
                loss = squared.sum() / cells.sum() / len(batches)
                loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def _wrapped(self, index, last):
        return index < last and isinstance(self.model, DistributedDataParallel)


class Step:
    """boldcast's own step at a determinism level."""

    def __init__(self, model, config, objective, world):
        optimizer = build_optimizer(model, config.optim)
        model = wrap(model, config.parallel, world)
        self.step = GlobalStep(model, optimizer, config, objective, world)

    def take(self, batches, step):
        return self.step.take(iter(batches), step, False).loss


def numerics(variant):
    """The bare loop is as fast as torch is; the levels are as in training."""
    return NumericsConfig(level="fast" if variant.startswith("bare") else variant.split(",")[0])


def build(variant, size, config, objective, world):
    fix_numerics(numerics(variant))
    model = build_forecaster(
        SIZES[size],
        n_regions=N_REGIONS,
        horizons=HORIZONS,
        neighbours=None,
        seed=0,
        device=torch.device("cpu"),
    ).train()
    if variant.startswith("bare"):
        return BareLoop(model, config, objective, world), model
    config = dataclasses.replace(config, numerics=numerics(variant))
    step = Step(model, config, objective, world)
    if variant == "exact, sent late":
        step.step.gradient._sum._early = False
    return step, model


def windows(n, micro, length, seed):
    generator = torch.Generator().manual_seed(seed)
    total = length + HORIZONS[-1]
    return [
        (torch.randn(micro, total, N_REGIONS, generator=generator), torch.ones(micro, total).bool())
        for _ in range(n)
    ]


def measure(arguments, world):
    """Return for each size and variant this rank's wall and CPU seconds of every step."""
    config = Config(
        name="bench",
        train=TrainConfig(
            steps=10_000,
            global_batch_size=arguments.micros * arguments.micro_batch_size,
            micro_batch_size=arguments.micro_batch_size,
        ),
    )
    objective = Objective(arguments.length, HORIZONS, torch.ones(N_REGIONS))
    mine = windows(
        len(world.share(arguments.micros)), arguments.micro_batch_size, arguments.length, world.rank
    )
    found = {}
    for size in arguments.sizes:
        built = {name: build(name, size, config, objective, world) for name in VARIANTS}
        n_parameters = sum(p.numel() for p in built["exact"][1].parameters())
        times = {name: [] for name in VARIANTS}
        for number in range(-arguments.warmup, arguments.rounds):
            turn = number % len(VARIANTS)
            for name in VARIANTS[turn:] + VARIANTS[:turn]:
                fix_numerics(numerics(name))
                if world.world_size > 1:
                    dist.barrier()
                wall, cpu = time.perf_counter(), time.process_time()
                built[name][0].take(mine, number + arguments.warmup)
                taken = time.perf_counter() - wall, time.process_time() - cpu
                if number >= 0:
                    times[name].append(taken)
        found[size] = {"parameters": n_parameters, "times": times}
    return found


def summary(ranks):
    """Return medians and ratios from what every rank measured."""
    lines = []
    for size, first in ranks[0].items():
        wall, cpu = {}, {}
        for name in VARIANTS:
            each = list(zip(*(rank[size]["times"][name] for rank in ranks), strict=True))
            wall[name] = [max(w for w, _ in step) for step in each]
            cpu[name] = [sum(c for _, c in step) for step in each]

        def ratio(top, bottom, times=wall):
            pairs = zip(times[top], times[bottom], strict=True)
            return statistics.median(a / b for a, b in pairs)

        lines.append(
            {
                "world_size": len(ranks),
                "size": size,
                "parameters": first["parameters"],
                "steps": len(wall["exact"]),
                "median_s": {name: statistics.median(wall[name]) for name in VARIANTS},
                "cpu_median_s": {name: statistics.median(cpu[name]) for name in VARIANTS},
                "exact_over_deterministic": ratio("exact", "deterministic"),
                "exact_over_bare": ratio("exact", "bare"),
                "early_over_late": ratio("exact", "exact, sent late"),
                "noise_floor": ratio("bare again", "bare"),
                "cpu_exact_over_deterministic": ratio("exact", "deterministic", cpu),
                "cpu_exact_over_bare": ratio("exact", "bare", cpu),
                "cpu_noise_floor": ratio("bare again", "bare", cpu),
            }
        )
    return lines


def as_rank(arguments):
    world = World.from_env()
    with world.process_group(torch.device("cpu"), 600):
        found = measure(arguments, world)
        ranks = [found]
        if world.world_size > 1:
            ranks = [None] * world.world_size
            dist.all_gather_object(ranks, found)
        if world.is_rank_zero:
            Path(arguments.report).write_text(json.dumps(summary(ranks)))


def table(lines):
    ratios = {
        "exact/determ.": "exact_over_deterministic",
        "exact/bare": "exact_over_bare",
        "bare/bare": "noise_floor",
        "early/late": "early_over_late",
        "CPU: exact/determ.": "cpu_exact_over_deterministic",
        "exact/bare ": "cpu_exact_over_bare",
        "bare/bare ": "cpu_noise_floor",
    }
    rows = ["ranks  parameters   bare ms  determ. ms  exact ms  " + "  ".join(ratios)]
    for line in lines:
        ms = {name: 1000 * value for name, value in line["median_s"].items()}
        rows.append(
            f"{line['world_size']:5} {line['parameters']:11,} {ms['bare']:9.1f} "
            f"{ms['deterministic']:11.1f} {ms['exact']:9.1f}  "
            + "  ".join(f"{line[key]:{len(head)}.3f}" for head, key in ratios.items())
        )
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--world_sizes", default="1,2,4", type=lambda t: [int(n) for n in t.split(",")]
    )
    parser.add_argument("--sizes", default=list(SIZES), type=lambda t: t.split(","))
    parser.add_argument("--rounds", default=20, type=int, help="timed steps of each variant")
    parser.add_argument("--warmup", default=3, type=int)
    parser.add_argument("--micros", default=8, type=int, help="micro-batches of a global batch")
    parser.add_argument("--micro_batch_size", default=4, type=int)
    parser.add_argument("--length", default=64, type=int, help="volumes of a window")
    parser.add_argument("--out", help="write the figures as JSON to this file")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report:
        as_rank(arguments)
        return
    lines = []
    for world_size in arguments.world_sizes:
        report = Path(arguments.out or "bench-exact.json").with_suffix(f".{world_size}.part")
        program = [__file__, *sys.argv[1:], f"--report={report}"]
        with tempfile.TemporaryDirectory(prefix="boldcast-bench-") as logs:
            subprocess.run(command(world_size, program, Path(logs)), check=True)
        lines += json.loads(report.read_text())
        report.unlink()
        print(table(lines), flush=True)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(lines, indent=2) + "\n")


if __name__ == "__main__":
    main()
