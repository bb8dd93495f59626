"""What a run is beside its tensors, how it ended, and where a checkpoint was made.

Example
-------
>>> TrainState().step
0
>>> here = {"world_size": 2, "strategy": "ddp", "device": "cpu", "processor": "AVX2"}
>>> promises_same_bits("exact", here | {"world_size": 1, "strategy": "single"}, here)
True
>>> promises_same_bits("exact", here | {"processor": "AVX512"}, here)
False
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from boldcast.parallel.agree import everyones
from boldcast.parallel.world import World


@dataclass
class TrainState:
    """All that a run is, beside its weights and the optimizer's tensors."""

    step: int = 0
    """Optimizer steps done; the place in the data follows from it."""

    history: dict[str, list[Any]] = field(
        default_factory=lambda: {"step": [], "val_loss": [], "per_horizon": []}
    )
    """Held-out losses so far."""

    best_step: int | None = None
    """The step with the lowest held-out loss."""


@dataclass(frozen=True)
class Outcome:
    """How ``fit`` ended."""

    status: Literal["completed", "stopped"]
    state: TrainState


def place(world: World, strategy: str, device: torch.device) -> dict[str, Any]:
    """Return what decides a run's bits beside its configuration; every rank must call this.

    Returns
    -------
    dict
        ``world_size`` and ``strategy``; ``device``, its type; ``processor``, the GPUs' names or
        the instructions that torch uses on the CPUs; ``kernels`` of the mixer; ``torch``, its
        version.
    """
    on_gpu = device.type == "cuda"
    own = torch.cuda.get_device_name(device) if on_gpu else torch.backends.cpu.get_cpu_capability()
    return {
        "world_size": world.world_size,
        "strategy": strategy,
        "device": device.type,
        "processor": " and ".join(sorted(set(everyones(world, own)))),
        "kernels": _kernels() if on_gpu else "boldcast",
        "torch": torch.__version__,
    }


def promises_same_bits(level: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Tell whether a run moved from one place to another keeps an undisturbed run's bits.

    At ``exact`` neither the number of ranks nor the strategy matters; everything else does.
    """
    return not _changed(level, before, now)


def change_in_words(level: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the sentence for the user when the bits are not promised."""
    changed = _changed(level, before, now)
    return (
        f"note: {_in_words(before, changed)} wrote it and {_in_words(now, changed)} "
        f"{'go' if now['world_size'] > 1 else 'goes'} on: at the level {level} the bits may differ "
        "from an undisturbed run's."
    )


def _changed(level: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    free = {"world_size", "strategy"} if level == "exact" else set()
    return [name for name in now if name not in free and before.get(name) != now[name]]


def _in_words(place: Mapping[str, Any], changed: list[str]) -> str:
    n = place["world_size"]
    details = [place["strategy"]]
    details += [
        f"{name} {place.get(name, 'not recorded')}"
        for name in changed
        if name not in ("world_size", "strategy")
    ]
    return f"{n} rank{'s' if n > 1 else ''} ({', '.join(details)})"


def _kernels() -> str:
    compiled = importlib.util.find_spec("causal_conv1d") is not None
    return f"mamba_ssm, {'causal_conv1d' if compiled else 'no causal_conv1d'}"
