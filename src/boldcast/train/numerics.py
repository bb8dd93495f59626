"""A determinism level is checked, never assumed.

At ``exact`` and ``deterministic`` a run is refused if it finds a value in its environment, a flag
of torch or a layer of the model under which the promised bits could not be kept. Nothing is set
here: what must stand before torch, Triton or mamba_ssm is imported, the launching process exports,
and whoever starts ranks by hand is told what to export.

On the CPU a matrix product may round differently for another number of threads and for another
instruction set. The number of threads is part of the configuration, so it is pinned, and MKL's own
reproducible mode (``MKL_CBWR``) is not needed; it costs speed and is left to the user. Whatever
chooses the instruction set must be the same on all ranks, and on GPUs so must the model of the
board and the libraries that hold or compile the kernels.

Example
-------
>>> found = Found("cpu", {"OMP_NUM_THREADS": "7"}, threads=1, deterministic=True)
>>> problems(NumericsConfig(), found)[0][:36]
'`OMP_NUM_THREADS` must be 1, the valu'
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from boldcast.config.schema import NumericsConfig
from boldcast.errors import UsageRefused
from boldcast.parallel.agree import everyones
from boldcast.parallel.world import World

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CHOOSE_INSTRUCTIONS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
)
_FORCE_TF32 = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_CONV_DETERMINISTIC = (1, 6)
"""First causal-conv1d that has a deterministic backward pass."""

_KERNELS = {
    "MAMBA_DETERMINISTIC": ("1",),
    "CAUSAL_CONV1D_DETERMINISTIC": ("1",),
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
}


@dataclass(frozen=True)
class Found:
    """What decides the bits of arithmetic in one process."""

    device: str
    """``cpu`` or ``cuda``."""

    env: Mapping[str, str] = field(default_factory=dict)
    """The environment."""

    threads: int = 1
    """Threads inside torch."""

    deterministic: bool = True
    """Whether torch refuses kernels that are not deterministic."""

    cudnn_benchmark: bool = False
    """Whether cuDNN chooses kernels by timing them."""

    tf32: bool = False
    """Whether cuBLAS or cuDNN may round inputs to TF32."""

    world_size: int = 1
    """Ranks of the run."""

    causal_conv1d: str | None = None
    """Version of the compiled convolution; None where torch's own sums take its place."""


def found(device: torch.device, env: Mapping[str, str] = os.environ, world_size: int = 1) -> Found:
    """Look at this process."""
    return Found(
        device=device.type,
        env=dict(env),
        threads=torch.get_num_threads(),
        deterministic=torch.get_deterministic_debug_mode() == 2,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        tf32=torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        world_size=world_size,
        causal_conv1d=_version("causal-conv1d"),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def problems(config: NumericsConfig, found: Found) -> list[str]:
    """Return a sentence, with the remedy, for everything that breaks the promised level."""
    if config.level == "fast":
        return []
    sentences = [*_threads(config, found)]
    if not found.deterministic:
        sentences.append(
            f"torch's deterministic algorithms must be on at the level `{config.level}`, but are "
            "off. Remove the call that switched them off, or set `numerics.level` to fast."
        )
    if found.device == "cuda":
        sentences += [*_kernels(config, found), *_rounding(config, found)]
    return sentences


def _threads(config: NumericsConfig, found: Found) -> Iterator[str]:
    for name in _THREADS:
        value = found.env.get(name)
        if value not in (None, "", str(config.threads)):
            yield (
                f"`{name}` must be {config.threads}, the value of `numerics.threads`, at the level "
                f"`{config.level}`, but is {value}. Unset it, or set `numerics.threads` to it."
            )
    if found.threads != config.threads:
        yield (
            f"torch must use {config.threads} threads (`numerics.threads`), but uses "
            f"{found.threads}. Remove the call or the variable that changes it."
        )


def _kernels(config: NumericsConfig, found: Found) -> Iterator[str]:
    for name, allowed in _KERNELS.items():
        if found.env.get(name) not in allowed:
            yield _export(config, found, name, allowed)
    # at `exact` the ranks add up by themselves, in an order of their own
    in_switch = config.level == "deterministic" and found.world_size > 1
    if in_switch and found.env.get("NCCL_NVLS_ENABLE") != "0":
        yield _export(config, found, "NCCL_NVLS_ENABLE", ("0",))
    if found.causal_conv1d and _numbers(found.causal_conv1d) < _CONV_DETERMINISTIC:
        yield (
            f"`causal-conv1d` must be at least 1.6 at the level `{config.level}`, but is "
            f"{found.causal_conv1d}, which has no deterministic backward pass. Upgrade it, or "
            "uninstall it: torch's own sums take its place."
        )
    if found.env.get("TRITON_CACHE_AUTOTUNING") == "1":
        yield (
            "`TRITON_CACHE_AUTOTUNING` must not be 1: Mamba-2's kernels cannot be kept in that "
            "cache, so each process would time them again and choose for itself. Unset it."
        )
    if found.cudnn_benchmark:
        yield (
            "`torch.backends.cudnn.benchmark` must be False at the level "
            f"`{config.level}`, but is True: it chooses kernels by timing. Leave it off."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])


def _rounding(config: NumericsConfig, found: Found) -> Iterator[str]:
    if config.allow_tf32:
        return
    if found.env.get("TRITON_F32_DEFAULT") != "ieee":
        yield _export(config, found, "TRITON_F32_DEFAULT", ("ieee",))
    if found.tf32:
        yield (
            "`torch.backends.cuda.matmul.allow_tf32` and `cudnn.allow_tf32` must be False, but one "
            "is True. Leave them off, or set `numerics.allow_tf32`."
        )
    for name in _FORCE_TF32:
        if found.env.get(name) == "1":
            yield (
                f"`{name}` must not be 1 at the level `{config.level}`: it rounds the inputs of "
                "matrix products to TF32. Unset it, or set `numerics.allow_tf32`."
            )


def _export(config: NumericsConfig, found: Found, name: str, allowed: tuple[str, ...]) -> str:
    value = found.env.get(name)
    return (
        f"`{name}` must be {' or '.join(allowed)} at the level `{config.level}`, but is "
        f"{'not set' if value is None else repr(value)}. Run `export {name}={allowed[0]}` before "
        "the ranks start; `boldcast train` exports it where it is not set."
    )


def cross_sample_layers(model: nn.Module) -> list[str]:
    """Return the layers whose output for a window depends on the other windows of its batch."""
    return [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]


def chosen_instructions(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what decides which CPU instructions this process uses."""
    named = {name: env.get(name, "not set") for name in _CHOOSE_INSTRUCTIONS}
    return {**named, "instruction set in use": torch.backends.cpu.get_cpu_capability()}


def chosen_kernels(device: torch.device) -> dict[str, str]:
    """Return what decides which kernels run on this process's GPU; nothing on the CPU."""
    if device.type != "cuda":
        return {}
    major, minor = torch.cuda.get_device_capability(device)
    libraries = ("torch", "triton", "mamba-ssm", "causal-conv1d")
    return {
        "GPU": torch.cuda.get_device_name(device),
        "compute capability": f"{major}.{minor}",
        **{name: _version(name) or "not installed" for name in libraries},
    }


def parted(everyone: list[dict[str, str]]) -> list[str]:
    """Return a sentence for every value that is not the same on all ranks."""
    return [
        f"`{name}` must be the same on all ranks, but is {theirs.get(name, 'absent')!r} on rank "
        f"{rank} and {everyone[0].get(name, 'absent')!r} on rank 0. Export one value on all "
        "machines, or use machines and environments of one kind."
        for rank, theirs in enumerate(everyone)
        for name in {**everyone[0], **theirs}
        if theirs.get(name) != everyone[0].get(name)
    ]


def verify(config: NumericsConfig, model: nn.Module, device: torch.device, world: World) -> None:
    """Refuse a run that cannot keep its level; all ranks decide together.

    Raises
    ------
    UsageRefused
        On every rank alike, with everything that any of them found.
    """
    if config.level == "fast":
        return
    mine = problems(config, found(device, world_size=world.world_size))
    if config.level == "exact" and (layers := cross_sample_layers(model)):
        mine.append(
            f"No layer may mix the windows of a batch at the level `exact`, but {layers[0]} "
            f"({type(model.get_submodule(layers[0])).__name__}) does. Use LayerNorm, RMSNorm or "
            "GroupNorm, or set `numerics.level` to deterministic."
        )
    facts = {"device": device.type, **chosen_instructions(), **chosen_kernels(device)}
    everyone = everyones(world, (mine, facts))
    sentences = [s for theirs, _ in everyone for s in theirs]
    sentences += parted([theirs for _, theirs in everyone])
    if sentences:
        refusal = UsageRefused(list(dict.fromkeys(sentences)))
        refusal.on_every_rank = True
        raise refusal
