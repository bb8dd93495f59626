"""Small agreements between ranks, so that none acts alone and leaves the others waiting.

Example
-------
>>> from boldcast.parallel.world import World
>>> from_rank_zero(World(), lambda: "prepared")
'prepared'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from boldcast.errors import BoldcastError
from boldcast.parallel.world import World

T = TypeVar("T")


def from_rank_zero(world: World, work: Callable[[], T]) -> T:
    """Do ``work`` on rank 0 alone and return its result, or raise its refusal, on every rank.

    Parameters
    ----------
    work : callable
        Returns something small that pickles.

    Raises
    ------
    BoldcastError
        What ``work`` raised on rank 0. Any other exception of rank 0 is raised there, and the
        others raise a ``BoldcastError`` that names it.
    """
    if world.world_size == 1:
        return work()
    outcome: list[object] = [None, None]
    if world.is_rank_zero:
        try:
            outcome[0] = work()
        except BoldcastError as error:
            error.on_every_rank = True
            outcome[1] = error
        except Exception as error:
            outcome[1] = repr(error)
            dist.broadcast_object_list(outcome, src=0)
            raise
    dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[1], BoldcastError):
        raise outcome[1]
    if outcome[1] is not None:
        raise BoldcastError(f"Rank 0 failed: {outcome[1]}")
    return outcome[0]  # type: ignore[return-value]


def any_rank(world: World, flag: bool, device: torch.device) -> bool:
    """Tell every rank whether ``flag`` holds on any of them."""
    if world.world_size == 1:
        return flag
    found = torch.tensor(int(flag), device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


def everyones(world: World, value: T) -> list[T]:
    """Return the ``value`` of every rank, in their order, on every rank; it must pickle."""
    if world.world_size == 1:
        return [value]
    values: list[T | None] = [None] * world.world_size
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]
