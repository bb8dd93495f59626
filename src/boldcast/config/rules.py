"""What a setting may hold, beyond its type: bounds, and answers to values known from elsewhere.

Example
-------
>>> Range(0.0, 1.0).high
1.0
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number; with ``above``, the lower bound itself is not allowed."""

    low: float | None = None
    high: float | None = None
    above: bool = False


@dataclass(frozen=True)
class Each:
    """The bounds of every element of a list, and whether the list must rise strictly."""

    bounds: Range
    ascending: bool = False
    min_length: int = 0


@dataclass(frozen=True)
class Instead:
    """Values that users of other trainers try, each with what to do here instead."""

    answers: tuple[tuple[str, str], ...]


_WHOLE_MODEL = (
    "A rank computes the whole model here: tensor, pipeline and other model parallelism are not "
    "supported. Use fsdp2 to share out a model that does not fit."
)

ELSEWHERE = Instead(
    (
        *((name, _WHOLE_MODEL) for name in ("tp", "tensor", "pp", "pipeline", "cp", "ep", "3d")),
        ("fsdp", "Use fsdp2, its successor in torch."),
        ("dp", "Use ddp: one process per GPU."),
        ("deepspeed", "Use fsdp2, which shares out the same state."),
    )
)
"""Strategies of other trainers."""
