"""The canonical order against its recursive definition, written a second time here."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boldcast.parallel.tree import Accumulator, cover, fold, merges


def recursive_sum(values):
    """Split off the largest power of two below the length, and add the two sums."""
    if len(values) == 1:
        return values[0]
    left = 1
    while left * 2 < len(values):
        left *= 2
    return recursive_sum(values[:left]) + recursive_sum(values[left:])


def leaves_of(n, seed=0):
    # magnitudes far apart, so that any other order gives other bits
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-1, 2, n)).astype(np.float32)


@st.composite
def partitions(draw):
    n = draw(st.integers(1, 70))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=8)))
    return n, [range(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


@given(partitions())
def test_any_partition_into_ranks_gives_the_bits_of_the_definition(case):
    n, ranks = case
    leaves = leaves_of(n)
    nodes = []
    for owned in ranks:
        mine = Accumulator(n)
        for leaf in owned:
            mine.add((leaf, leaf + 1), leaves[leaf])
        assert [node for node, _ in mine.nodes] == cover(n, owned)
        nodes += mine.nodes
    assert fold(n, nodes).tobytes() == recursive_sum(leaves).tobytes()


def test_the_order_matters_for_these_leaves():
    leaves = leaves_of(33)
    assert sum(leaves[1:], leaves[0]).tobytes() != recursive_sum(leaves).tobytes()


@given(st.integers(1, 500))
def test_at_most_log2_nodes_are_held(n):
    accumulator = Accumulator(n)
    for leaf in range(n):
        accumulator.add((leaf, leaf + 1), 0.0)
        assert len(accumulator.nodes) <= n.bit_length()


@given(st.integers(1, 200), st.data())
def test_cover_is_disjoint_complete_and_short(n, data):
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    nodes = cover(n, range(start, stop))
    assert [leaf for lo, hi in nodes for leaf in range(lo, hi)] == list(range(start, stop))
    assert len(nodes) <= 2 * n.bit_length()


@given(partitions())
def test_the_plan_of_merges_ends_in_the_cover(case):
    n, ranks = case
    for owned in ranks:
        plan = merges(n, owned)
        assert list(plan) == list(owned)
        held = []
        for leaf, n_additions in plan.items():
            held.append((leaf, leaf + 1))
            for _ in range(n_additions):
                (_, hi), (lo, _) = held.pop(), held.pop()
                held.append((lo, hi))
        assert held == cover(n, owned)


def test_a_gap_or_a_missing_end_is_refused():
    with pytest.raises(ValueError, match="does not follow"):
        fold(4, [((0, 1), 1.0), ((2, 3), 1.0)])
    with pytest.raises(ValueError, match="are not the tree over 4 leaves"):
        fold(4, [((0, 2), 1.0)])
