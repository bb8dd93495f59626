"""The gradients of some parameters on their way through the ranks.

Every rank sends shard s of each of its nodes to rank s (``all_to_all``), which finishes the tree
for that shard, divides, and returns it to all (``all_gather``). Two buffers are kept from step to
step: what is sent, and the sum after it, ``max(1, own nodes)`` times the bucket's size; and what
is received, the mean number of nodes per rank times its size.

Example
-------
::

    bucket.send(held)             # begins; backward may go on
    bucket.reduce(divisor)        # waits, adds, begins to gather
    for parameter, gradient in bucket.gradients():
        parameter.grad = gradient
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from boldcast.parallel.nodes import Nodes
from boldcast.parallel.tree import cover, fold
from boldcast.parallel.world import World, share

ALIGNMENT = 16
"""Elements (64 bytes) at whose multiples every gradient begins, as in memory of its own: kernels
that read several elements at once add in another order where they cannot."""

Cut = tuple[int, int, int]


class Bucket:
    """Sums the gradients of ``parameters`` over all micro-batches of all ranks.

    Parameters
    ----------
    parameters : sequence of Parameter
        float32, on one device.
    n_micro : int
        Micro-batches of the global batch; rank r has the nodes that cover its share.
    world : World
        At least two ranks.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], n_micro: int, world: World
    ) -> None:
        self.parameters = list(parameters)
        self._n_micro = n_micro
        n_ranks = world.world_size
        sizes = [size for p in self.parameters for size in (p.numel(), -p.numel() % ALIGNMENT)]
        self._ends = list(accumulate(sizes))[::2]
        self.shard = -(-sum(sizes) // n_ranks)
        covers = [cover(n_micro, share(n_micro, n_ranks, rank)) for rank in range(n_ranks)]
        self._nodes = [node for each in covers for node in each]
        self._n_own = len(covers[world.rank])
        self.send_sizes = [self._n_own * self.shard] * n_ranks
        self.receive_sizes = [len(each) * self.shard for each in covers]
        self._cuts = [cuts(sizes, rank * self.shard, self.shard) for rank in range(n_ranks)]
        like = self.parameters[0]
        self._sent = torch.zeros(max(1, self._n_own) * n_ranks * self.shard, device=like.device)
        self._received = torch.zeros(sum(self.receive_sizes), device=like.device)
        self._sum = self._sent[: n_ranks * self.shard]
        self._work: dist.Work | None = None

    def send(self, held: Sequence[Nodes]) -> None:
        """Begin to send this rank's nodes, which are cleared.

        Parameters
        ----------
        held : sequence of Nodes
            One per parameter.
        """
        sent = self._sent[: sum(self.send_sizes)]
        if self._n_own:
            torch.cat(self._in_order(held), out=sent)
        for nodes in held:
            nodes.clear()
        self._work = dist.all_to_all_single(
            self._received, sent, self.receive_sizes, self.send_sizes, async_op=True
        )

    def reduce(self, divisor: Tensor) -> None:
        """Finish the tree for this rank's shard, divide it, and begin to gather the shards."""
        self._wait()
        mine = fold(
            self._n_micro, zip(self._nodes, self._received.view(-1, self.shard), strict=True)
        )
        torch._foreach_div_([mine], divisor)
        self._work = dist.all_gather_single(self._sum, mine, async_op=True)

    def gradients(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        """Wait for the sum and yield each parameter's part, a view that ``send`` overwrites."""
        self._wait()
        for parameter, end in zip(self.parameters, self._ends, strict=True):
            yield parameter, self._sum[end - parameter.numel() : end].view_as(parameter)

    def _in_order(self, held: Sequence[Nodes]) -> list[Tensor]:
        """Return what is sent to rank 0, to rank 1 ..., node after node within each."""
        fill = [self._sent.new_zeros(ALIGNMENT)] * self._n_own
        flat = [row for nodes in held for row in ([v.reshape(-1) for v in nodes.values], fill)]
        pieces: list[Tensor] = []
        for part in self._cuts:
            short = self.shard - sum(stop - start for _, start, stop in part)
            for node in range(self._n_own):
                pieces += [flat[index][node][start:stop] for index, start, stop in part]
                if short:
                    pieces.append(self._sent.new_zeros(short))
        return pieces

    def _wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._work = None


def cuts(sizes: Sequence[int], start: int, length: int) -> list[Cut]:
    """Return which elements of which of consecutive arrays lie in ``[start, start + length)``.

    Returns
    -------
    list of (index, first, stop)
        Elements first to stop - 1 of array ``index``.

    Example
    -------
    >>> cuts([3, 4], 2, 3)
    [(0, 2, 3), (1, 0, 2)]
    """
    found: list[Cut] = []
    begin = 0
    for index, size in enumerate(sizes):
        first, stop = max(start - begin, 0), min(start + length - begin, size)
        if first < stop:
            found.append((index, first, stop))
        begin += size
    return found
