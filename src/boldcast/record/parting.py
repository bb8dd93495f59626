"""Walk along two traces to the first step, quantity and tensor in which they differ.

Only one line of each is held at a time. Quantities are looked at in the order in which a step
computes them, so that the first one to differ says which part of the step did.

Example
-------
>>> along(Path("runs/a/trace.jsonl"), Path("runs/b/trace.jsonl")).parting   # doctest: +SKIP
Parting(step=37, quantity='grad_norm', ...)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused
from boldcast.record.trace import GENESIS, each_line

_ORDER = ("lr", "loss", "grad_norm", "weights")
_HINTS = {
    "lr": "the schedules differ: look at the configuration",
    "loss": "the data, the weights before the step or the forward pass parted",
    "grad_norm": "the loss still agreed: the backward pass or the sum over ranks parted",
    "weights": "loss and gradient norm still agreed: the gradients or the optimizer parted",
}


@dataclass(frozen=True)
class Parting:
    """The first step whose lines differ, and the first quantity in it that does."""

    step: int
    quantity: str
    a: Any
    b: Any
    relative: float | None
    """Difference over the larger absolute value, where both are numbers."""
    ulp: int | None
    """Representable numbers between them, in float32 where both are of that type."""
    hint: str


@dataclass(frozen=True)
class FirstTensor:
    """The first tensor, by name, that the traces' own digests show to differ, and where."""

    step: int
    name: str
    n_differ: int
    n_tensors: int


@dataclass(frozen=True)
class Traces:
    """What walking along both traces found; ``steps`` counts the lines of each."""

    steps: tuple[int, int] = (0, 0)
    chains: tuple[str, str] = (GENESIS, GENESIS)
    parting: Parting | None = None
    tensor: FirstTensor | None = None


def along(a: Path, b: Path) -> Traces:
    """Walk along two traces together, up to the first tensor known to differ."""
    found = Traces()
    for one, other in zip_longest(each_line(a), each_line(b)):
        found = replace(found, steps=_last(found.steps, one, other))
        found = replace(found, chains=_links(found.chains, one, other))
        if one is None or other is None:
            if found.parting:
                break
            continue
        if found.parting is None:
            found = replace(found, parting=_parting(one, other))
        if found.parting and found.tensor is None:
            found = replace(found, tensor=_tensor(one, other))
        if found.tensor:
            break
    return found


def _last(steps: tuple[int, int], one: Any, other: Any) -> tuple[int, int]:
    return (one["step"] if one else steps[0], other["step"] if other else steps[1])


def _links(chains: tuple[str, str], one: Any, other: Any) -> tuple[str, str]:
    return (one["chain"] if one else chains[0], other["chain"] if other else chains[1])


def _parting(one: Mapping[str, Any], other: Mapping[str, Any]) -> Parting | None:
    """Compare what both lines hold; what only one version of the trace records is no difference."""
    if one["step"] != other["step"]:
        raise DataRefused(
            f"Two traces must begin at the same step to be compared, but one has step "
            f"{one['step']} where the other has {other['step']}. Give two whole traces."
        )
    shared = (set(one) & set(other)) - {"step", "chain"}
    order = [name for name in _ORDER if name in shared]
    for name in order + sorted(shared - set(order)):
        if one[name] != other[name]:
            relative, ulp = _apart(one[name], other[name])
            hint = _HINTS.get(name, "")
            return Parting(one["step"], name, one[name], other[name], relative, ulp, hint)
    return None


def _tensor(one: Mapping[str, Any], other: Mapping[str, Any]) -> FirstTensor | None:
    a, b = one.get("tensors"), other.get("tensors")
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return None
    names = sorted({*a, *b})
    differing = [name for name in names if a.get(name) != b.get(name)]
    if not differing:
        return None
    return FirstTensor(one["step"], differing[0], len(differing), len(names))


def _apart(one: Any, other: Any) -> tuple[float | None, int | None]:
    """Return the relative difference and the ULP between two hex floats of the trace."""
    try:
        if "0x" not in one or "0x" not in other:  # a digest, not a number
            return None, None
        a, b = float.fromhex(one), float.fromhex(other)
        if not (abs(a) < float("inf") and abs(b) < float("inf")):
            return None, None
        relative = abs(a / 2 - b / 2) / max(abs(a), abs(b)) * 2 if a != b else 0.0
        for form, bits in (("f", "I"), ("d", "Q")):
            if all(form == "d" or _is_float32(value) for value in (a, b)):
                return relative, abs(_order(a, form, bits) - _order(b, form, bits))
    except (TypeError, ValueError, OverflowError):
        pass
    return None, None


def _is_float32(value: float) -> bool:
    return bool(abs(value) < 3.4e38 and struct.unpack("f", struct.pack("f", value))[0] == value)


def _order(value: float, form: str, bits: str) -> int:
    """Return the place of a float among all of its type."""
    (number,) = struct.unpack(f"={bits}", struct.pack(f"={form}", value))
    sign = 1 << (8 * struct.calcsize(f"={bits}") - 1)
    return -int(number ^ sign) - 1 if number & sign else int(number)
