"""One parameter's share of the tree: the gradients that this rank has added so far.

A left leaf stays in the parameter's ``grad``, where autograd adds the right one to it while that
is in the cache: as cheap as torch's own accumulation, and the same order. Buffers are kept from
step to step, because fresh memory costs more than the addition.

Example
-------
>>> import torch
>>> from boldcast.parallel.tree import merges
>>> nodes = Nodes(merges(4, range(3)))
>>> for leaf in range(3):
...     left = nodes.add(leaf, torch.tensor([1.0 + leaf]))
>>> nodes.values
[tensor([3.]), tensor([3.])]
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Nodes:
    """Adds the micro-batch gradients of one parameter in canonical order.

    Parameters
    ----------
    plan : mapping
        Additions that follow each leaf; from ``tree.merges``.

    Attributes
    ----------
    values : list of Tensor
        The nodes that cannot be added to each other yet, left to right.
    """

    def __init__(self, plan: Mapping[int, int]) -> None:
        self.values: list[Tensor] = []
        self._plan = plan
        self._owned: list[bool] = []
        self._spare: list[Tensor] = []

    def add(self, leaf: int, gradient: Tensor) -> Tensor | None:
        """Take the gradient of micro-batch ``leaf``, or the left leaf that has it added already.

        Returns
        -------
        Tensor or None
            What the parameter's ``grad`` must be when the next micro-batch begins.

        Notes
        -----
        What autograd made is never written to: it may be the memory of another parameter's
        gradient, too, and torch's own accumulation then adds everything twice.
        """
        n_additions = self._plan[leaf]
        if self.holds(gradient):
            n_additions -= 1
        elif n_additions == 0 and self._plan.get(leaf + 1):
            left = self._buffer(gradient).copy_(gradient)
            self._append(left, owned=True)
            return left
        else:
            self._append(gradient, owned=False)
        for _ in range(n_additions):
            right, owned = self.values.pop(), self._owned.pop()
            self.values[-1] += right
            if owned:
                self._spare.append(right)
        return None

    def holds(self, value: Tensor) -> bool:
        """Tell whether ``value`` is the left leaf that ``add`` returned."""
        return bool(self.values) and value is self.values[-1]

    def root(self) -> Tensor:
        """Return the sum over all leaves; its memory is written to again with the next sum."""
        (value,), (owned,) = self.values, self._owned
        if not owned:
            self.values, self._owned = [], []
            self._append(self._buffer(value).copy_(value), owned=True)
        (total,) = self.values
        self.clear()
        return total

    def clear(self) -> None:
        """Begin a new sum."""
        pairs = zip(self.values, self._owned, strict=True)
        self._spare += [value for value, owned in pairs if owned]
        self.values, self._owned = [], []

    def _append(self, value: Tensor, owned: bool) -> None:
        self.values.append(value)
        self._owned.append(owned)

    def _buffer(self, like: Tensor) -> Tensor:
        return self._spare.pop() if self._spare else torch.empty_like(like)
