"""The processor, memory, NUMA nodes, limits and kernel of this node, read from /proc and /sys.

Only what can change bits or speed is kept: of the processor's flags those that select other
kernels, of a cgroup the limits that make a large machine small. No name, no serial number.

Example
-------
>>> machine()["cpu"]["sockets"]   # doctest: +SKIP
2
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from boldcast.record.provenance import attempt

BIT_CHANGING_FLAGS = frozenset(
    {
        "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512cd",
        "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
        "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve",
        "sve2",
    }
)  # fmt: skip
"""Instruction sets for which torch, oneDNN, MKL or OpenBLAS have kernels of their own."""


def machine(root: Path = Path("/")) -> dict[str, Any]:
    """Return what this node is made of.

    Parameters
    ----------
    root : Path
        Root of the file system that holds ``proc`` and ``sys``.

    Returns
    -------
    dict
        ``cpu``, ``memory_gib`` (GiB), ``numa`` (per node: CPUs and GiB), ``limits`` (cgroup: CPUs
        and GiB, null where unlimited), ``kernel``.
    """
    return {
        "cpu": attempt(_cpu, root),
        "memory_gib": attempt(_meminfo, root / "proc/meminfo"),
        "numa": attempt(_numa, root),
        "limits": attempt(_limits, root),
        "kernel": attempt(platform.release),
    }


def _cpu(root: Path) -> dict[str, Any]:
    blocks = (root / "proc/cpuinfo").read_text().strip().split("\n\n")
    cores = [dict(re.findall(r"^([^\t:]+?)\s*: ?(.*)$", block, re.MULTILINE)) for block in blocks]
    first = cores[0]
    flags = set((first.get("flags") or first.get("Features") or "").split())
    sockets = {core.get("physical id", "0") for core in cores}
    physical = {
        (core.get("physical id"), core.get("core id", core.get("processor"))) for core in cores
    }
    return {
        "model": first.get("model name") or first.get("CPU part") or {"error": "not named"},
        "flags": sorted(flags & BIT_CHANGING_FLAGS),
        "sockets": len(sockets),
        "cores": len(physical),
        "threads": len(cores),
        "usable_threads": attempt(lambda: len(os.sched_getaffinity(0))),
    }


def _text(path: Path) -> str:
    return path.read_text().strip()


def _meminfo(path: Path) -> float:
    match = re.search(r"MemTotal:\s*(\d+) kB", path.read_text())
    if match is None:
        raise RuntimeError("meminfo names no total")
    return round(int(match[1]) / 2**20, 1)


def _numa(root: Path) -> list[dict[str, Any]]:
    nodes = sorted(
        (root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])
    )
    if not nodes:
        raise RuntimeError("the kernel shows no NUMA nodes")
    return [
        {
            "cpus": attempt(_text, node / "cpulist"),
            "memory_gib": attempt(_meminfo, node / "meminfo"),
        }
        for node in nodes
    ]


def _limits(root: Path) -> dict[str, Any]:
    top = root / "sys/fs/cgroup"
    if not (top / "cgroup.controllers").exists():
        return _limits_v1(top)
    own = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
    folder = top / (own[1] if own else "")
    cpus: list[float] = []
    memory: list[float] = []
    # A limit anywhere above holds too; inside a container the own path may not be visible.
    for place in (folder, *folder.parents):
        if place != top and top not in place.parents:
            break
        cpus += _numbers(place / "cpu.max", lambda quota, period: int(quota) / int(period))
        memory += _numbers(place / "memory.max", lambda size: int(size) / 2**30)
    return _smallest(cpus, memory)


def _limits_v1(top: Path) -> dict[str, Any]:
    quota = _numbers(top / "cpu/cpu.cfs_quota_us", int)
    period = _numbers(top / "cpu/cpu.cfs_period_us", int)
    cpus = [q / p for q, p in zip(quota, period, strict=False) if q > 0 and p > 0]
    memory = _numbers(top / "memory/memory.limit_in_bytes", lambda size: int(size) / 2**30)
    # "No limit" is written as the largest multiple of a page.
    return _smallest(cpus, [size for size in memory if size < 2**32])


def _numbers(path: Path, read: Any) -> list[Any]:
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [] if "max" in words or not words else [read(*words)]


def _smallest(cpus: list[float], memory: list[float]) -> dict[str, Any]:
    return {
        "cpus": round(min(cpus), 2) if cpus else None,
        "memory_gib": round(min(memory), 1) if memory else None,
    }
