"""GPUs and how they are joined, through NVML, one guarded call per field.

NVML refuses many calls on MIG slices, old boards and without permission, so every field is a value
or ``{"error": text}``. It ignores ``CUDA_VISIBLE_DEVICES``: all boards of the node are listed, and
``pci_bus_id`` tells which of them torch calls ``cuda:0``. Without a driver the block says so.

Example
-------
>>> node()["gpu"]   # doctest: +SKIP
{'error': 'NVML shared library not found'}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from boldcast.record.machine import machine
from boldcast.record.privacy import hashed_gpu
from boldcast.record.provenance import attempt

ANCESTORS = {50: "SYS", 40: "NODE", 30: "PHB", 20: "PXB", 10: "PIX", 0: "INT"}
"""NVML's closest common ancestor of two boards, in the letters of ``nvidia-smi topo -m``."""

MAX_NVLINKS = 18
_THROTTLE = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown",
    0x10: "sync boost", 0x20: "thermal (software)", 0x40: "thermal (hardware)",
    0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2}
_SWITCH = 2


def node(root: Path = Path("/")) -> dict[str, Any]:
    """Return the hardware of this node; the ``hardware`` block holds one such entry per node.

    Parameters
    ----------
    root : Path
        Root of the file system that holds ``proc`` and ``sys``.

    Returns
    -------
    dict
        Everything of `boldcast.record.machine.machine`, and ``gpu``.
    """
    return {**machine(root), "gpu": gpus()}


def gpus() -> dict[str, Any]:
    """Return driver, boards and their interconnect, or one error if NVML cannot be started.

    Returns
    -------
    dict
        ``driver``, ``cuda_driver``, ``devices`` (a list) and ``matrix``: for each pair of devices
        ``X`` (itself), ``NVn`` (n active NVLinks) or the letters of the common PCIe ancestor.
    """
    try:
        import pynvml
    except ImportError:
        return {"error": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return {"error": "NVML shared library not found"}
    except Exception as error:
        return {"error": _nvml_text(pynvml, error)}
    try:
        return _Reader(pynvml).everything()
    finally:
        attempt(pynvml.nvmlShutdown)


class _Reader:
    """The calls on a started NVML."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def everything(self) -> dict[str, Any]:
        nvml = self.nvml
        found = {
            "driver": self.one(nvml.nvmlSystemGetDriverVersion),
            "cuda_driver": self.one(
                lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion_v2())
            ),
        }
        count = self.one(nvml.nvmlDeviceGetCount)
        if not isinstance(count, int):
            return {**found, "devices": count, "matrix": count}
        handles = [self.one(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        found["devices"] = [h if _failed(h) else self.device(h) for h in handles]
        found["matrix"] = self.matrix(handles)
        return found

    def one(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the value of one NVML call, or its error."""
        try:
            return call(*arguments)
        except Exception as error:
            return {"error": _nvml_text(self.nvml, error)}

    def device(self, handle: Any) -> dict[str, Any]:
        nvml, one = self.nvml, self.one
        return {
            "name": one(nvml.nvmlDeviceGetName, handle),
            "uuid_hash": one(lambda: hashed_gpu(nvml.nvmlDeviceGetUUID(handle))),
            "pci_bus_id": one(lambda: _bus(nvml.nvmlDeviceGetPciInfo(handle))),
            "memory_mib": one(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20),
            "compute_capability": one(
                lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
            ),
            "pcie": self.pcie(handle),
            "ecc": one(lambda: bool(nvml.nvmlDeviceGetCurrentEccMode(handle))),
            "mig": one(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
            "numa_node": one(nvml.nvmlDeviceGetNumaNodeId, handle),
            "clocks_mhz": {
                name: {
                    "now": one(nvml.nvmlDeviceGetClockInfo, handle, kind),
                    "max": one(nvml.nvmlDeviceGetMaxClockInfo, handle, kind),
                }
                for name, kind in _CLOCKS.items()
            },
            "power_limit_w": one(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "throttle_reasons": one(
                lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
            ),
        }

    def pcie(self, handle: Any) -> dict[str, Any]:
        nvml, one = self.nvml, self.one
        return {
            "generation": one(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            "max_generation": one(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "width": one(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            "max_width": one(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        }

    def matrix(self, handles: list[Any]) -> list[list[Any]]:
        links = [Counter() if _failed(h) else self.links(h) for h in handles]
        buses = [
            h if _failed(h) else self.one(lambda h=h: _bus(self.nvml.nvmlDeviceGetPciInfo(h)))
            for h in handles
        ]
        size = range(len(handles))
        return [[self.pair(handles, links, buses, i, j) for j in size] for i in size]

    def pair(
        self, handles: list[Any], links: list[Counter[str]], buses: list[Any], i: int, j: int
    ) -> Any:
        if i == j:
            return "X"
        if _failed(handles[i]) or _failed(handles[j]):
            return handles[i] if _failed(handles[i]) else handles[j]
        # Through an NVSwitch every link of a board reaches every other board.
        count = min(links[i]["switch"], links[j]["switch"])
        if isinstance(buses[j], str):
            count += links[i][buses[j]]
        if count:
            return f"NV{count}"
        level = self.one(self.nvml.nvmlDeviceGetTopologyCommonAncestor, handles[i], handles[j])
        return level if _failed(level) else ANCESTORS.get(level, f"level {level}")

    def links(self, handle: Any) -> Counter[str]:
        """Count a board's active NVLinks by what is at their other end."""
        nvml, ends = self.nvml, Counter[str]()
        for link in range(MAX_NVLINKS):
            state = self.one(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if _failed(state) or not state:
                continue
            kind = self.one(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            if not _failed(kind) and kind == _SWITCH:
                ends["switch"] += 1
                continue
            remote = self.one(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            ends["unknown" if _failed(remote) else _bus(remote)] += 1
        return ends


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and "error" in value


def _nvml_text(nvml: Any, error: Exception) -> str:
    if isinstance(error, nvml.NVMLError):
        return f"{error} (NVML code {error.value})"
    return f"{type(error).__name__}: {error}"


def _bus(info: Any) -> str:
    return f"{info.domain:08x}:{info.bus:02x}:{info.device:02x}.0"


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _reasons(bits: int) -> list[str]:
    known = [name for bit, name in _THROTTLE.items() if bits & bit]
    rest = bits & ~sum(_THROTTLE)
    return known + ([f"other ({rest:#x})"] if rest else [])
