"""From the step times of every rank to throughput, efficiency and the printed table.

A token is one (window, volume, region) cell that the model reads. The throughput of several ranks
is what all of them processed over the time of the slowest one: the mean of the ranks' own
throughputs would hide a straggler.

Example
-------
>>> point = summarize([[1.0, 1.0], [1.0, 3.0]], tokens_per_step=100)
>>> point["tokens_per_s"], point["slowest_rank_s"], point["fastest_rank_s"]
(50.0, 4.0, 2.0)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from boldcast.errors import MeasurementInvalid

WEAK = (
    "weak: `train.global_batch_size` is the batch of one rank, so n ranks make steps of n times as "
    "many windows"
)
TOKEN = "one (window, volume, region) cell that the model reads"
NOISY = 2.0


def summarize(steps_s: Sequence[Sequence[float]], tokens_per_step: int) -> dict[str, Any]:
    """Return throughput and spread of one world size.

    Parameters
    ----------
    steps_s : sequence of sequence of float
        Per rank the seconds of each timed step.
    tokens_per_step : int
        Over all ranks.

    Returns
    -------
    dict
        ``tokens_per_s``; ``slowest_rank_s`` and ``fastest_rank_s``, the seconds of all steps;
        ``step_s``: ``median``, ``p95``, ``min`` and ``max`` over the steps, each as long as its
        slowest rank took; ``ranks``: the same of each rank.

    Raises
    ------
    MeasurementInvalid
        If ranks timed different numbers of steps, or a time is not positive.
    """
    counts = {len(steps) for steps in steps_s}
    if len(counts) != 1 or 0 in counts:
        raise MeasurementInvalid(
            f"Every rank must time the same steps, but they timed {sorted(counts)}. Measure again."
        )
    if not all(math.isfinite(t) and t > 0 for steps in steps_s for t in steps):
        raise MeasurementInvalid(
            "Every step must take a positive time, but one did not: this machine's clock is not "
            "fit to measure with."
        )
    totals = [math.fsum(steps) for steps in steps_s]
    return {
        "tokens_per_s": tokens_per_step * len(steps_s[0]) / max(totals),
        "slowest_rank_s": max(totals),
        "fastest_rank_s": min(totals),
        "step_s": _spread([max(step) for step in zip(*steps_s, strict=True)]),
        "ranks": [
            {"total_s": total, "step_s": _spread(steps)}
            for total, steps in zip(totals, steps_s, strict=True)
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile (linear between neighbours), minimum and maximum."""
    cuts = statistics.quantiles(values, n=20, method="inclusive") if len(values) > 1 else [*values]
    return {
        "median": statistics.median(values),
        "p95": cuts[-1],
        "min": min(values),
        "max": max(values),
    }


def efficiency(base_tokens_per_s: float, tokens_per_s: float, *, base: int, n: int) -> float:
    """Return the throughput of ``n`` ranks over that of ``base`` ranks times ``n / base``."""
    return tokens_per_s * base / (n * base_tokens_per_s)


def efficiencies(points: Sequence[Mapping[str, Any]], threshold: float) -> list[dict[str, Any]]:
    """Return the efficiency of each world size after the first; ``thr2 / (2 * thr1)`` for 1 and 2.

    Parameters
    ----------
    points : sequence of mapping
        With ``world_size`` and ``tokens_per_s``, rising.
    threshold : float
        Least efficiency of the largest.
    """
    first, *others = points
    base = first["world_size"]
    found = []
    for point in others:
        n = point["world_size"]
        below = f"({n} * thr{base})" if base == 1 else f"({n} / {base} * thr{base})"
        value = efficiency(first["tokens_per_s"], point["tokens_per_s"], base=base, n=n)
        found.append(
            {
                "world_size": n,
                "base_world_size": base,
                "formula": f"thr{n} / {below}",
                "value": value,
                "threshold": threshold,
                "reached": value >= threshold,
            }
        )
    return found


def notes(points: Sequence[Mapping[str, Any]], *, load_before: float, cores: int) -> list[str]:
    """Return what a reader must know to read the numbers right.

    Parameters
    ----------
    points : sequence of mapping
        The results of all world sizes.
    load_before : float
        Processes that ran in the minute before the measurement, on average.
    cores : int
        Usable cores.
    """
    said = []
    on_cpu = any(point["device"] == "cpu" for point in points)
    if on_cpu and load_before + points[-1]["world_size"] > cores + 0.5:
        said.append(
            f"About {load_before:.1f} other processes were running on {cores} cores when the "
            "measurement began: its efficiency is theirs, too. Measure again when it is idle."
        )
    if on_cpu:
        said.append(
            "CPU ranks share caches, memory bandwidth and a power budget: these numbers and this "
            "efficiency say nothing about GPUs."
        )
    for point in points:
        step = point["step_s"]
        if step["p95"] > NOISY * step["median"]:
            said.append(
                f"At world size {point['world_size']} the slowest steps took "
                f"{step['p95'] / step['median']:.1f} times the median: other work ran on this "
                "machine. Measure again when it is idle."
            )
    return said


def text(result: Mapping[str, Any]) -> str:
    """Return a result as it is printed."""
    lines = [
        f"config      {result['name']}: {result['model']}",
        f"scaling     {result['scaling']}",
        f"token       {result['token']}",
        "",
        f"{'ranks':>5}  {'windows/step':>12}  {'tokens/s':>14}  {'median s':>9}  {'p95 s':>9}  "
        f"{'slowest rank s':>14}  {'fastest rank s':>14}  device",
    ]
    for point in result["points"]:
        step = point["step_s"]
        lines.append(
            f"{point['world_size']:>5}  {point['global_batch_size']:>12}  "
            f"{point['tokens_per_s']:>14,.0f}  {step['median']:>9.4f}  {step['p95']:>9.4f}  "
            f"{point['slowest_rank_s']:>14.3f}  {point['fastest_rank_s']:>14.3f}  "
            f"{point['ranks'][0]['device']}, {point['backend']}"
        )
    by_size = {point["world_size"]: point for point in result["points"]}
    for each in result["efficiency"]:
        lines.append(
            f"\nefficiency = {each['formula']} = {each['value']:.3f}  "
            f"(thr{each['world_size']} = {by_size[each['world_size']]['tokens_per_s']:,.0f}, "
            f"thr{each['base_world_size']} = "
            f"{by_size[each['base_world_size']]['tokens_per_s']:,.0f} tokens/s; "
            f"at least {each['threshold']:g} wanted of the largest)"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in result["notes"])])
