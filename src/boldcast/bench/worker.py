"""One rank of a measurement: ``python -m boldcast.bench.worker TASK``, started by torchrun.

It builds the very job that training builds and times its forward and backward, the reduction of
the gradient over the ranks included; the optimizer does not move. The task comes in a file and the
report goes back in one, because torchrun passes neither arguments nor results through.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist

from boldcast.bench.clock import clock_for
from boldcast.config.resolve import resolve
from boldcast.config.schema import Config
from boldcast.data.store import Store, prepare
from boldcast.errors import BoldcastError
from boldcast.files import canonical_json, write_bytes
from boldcast.launch import outcome
from boldcast.launch.local import die_with_parent
from boldcast.parallel.agree import from_rank_zero
from boldcast.parallel.world import World
from boldcast.train.loader import Window, stream
from boldcast.train.log import RunLog
from boldcast.train.run import Job, build
from boldcast.train.stop import StopRequest
from boldcast.train.trainer import Trainer


@dataclass(frozen=True)
class Task:
    """What a rank is to measure."""

    config: str
    """Path of the resolved configuration; its source is synthetic."""

    folder: str
    """Scratch folder, shared by all world sizes."""

    report: str
    """Where rank 0 writes what all ranks found."""

    warmup: int
    steps: int

    def write(self, path: Path) -> Path:
        """Write the task to ``path`` and return it."""
        write_bytes(path, canonical_json(asdict(self)))
        return path


@dataclass(frozen=True)
class Timed:
    """What one rank found."""

    rank: int
    device: str
    steps_s: list[float]
    finite: bool
    """Whether every loss and the last gradient were."""

    peak_memory_gib: float
    """Largest memory of the device allocated by tensors; on a CPU, of the process."""


def main(path: Path) -> None:
    """Measure the task in ``path`` as the rank that the environment says."""
    die_with_parent()
    task = Task(**orjson.loads(path.read_bytes()))
    config = resolve(Path(task.config), {})
    world = World.from_env()
    device = world.device(config.train.device)
    with world.process_group(device, config.parallel.timeout_s):
        job = _job(config, world, Path(task.folder))
        timed = measure(job.trainer, _batches(job), warmup=task.warmup, steps=task.steps)
        ranks: list[dict[str, Any] | None] = [None] * world.world_size
        dist.all_gather_object(ranks, asdict(timed))
        if world.is_rank_zero:
            write_bytes(Path(task.report), canonical_json(_report(job, device, ranks)))


def measure(trainer: Trainer, batches: Iterator[Window], *, warmup: int, steps: int) -> Timed:
    """Time ``steps`` steps of forward, backward and reduction after ``warmup`` untimed ones.

    All ranks begin together; none waits for another between steps but through the reduction.
    """
    device = trainer.objective.region_mask.device
    clock = clock_for(device)
    sums = []
    trainer.model.train()
    for number in range(warmup + steps):
        if number == warmup:
            clock.settle()
            dist.barrier()
            clock.settle()
            clock.mark()
        sums.append(trainer.global_step.accumulate(batches, trainer.state.step)[0])
        if number >= warmup:
            clock.mark()
        last = number == warmup + steps - 1
        if not last:
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer.state.step += 1
    grads = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    finite = [torch.stack(sums).isfinite().all(), *(grad.isfinite().all() for grad in grads)]
    return Timed(
        rank=trainer.world.rank,
        device=_name(device),
        steps_s=clock.steps_s(),
        finite=bool(grads) and all(bool(each) for each in finite),
        peak_memory_gib=_peak_memory_gib(device),
    )


def _job(config: Config, world: World, folder: Path) -> Job:
    store = Store.open(from_rank_zero(world, lambda: prepare(config, folder, folder / "stores")))
    log = RunLog(config.log, folder, config.name, quiet=True, log_every=1)
    return build(config, store, world, folder, log, StopRequest())


def _batches(job: Job) -> Iterator[Window]:
    return stream(job.train_loader, job.batches, 0, len(job.trainer.global_step.gradient.leaves))


def _report(job: Job, device: torch.device, ranks: list[dict[str, Any] | None]) -> dict[str, Any]:
    return {
        "backend": dist.get_backend(),
        "device": device.type,
        "n_regions": len(job.store.regions),
        "n_windows": job.batches.order.n,
        "parameters": sum(p.numel() for p in job.trainer.model.parameters()),
        "ranks": ranks,
    }


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _peak_memory_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _exit_code(error: Exception) -> int:
    """Note an error for the launching process and return what this rank exits with."""
    if not outcome.leave(error, int(os.environ.get("RANK", "0"))):
        traceback.print_exception(error)
    # torchrun reports any code but 0 at length; an end that all ranks share needs none
    return 0 if isinstance(error, BoldcastError) and error.on_every_rank else 1


if __name__ == "__main__":
    code = 0
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        code = _exit_code(error)
    outcome.end_rank(code)
