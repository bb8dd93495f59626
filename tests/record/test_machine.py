from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from boldcast.record.machine import machine

CPUINFO = """processor\t: {n}
model name\t: Test CPU
physical id\t: {socket}
core id\t\t: {core}
flags\t\t: fpu sse4_2 avx2 avx512f secret_flag

"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/cpuinfo", "".join(
        CPUINFO.format(n=n, socket=n // 4, core=n // 2 % 2) for n in range(8)))  # fmt: skip
    write(tmp_path / "proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    write(tmp_path / "proc/self/cgroup", "0::/job/step\n")
    for node in (0, 1, 10):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", f"{node}-{node + 3}\n")
        text = f"Node {node} MemTotal:       16777216 kB\n"
        write(tmp_path / f"sys/devices/system/node/node{node}/meminfo", text)
    write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_sockets_cores_flags_and_memory(root: Path) -> None:
    found = machine(root)
    assert found["cpu"] == {
        "model": "Test CPU",
        "flags": ["avx2", "avx512f", "sse4_2"],
        "sockets": 2,
        "cores": 4,
        "threads": 8,
        "usable_threads": len(os.sched_getaffinity(0)),
    }
    assert found["memory_gib"] == 32.0
    assert found["numa"] == [{"cpus": f"{n}-{n + 3}", "memory_gib": 16.0} for n in (0, 1, 10)]
    assert found["kernel"] == platform.release()


def test_the_tightest_limit_on_the_way_up_holds(root: Path) -> None:
    top = root / "sys/fs/cgroup"
    assert machine(root)["limits"] == {"cpus": None, "memory_gib": None}
    write(top / "job/cpu.max", "250000 100000\n")
    write(top / "job/step/cpu.max", "max 100000\n")
    write(top / "job/step/memory.max", str(8 * 2**30))
    write(top / "job/memory.max", str(4 * 2**30))
    assert machine(root)["limits"] == {"cpus": 2.5, "memory_gib": 4.0}


def test_limits_of_the_first_cgroup_version(root: Path) -> None:
    (root / "sys/fs/cgroup/cgroup.controllers").unlink()
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine(root)["limits"] == {"cpus": 1.5, "memory_gib": None}


def test_what_cannot_be_read_is_an_error_without_a_path(tmp_path: Path) -> None:
    found = machine(tmp_path)
    for field in ("cpu", "memory_gib"):
        assert "No such file" in found[field]["error"]
        assert str(tmp_path) not in found[field]["error"]
    assert found["numa"] == {"error": "the kernel shows no NUMA nodes"}
