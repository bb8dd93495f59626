"""Sums over the global batch whose bits do not depend on the number of ranks.

The gradient of a step is the sum of its micro-batches' gradients in the order of ``tree``. A rank
adds its own nodes as backward makes them (``nodes``), the ranks exchange shards of what is left,
each finishes the tree for its shard, and the shards are gathered (``bucket``). Collectives only
move data here, so neither the back end's algorithm nor the size of a bucket can change a bit.

A bucket is sent as soon as the last local micro-batch's backward has made all of its gradients,
while that backward goes on. Nothing waits for the device.

Bytes that the busiest rank sends, as a multiple of a ring all-reduce, 2 (W - 1) / W times the
gradient: 1 where every rank's micro-batches make one node, half of it more for each further one.

=============  =======  =======  =======  =======  =======  =======
micro-batches  2 ranks  3 ranks  4 ranks  5 ranks  6 ranks  8 ranks
=============  =======  =======  =======  =======  =======  =======
8              1.00     1.50     1.00     1.50     1.00     1.00
12             1.50     1.00     1.50     1.50     1.00     1.50
16             1.00     2.00     1.00     1.50     1.50     1.00
24             1.50     1.00     1.50     2.00     1.00     1.50
30             2.50     2.00     2.50     1.50     2.00     2.00
32             1.00     2.50     1.00     2.00     2.00     1.00
=============  =======  =======  =======  =======  =======  =======

Memory, in units of the gradient: log2 of the local micro-batches, ``grad`` included, at least 1;
up to twice as much where they are not one node. On several ranks, two buffers more: what is sent
and what is received.

Example
-------
>>> import torch
>>> from boldcast.parallel.world import World
>>> weight = torch.nn.Parameter(torch.zeros(2))
>>> total = GradientSum([weight], n_micro=2, world=World())
>>> for leaf in total.leaves:
...     with total.during(leaf):
...         (weight * (leaf + 1.0)).sum().backward()
...     total.add(leaf)
>>> total.finish(divisor=1.0)
>>> weight.grad
tensor([3., 3.])
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from boldcast.parallel.bucket import Bucket
from boldcast.parallel.nodes import Nodes
from boldcast.parallel.tree import fold, merges
from boldcast.parallel.world import World


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
    bucket_mib : float
        Size from which a bucket of gradients is sent while backward goes on; changes no bit.

    Attributes
    ----------
    leaves : range
        This rank's micro-batches.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        n_micro: int,
        world: World,
        bucket_mib: float = 25.0,
    ) -> None:
        self.parameters = list(parameters)
        self.n_micro = n_micro
        self.leaves = world.share(n_micro)
        plan = merges(n_micro, self.leaves)
        self._held = [Nodes(plan) for _ in self.parameters]
        self._leaf = self.leaves.start
        self._missing = set(range(len(self.parameters)))
        self._members = _partition(self.parameters, bucket_mib) if world.world_size > 1 else []
        self._buckets = [
            Bucket([self.parameters[index] for index in members], n_micro, world)
            for members in self._members
        ]
        self._n_sent = 0
        self._watching, self._watched = False, -1
        # a rank without micro-batches sends in `finish`; so must all, or collectives would cross
        self._early = n_micro >= world.world_size
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _hook(weakref.ref(self), index)
            )

    @contextmanager
    def during(self, leaf: int) -> Iterator[None]:
        """Take the gradients of micro-batch ``leaf`` as its backward, in the body, makes them.

        Without it ``add`` takes them afterwards: the same bits, more memory, and nothing is sent
        before the last backward has ended.
        """
        self._watching, self._watched = True, leaf
        try:
            yield
        finally:
            self._watching = False

    def add(self, leaf: int) -> None:
        """Take what backward of micro-batch ``leaf`` left, and clear every ``grad``.

        A parameter that backward did not reach counts as zero.

        Raises
        ------
        ValueError
            If ``leaf`` is not this rank's next one.
        """
        if leaf != self._leaf or leaf not in self.leaves:
            raise ValueError(f"micro-batch {leaf} does not follow: {self._leaf} is next")
        for index in sorted(self._missing):
            parameter = self.parameters[index]
            grad, parameter.grad = parameter.grad, None
            if grad is None or (self._held[index].holds(grad) and self._watched == leaf):
                grad = torch.zeros_like(parameter)
            self._take(index, grad)
        self._leaf += 1
        self._missing = set(range(len(self.parameters)))

    def finish(self, divisor: Tensor | float) -> None:
        """Write the sum over all ranks' micro-batches, over ``divisor``, into every ``grad``."""
        if self._leaf != self.leaves.stop:
            raise ValueError(f"micro-batch {self._leaf} has not been added")
        # the same type and operation on any number of ranks
        divisor = torch.as_tensor(divisor, dtype=torch.float32, device=self.parameters[0].device)
        if self._buckets:
            self._send(len(self._buckets))
            for bucket in self._buckets:
                bucket.reduce(divisor)
            for bucket in self._buckets:
                for parameter, gradient in bucket.gradients():
                    parameter.grad = gradient
        else:
            grads = [nodes.root() for nodes in self._held]
            torch._foreach_div_(grads, divisor)
            for parameter, gradient in zip(self.parameters, grads, strict=True):
                parameter.grad = gradient
        self._leaf = self.leaves.start
        self._n_sent = 0

    def _take(self, index: int, grad: Tensor) -> Tensor | None:
        """Add a parameter's gradient of the present micro-batch to those before it."""
        if index not in self._missing:
            raise ValueError(f"parameter {index} has a second gradient in one micro-batch")
        self._missing.remove(index)
        left = self._held[index].add(self._leaf, grad)
        if self._early and self._leaf == self.leaves[-1]:
            ready = self._n_sent
            while ready < len(self._buckets) and self._missing.isdisjoint(self._members[ready]):
                ready += 1
            self._send(ready)
        return left

    def _send(self, stop: int) -> None:
        """Begin to send the buckets before ``stop`` that are not under way, in their order."""
        while self._n_sent < stop:
            members = self._members[self._n_sent]
            self._buckets[self._n_sent].send([self._held[index] for index in members])
            self._n_sent += 1


def _hook(
    total: weakref.ReferenceType[GradientSum], index: int
) -> Callable[[torch.nn.Parameter], None]:
    def take(parameter: torch.nn.Parameter) -> None:
        alive = total()
        if alive is not None and alive._watching and parameter.grad is not None:
            parameter.grad = alive._take(index, parameter.grad)

    return take


def _partition(parameters: Sequence[torch.nn.Parameter], bucket_mib: float) -> list[list[int]]:
    """Part the parameters' indices into buckets, last first, as backward reaches them."""
    buckets: list[list[int]] = []
    room = 0.0
    for index in reversed(range(len(parameters))):
        if room <= 0:
            buckets.append([])
            room = bucket_mib * 2**20
        buckets[-1].append(index)
        room -= parameters[index].numel() * 4
    return buckets


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
    dist.all_gather_single(gathered, padded)
    parts = gathered.view(world.world_size, longest, rows.shape[1])
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def sum_rows(rows: Tensor) -> Tensor:
    """Add the rows of a float64 tensor (n, n_columns) in the canonical order, on its device."""
    total: Tensor = fold(len(rows), (((i, i + 1), row.clone()) for i, row in enumerate(rows)))
    return total
