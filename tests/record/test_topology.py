"""The real NVML bindings against a compiled stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boldcast.record.privacy import hashed_gpu

READ = "import json; from boldcast.record.topology import gpus; print(json.dumps(gpus()))"
REFUSED = {"error": "Insufficient Permissions (NVML code 4)"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC",
         "-o", str(folder / "libnvidia-ml.so.1"), str(Path(__file__).with_name("standin_nvml.c"))],
        check=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def read(library: Path, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    def run(machine: str) -> dict[str, Any]:
        (tmp_path / "machine").write_text(machine)
        env = {"LD_LIBRARY_PATH": str(library), "STANDIN_NVML": str(tmp_path / "machine")}
        return gpus_in(os.environ | env)

    return run


def gpus_in(env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ], env=env, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def h200(index: int, bus: str) -> str:
    return f"""Name.{index} NVIDIA H200
UUID.{index} GPU-0000000{index}-1111-2222-3333-444444444444
Pci.{index} {bus}
Memory.{index} 150754820096
CudaComputeCapability.{index} 9 0
EccMode.{index} 1 1
MigMode.{index} 0 0
CurrPcieLinkGeneration.{index} 5
MaxPcieLinkGeneration.{index} 5
CurrPcieLinkWidth.{index} 16
MaxPcieLinkWidth.{index} 16
EnforcedPowerLimit.{index} 700000
NumaNodeId.{index} {index}
CurrentClocksEventReasons.{index} 0x8000000000000044
ClockInfo.{index}.0 1755
ClockInfo.{index}.1 1755
ClockInfo.{index}.2 3201
MaxClockInfo.{index}.0 1980
MaxClockInfo.{index}.1 1980
MaxClockInfo.{index}.2 3201
"""


H200_PAIR = (
    "Driver 580.65.06\nCuda 13000\nCount 2\nAncestor.0.1 50\nAncestor.1.0 50\n"
    + h200(0, "00000000:1B:00.0")
    + h200(1, "00000000:43:00.0")
)


def bridged(links: int, active: int) -> str:
    lines = []
    for board, peer in ((0, "00000000:43:00.0"), (1, "00000000:1B:00.0")):
        for link in range(links):
            lines += [
                f"NvLinkState.{board}.{link} {int(link < active)}",
                f"NvLinkRemoteDeviceType.{board}.{link} 0",
                f"NvLinkPci.{board}.{link} {peer}",
            ]
    return "\n".join(lines) + "\n"


def test_every_field_of_two_h200_joined_by_nvlink(read: Callable[[str], dict[str, Any]]) -> None:
    found = read(H200_PAIR + bridged(18, 18))
    assert (found["driver"], found["cuda_driver"]) == ("580.65.06", "13.0")
    assert found["matrix"] == [["X", "NV18"], ["NV18", "X"]]
    assert found["devices"][1] == {
        "name": "NVIDIA H200",
        "uuid_hash": hashed_gpu("GPU-00000001-1111-2222-3333-444444444444"),
        "pci_bus_id": "00000000:43:00.0",
        "memory_mib": 143771,
        "compute_capability": "9.0",
        "pcie": {"generation": 5, "max_generation": 5, "width": 16, "max_width": 16},
        "ecc": True,
        "mig": False,
        "numa_node": 1,
        "clocks_mhz": {
            "graphics": {"now": 1755, "max": 1980},
            "sm": {"now": 1755, "max": 1980},
            "memory": {"now": 3201, "max": 3201},
        },
        "power_limit_w": 700.0,
        "throttle_reasons": [
            "power cap",
            "thermal (hardware)",
            "other (0x8000000000000000)",
        ],
    }


def test_inactive_links_do_not_count(read: Callable[[str], dict[str, Any]]) -> None:
    assert read(H200_PAIR + bridged(18, 6))["matrix"][0][1] == "NV6"
    assert read(H200_PAIR + bridged(18, 0))["matrix"][0][1] == "SYS"


def test_links_to_a_switch_reach_every_board(read: Callable[[str], dict[str, Any]]) -> None:
    links = "".join(
        f"NvLinkState.{b}.{n} 1\nNvLinkRemoteDeviceType.{b}.{n} 2\nNvLinkPci.{b}.{n} 0:9{n}:0\n"
        for b in (0, 1)
        for n in range(18 if b else 16)
    )
    assert read(H200_PAIR + links)["matrix"] == [["X", "NV16"], ["NV16", "X"]]


@pytest.mark.parametrize(
    ("level", "letters"), [(50, "SYS"), (40, "NODE"), (30, "PHB"), (20, "PXB"), (10, "PIX")]
)
def test_ancestors_in_the_letters_of_nvidia_smi(
    read: Callable[[str], dict[str, Any]], level: int, letters: str
) -> None:
    found = read(f"Count 2\nAncestor.0.1 {level}\nAncestor.1.0 {level}\n")
    assert found["matrix"] == [["X", letters], [letters, "X"]]


def test_mig_and_refused_calls_leave_their_error_and_the_rest(
    read: Callable[[str], dict[str, Any]],
) -> None:
    found = read(
        "Driver 570.1\nCount 2\nName.0 NVIDIA A100\nMigMode.0 1 1\nUUID.0 !4\nEccMode.0 !4\n"
        "Handle.1 !4\n"
    )
    first, second = found["devices"]
    assert (first["name"], first["mig"]) == ("NVIDIA A100", True)
    assert first["uuid_hash"] == first["ecc"] == REFUSED
    assert first["clocks_mhz"]["sm"]["now"] == {"error": "Not Supported (NVML code 3)"}
    assert second == REFUSED
    assert found["matrix"] == [["X", REFUSED], [REFUSED, "X"]]


def test_a_driver_that_refuses_to_start_is_one_error(
    read: Callable[[str], dict[str, Any]],
) -> None:
    assert read("Init !4\n") == REFUSED


def test_no_library_says_so() -> None:
    # The machine may have a driver, so the loader is told that it has not.
    code = "import pynvml\ndef no(name): raise OSError(name)\npynvml.CDLL = no\n" + READ
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == {"error": "NVML shared library not found"}
