"""``boldcast bench``: the throughput of training at several world sizes, and the efficiency.

Every world size runs in fresh processes under torchrun, one rank too, over the same code path, type
and batch arithmetic as training, on windows from the synthetic generator in the sizes of the
section ``[synthetic]``. Weak scaling: the batch of a rank stays the same.

Example
-------
>>> from boldcast.config.schema import Config
>>> scaled(Config(), 4).train.global_batch_size
64
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from boldcast.bench import summary
from boldcast.config.resolve import as_dict, batch_arithmetic, check_world, digest, to_toml
from boldcast.config.schema import Config
from boldcast.errors import AcceptanceMissed, MeasurementInvalid, UsageRefused
from boldcast.files import canonical_json, write_bytes
from boldcast.launch import environment, local
from boldcast.record import provenance, topology

LEAST_STEPS = 50
LEAST_WARMUP = 3


def run(
    config: Config,
    *,
    world_sizes: Sequence[int],
    steps: int,
    warmup: int,
    threshold: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure ``config`` at every world size, print the result and return 0.

    Parameters
    ----------
    world_sizes : sequence of int
        Rising; the first is the one that the others are compared with.
    steps, warmup : int
        Timed steps, and untimed ones before them.
    threshold : float
        Least efficiency of the largest world size.
    out : Path or None
        Where to write the result as JSON.
    as_json : bool
        Print JSON instead of text.

    Raises
    ------
    MeasurementInvalid
        If the numbers would mean nothing: too few steps, too few cores, losses not finite.
    AcceptanceMissed
        If the efficiency is below ``threshold``; the result is printed and written before.
    UsageRefused
        If a world size does not fit the configuration or the GPUs.
    """
    plans = {n: scaled(config, n) for n in world_sizes}
    hardware = topology.node()
    _refuse(plans, hardware, steps=steps, warmup=warmup)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="boldcast-bench-") as folder:
        points = [
            _measure(plan, n, Path(folder), steps=steps, warmup=warmup) for n, plan in plans.items()
        ]
    result = {
        **_head(plans[world_sizes[0]], points[0]),
        "steps": steps,
        "warmup": warmup,
        "load_before": round(load, 2),
        "points": points,
        "efficiency": summary.efficiencies(points, threshold),
        "notes": summary.notes(points, load_before=load, cores=_cores(hardware)),
        "hardware": {"nodes": [hardware]},
        "software": provenance.software(),
        "code": provenance.code(),
    }
    _show(result, out, as_json)
    _judge(result)
    return 0


def _head(first: Config, measured: dict[str, Any]) -> dict[str, Any]:
    """Say what was measured, by the smallest world size."""
    return {
        "schema": "boldcast/bench/1",
        "name": first.name,
        "model": _model(first, measured),
        "config": as_dict(first),
        "config_digest": digest(first),
        "scaling": summary.WEAK,
        "token": summary.TOKEN,
    }


def scaled(config: Config, world_size: int) -> Config:
    """Return what ``world_size`` ranks measure: synthetic windows, the batch of one rank each."""
    train, data, model = config.train, config.data, config.model
    return replace(
        config,
        train=replace(train, global_batch_size=train.global_batch_size * world_size),
        data=replace(data, source="synthetic", held_out=()),
        # a table of coordinates names the regions of real data
        model=replace(model, spatial_neighbours="correlation", coordinates=None),
    )


def _refuse(plans: dict[int, Config], hardware: dict[str, Any], *, steps: int, warmup: int) -> None:
    """Refuse before anything starts what cannot be measured."""
    if steps < LEAST_STEPS or warmup < LEAST_WARMUP:
        raise MeasurementInvalid(
            f"`steps` must be at least {LEAST_STEPS} after {LEAST_WARMUP} of `warmup`, but is "
            f"{steps} after {warmup}. Measure longer."
        )
    problems = [problem for n, plan in plans.items() for problem in check_world(plan, n)]
    largest, plan = max(plans.items())
    wanted, gpus = plan.train.device, environment.visible_gpus()
    if wanted == "cuda" or (wanted == "auto" and gpus):
        if largest > gpus:
            problems.append(
                f"`--world_sizes` must be at most the number of visible GPUs, {gpus}, but is "
                f"{largest}. Lower it, or measure `--train.device cpu`."
            )
    elif largest * plan.numerics.threads > (cores := _cores(hardware)):
        raise MeasurementInvalid(
            f"`--world_sizes` x `numerics.threads` must be at most the {cores} usable cores, but "
            f"is {largest} x {plan.numerics.threads}: ranks would wait for each other's core. "
            "Lower one of them."
        )
    if problems:
        raise UsageRefused(list(dict.fromkeys(problems)))


def _cores(hardware: dict[str, Any]) -> int:
    """Return how many cores this process may use, by affinity and control group."""
    limit = hardware["limits"].get("cpus")
    usable = len(os.sched_getaffinity(0))
    return min(usable, math.floor(limit)) if isinstance(limit, float | int) else usable


def _measure(
    config: Config, world_size: int, folder: Path, *, steps: int, warmup: int
) -> dict[str, Any]:
    """Measure one world size in processes of its own."""
    from boldcast.bench.worker import Task

    print(
        f"{batch_arithmetic(config, world_size)}; {warmup} steps to warm up, {steps} timed",
        file=sys.stderr,
    )
    report = folder / f"report_{world_size}.json"
    settings = folder / f"config_{world_size}.toml"
    write_bytes(settings, to_toml(config).encode())
    task = Task(
        config=str(settings), folder=str(folder), report=str(report), warmup=warmup, steps=steps
    ).write(folder / f"task_{world_size}.json")
    program = local.module("boldcast.bench.worker", [str(task)])
    local.run(world_size, program, environment.merged(config))
    return point(config, orjson.loads(report.read_bytes()))


def point(config: Config, report: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one world size from what its ranks reported.

    Raises
    ------
    MeasurementInvalid
        If a rank's losses or gradient were not finite, or its times are no measurement.
    """
    ranks = report["ranks"]
    if bad := [rank["rank"] for rank in ranks if not rank["finite"]]:
        raise MeasurementInvalid(
            f"Losses and gradients must be finite, but were not on rank {bad[0]}: arithmetic on "
            "NaN may take another time. Lower `optim.lr` or choose float32."
        )
    tokens = config.train.global_batch_size * config.data.context_length * report["n_regions"]
    found = summary.summarize([rank.pop("steps_s") for rank in ranks], tokens)
    times = found.pop("ranks")
    return {
        "world_size": len(ranks),
        "global_batch_size": config.train.global_batch_size,
        "per_rank_batch_size": config.train.global_batch_size // len(ranks),
        "micro_batch_size": config.train.micro_batch_size,
        "tokens_per_step": tokens,
        **{key: report[key] for key in ("device", "backend", "n_regions", "parameters")},
        **found,
        "ranks": [rank | spent for rank, spent in zip(ranks, times, strict=True)],
    }


def _model(config: Config, first: dict[str, Any]) -> str:
    return (
        f"{first['parameters']:,} parameters, layout {config.model.layout}, windows of "
        f"{config.data.context_length} volumes x {first['n_regions']} regions, "
        f"{config.train.dtype}, level {config.numerics.level}"
    )


def _show(result: dict[str, Any], out: Path | None, as_json: bool) -> None:
    print(
        orjson.dumps(result, option=orjson.OPT_INDENT_2).decode()
        if as_json
        else summary.text(result)
    )
    sys.stdout.flush()  # what was measured must not be lost with a disk that is full
    if out is not None:
        write_bytes(out, canonical_json(result))


def _judge(result: dict[str, Any]) -> None:
    for each in result["efficiency"][-1:]:
        if not each["reached"]:
            raise AcceptanceMissed(
                f"The efficiency {each['formula']} must be at least {each['threshold']:g}, but is "
                f"{each['value']:.3f}. See the table for what each rank took."
            )
