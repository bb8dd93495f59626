"""Sums over the global batch whose bits do not depend on the number of ranks.

The gradient of a step is the sum of its micro-batches' gradients in the order of ``tree``. A rank
adds its own nodes, the ranks exchange shards of what is left (``all_to_all``), each finishes the
tree for its shard, and the shards are gathered: 2 (W - 1) / W times the gradient per rank, as a
ring all-reduce, when every rank's micro-batches make one node (their number and the world size
powers of two); each further node of a rank adds (W - 1) / W of the gradient to what it sends.
Collectives only move data here, so neither the back end's algorithm nor its buffer sizes can
change a bit.

Example
-------
>>> import torch
>>> from boldcast.parallel.world import World
>>> weight = torch.nn.Parameter(torch.zeros(2))
>>> total = GradientSum([weight], n_micro=2, world=World())
>>> for leaf in total.leaves:
...     (weight * (leaf + 1.0)).sum().backward()
...     total.add(leaf)
>>> total.finish(divisor=1.0)
>>> weight.grad
tensor([3., 3.])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from boldcast.parallel.tree import Accumulator, Node, cover, fold
from boldcast.parallel.world import World, share


class GradientSum:
    """Adds the gradients of a global batch's micro-batches in canonical order.

    Parameters
    ----------
    parameters : sequence of Parameter
        What is trained; float32, all on one device.
    n_micro : int
        Micro-batches of the global batch, over all ranks.
    world : World
        This process's place. Rank r owns ``world.share(n_micro)``.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], n_micro: int, world: World
    ) -> None:
        self.parameters = list(parameters)
        self.n_micro = n_micro
        self.world = world
        self.leaves = world.share(n_micro)
        self.covers = [
            cover(n_micro, share(n_micro, world.world_size, r)) for r in range(world.world_size)
        ]
        self.size = sum(p.numel() for p in self.parameters)
        self.shard = -(-self.size // world.world_size)
        self._nodes: Accumulator[Tensor] = Accumulator(n_micro)
        self._free: list[Tensor] = []

    def add(self, leaf: int) -> None:
        """Take the parameters' ``grad`` as the gradient of micro-batch ``leaf`` and clear it."""
        flat = self._take_buffer()
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        torch.cat([g.reshape(-1) for g in grads], out=flat[: self.size])
        for parameter in self.parameters:
            parameter.grad = None
        held = [value for _, value in self._nodes.nodes]
        self._nodes.add((leaf, leaf + 1), flat)
        kept = [value for _, value in self._nodes.nodes]
        self._free += [b for b in [*held, flat] if not any(b is k for k in kept)]

    def finish(self, divisor: Tensor | float) -> None:
        """Write the sum over all ranks' micro-batches, over ``divisor``, into every ``grad``."""
        nodes, self._nodes = self._nodes.nodes, Accumulator(self.n_micro)
        total = self._across_ranks(nodes) if self.world.world_size > 1 else nodes[0][1]
        self._free += [value for _, value in nodes if value is not total]
        total /= divisor
        start = 0
        for parameter in self.parameters:
            piece = total[start : start + parameter.numel()]
            parameter.grad = piece.view_as(parameter)
            start += parameter.numel()
        self._free = [*self._free, total][-2 - self.n_micro.bit_length() :]

    def _across_ranks(self, nodes: list[tuple[Node, Tensor]]) -> Tensor:
        n_ranks, shard = self.world.world_size, self.shard
        like = self.parameters[0]
        send = torch.empty((n_ranks, len(nodes), shard), device=like.device)
        for index, (_, value) in enumerate(nodes):
            send[:, index] = value.view(n_ranks, shard)
        sizes = [len(c) * shard for c in self.covers]
        received = torch.empty(sum(sizes), device=like.device)
        dist.all_to_all_single(received, send.view(-1), sizes, [len(nodes) * shard] * n_ranks)
        all_nodes = [node for c in self.covers for node in c]
        mine = fold(self.n_micro, zip(all_nodes, received.view(-1, shard), strict=True))
        total = self._take_buffer()
        dist.all_gather_into_tensor(total, mine.contiguous())
        return total

    def _take_buffer(self) -> Tensor:
        if self._free:
            return self._free.pop()
        padded = self.shard * self.world.world_size
        return torch.zeros(padded, device=self.parameters[0].device)


def gather_rows(rows: Tensor, counts: Sequence[int], world: World) -> Tensor:
    """Put every rank's rows together, in the order of the ranks.

    Parameters
    ----------
    rows : Tensor, shape (counts[world.rank], n_columns)
        This rank's part; ranks' parts are consecutive.
    counts : sequence of int
        How many rows each rank has.

    Returns
    -------
    Tensor, shape (sum(counts), n_columns)
        The same on every rank.
    """
    if world.world_size == 1:
        return rows
    longest = max(counts)
    padded = rows.new_zeros((longest, rows.shape[1]))
    padded[: len(rows)] = rows
    gathered = rows.new_empty((world.world_size * longest, rows.shape[1]))
    dist.all_gather_into_tensor(gathered, padded)
    parts = gathered.view(world.world_size, longest, rows.shape[1])
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def sum_rows(rows: Tensor) -> Tensor:
    """Add the rows of a float64 tensor (n, n_columns) in the canonical order, on its device."""
    total: Tensor = fold(len(rows), (((i, i + 1), row.clone()) for i, row in enumerate(rows)))
    return total
