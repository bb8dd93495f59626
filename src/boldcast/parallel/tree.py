"""The one order in which the micro-batches of a global batch are added.

Floating-point addition is not associative, so a sum has the same bits on every number of ranks
only if its order is fixed. The order here is a binary tree over the micro-batch index: a node
covers ``[lo, hi)``, and its left child the largest power of two of leaves that is smaller than
``hi - lo``. Every rank owns a contiguous range of leaves and can add whatever nodes lie wholly
inside it; the rest of the tree is finished from those nodes by anyone who holds them.

Example
-------
>>> cover(6, range(0, 3))
[(0, 2), (2, 3)]
>>> fold(6, [((0, 2), 1.0), ((2, 3), 2.0), ((3, 4), 4.0), ((4, 6), 8.0)])
15.0
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

Node = tuple[int, int]


class Addable(Protocol):
    """Anything with a sum: a float, an array, a tensor."""

    def __add__(self: T, other: T, /) -> T: ...


T = TypeVar("T", bound=Addable)


def middle(lo: int, hi: int) -> int:
    """Return where the node ``[lo, hi)`` of at least two leaves parts into its children."""
    return lo + (1 << ((hi - lo - 1).bit_length() - 1))


def cover(n: int, leaves: range) -> list[Node]:
    """Return, left to right, the largest nodes of the tree over ``n`` leaves inside ``leaves``."""

    def inside(lo: int, hi: int) -> list[Node]:
        if hi <= leaves.start or leaves.stop <= lo:
            return []
        if leaves.start <= lo and hi <= leaves.stop:
            return [(lo, hi)]
        mid = middle(lo, hi)
        return inside(lo, mid) + inside(mid, hi)

    return inside(0, n) if n and leaves else []


class Accumulator(Generic[T]):
    """Adds consecutive leaves as they come, holding only nodes that cannot be merged yet.

    At most about log2 of the leaves added are held at a time. Values are added into the left
    one, which the accumulator therefore owns.

    Parameters
    ----------
    n : int
        Leaves of the whole tree.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.nodes: list[tuple[Node, T]] = []

    def add(self, node: Node, value: T) -> None:
        """Append ``node``'s value; it must begin where the last one ended."""
        self.nodes.append((node, value))
        while len(self.nodes) > 1:
            (lo, mid), left = self.nodes[-2]
            (start, hi), right = self.nodes[-1]
            if start != mid:
                raise ValueError(f"node {node} does not follow {self.nodes[-2][0]}")
            if not self._is_node(lo, hi) or middle(lo, hi) != mid:
                break
            left += right  # in place for tensors: no third buffer
            self.nodes[-2:] = [((lo, hi), left)]

    def _is_node(self, lo: int, hi: int) -> bool:
        return cover(self.n, range(lo, hi)) == [(lo, hi)]


def merges(n: int, leaves: range) -> dict[int, int]:
    """Say how many additions of the two last values held follow each of ``leaves``.

    Example
    -------
    >>> merges(4, range(4))
    {0: 0, 1: 1, 2: 0, 3: 2}
    """
    accumulator: Accumulator[int] = Accumulator(n)
    plan: dict[int, int] = {}
    for leaf in leaves:
        before = len(accumulator.nodes)
        accumulator.add((leaf, leaf + 1), 1)
        plan[leaf] = before + 1 - len(accumulator.nodes)
    return plan


def fold(n: int, nodes: Iterable[tuple[Node, T]]) -> T:
    """Finish the tree over ``n`` leaves from consecutive ``nodes`` that cover all of them.

    Raises
    ------
    ValueError
        If the nodes leave a gap or do not cover every leaf.
    """
    accumulator: Accumulator[T] = Accumulator(n)
    for node, value in nodes:
        accumulator.add(node, value)
    if [node for node, _ in accumulator.nodes] != [(0, n)]:
        covered = [node for node, _ in accumulator.nodes]
        raise ValueError(f"nodes {covered} are not the tree over {n} leaves")
    return accumulator.nodes[0][1]
