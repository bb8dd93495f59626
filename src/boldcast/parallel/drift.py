"""A digest of the weights in integers on their own device, and the guard that compares ranks by it.

Ranks add the same gradient to the same weights, so they stay equal to the bit; a fault of memory or
of a chip on one of them would go on unnoticed, and into a checkpoint if it is rank 0's. The digest
is a sum modulo 2**64 over the bit patterns, each times an odd number that depends on its place:
integer addition has no order, so no kernel and no block size can change it; an odd factor keeps
every bit, so a single flipped bit always changes it; and only 8 bytes leave the device.

Example
-------
>>> model = torch.nn.Linear(2, 2)
>>> before = int(weights_digest(model))
>>> with torch.no_grad():
...     _ = model.weight[0, 0].neg_()
>>> before == int(weights_digest(model))
False
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from boldcast.errors import BoldcastError
from boldcast.parallel.world import World

_BLOCK = 1 << 14
_SLAB = 256
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_digest(model: nn.Module) -> Tensor:
    """Return one number for the bits of all parameters and buffers.

    Parameters
    ----------
    model : nn.Module
        Unwrapped; the order of its ``state_dict`` counts, the names do not.

    Returns
    -------
    Tensor, shape (), int64
        On the model's device.
    """
    return _combined(digests(list(model.state_dict().values())))


def digests(tensors: Sequence[Tensor]) -> Tensor:
    """Return a number for the bits of each tensor.

    Returns
    -------
    Tensor, shape (n_tensors,), int64
        On the device of the tensors.
    """
    odd = _odd(_BLOCK, tensors[0].device)
    return torch.stack([_digest(tensor.detach(), odd) for tensor in tensors])


def refuse_drift(
    model: nn.Module, optimizer: torch.optim.Optimizer, world: World, step: int
) -> None:
    """Compare weights and optimizer state over the ranks.

    Nothing is compared on one rank, nor where each rank holds a part of its own.

    Parameters
    ----------
    model : nn.Module
        Unwrapped.
    step : int
        Steps done, for the message.

    Raises
    ------
    BoldcastError
        On every rank alike, if any two differ in a bit; names the rank and the tensors.
    """
    if world.world_size == 1:
        return
    named = _state(model, optimizer)
    if any(isinstance(tensor, DTensor) for tensor in named.values()):
        return
    mine = digests(list(named.values()))
    total = _combined(mine).view(1)
    everyone = total.new_empty(world.world_size)
    dist.all_gather_single(everyone, total)
    values: list[int] = everyone.tolist()
    if len(set(values)) == 1:
        return
    table = mine.new_empty(world.world_size * len(mine))
    dist.all_gather_single(table, mine)
    error = BoldcastError(_sentence(values, table.view(len(values), -1), list(named), step))
    error.on_every_rank = True
    raise error


def _sentence(values: list[int], table: Tensor, names: list[str], step: int) -> str:
    right, votes = Counter(values).most_common(1)[0]
    if 2 * votes <= len(values):  # no majority: rank 0 is the measure, not the judge
        right = values[0]
    against = values.index(right)
    drifted = [rank for rank, value in enumerate(values) if value != right]
    differs = (table[drifted] != table[against]).any(dim=0).tolist()
    bad = [name for name, other in zip(names, differs, strict=True) if other]
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    tie = " Which of them is wrong, two cannot tell." if 2 * votes <= len(values) else ""
    return (
        f"After step {step} rank {', '.join(map(str, drifted))} holds other bits than rank "
        f"{against} in {', '.join(bad[:3])}{more}.{tie} Ranks that train together stay equal, so "
        "memory, a chip or an instruction set differs. No checkpoint was written of this. The same "
        "command continues from the last one; if it happens again, leave that machine out."
    )


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and optimizer tensors by name, in an order that all ranks share."""
    named: dict[str, Tensor] = dict(model.state_dict())
    device = next(model.parameters()).device
    for name, parameter in model.named_parameters():
        for quantity, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, Tensor) and value.device == device:
                named[f"{name}/{quantity}"] = value
    return named


def _digest(tensor: Tensor, odd: Tensor) -> Tensor:
    bits = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    whole = len(bits) // _BLOCK
    total = (bits[whole * _BLOCK :] * odd[: len(bits) - whole * _BLOCK]).sum()
    blocks = bits[: whole * _BLOCK].view(whole, _BLOCK)
    for first in range(0, whole, _SLAB):
        rows = (blocks[first : first + _SLAB] * odd).sum(dim=1)
        places = torch.arange(first + 1, first + len(rows) + 1, device=rows.device)
        total = total + (rows * (2 * places + 1)).sum()
    return total


def _combined(each: Tensor) -> Tensor:
    return (each * _odd(len(each), each.device)).sum()


def _odd(n: int, device: torch.device) -> Tensor:
    """Return ``n`` odd numbers that look random, int64 (n,).

    Source: the finalizer of SplitMix64 (Steele, Lea and Flood 2014), without its last shift.
    """
    places = torch.arange(1, n + 1, device=device) * -7046029254386353131
    places = (places ^ (places >> 30)) * -4658895280553007687
    return (places ^ (places >> 27)) * -7723592293110705685 | 1
