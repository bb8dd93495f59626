"""Order: every window once an epoch, another order each epoch, any place found at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boldcast.data.order import Order, permuted

WORD = 1 << 64
GAMMA = 0x9E3779B97F4A7C15


def splitmix(word: int) -> int:
    """SplitMix64's output function after one increment, from its publication, in plain integers."""
    word = (word + GAMMA) % WORD
    word = ((word ^ word // 2**30) * 0xBF58476D1CE4E5B9) % WORD
    word = ((word ^ word // 2**27) * 0x94D049BB133111EB) % WORD
    return word ^ word // 2**31


def slow(seed: int, epoch: int, position: int, n: int) -> int:
    """The same permutation one number at a time, without numpy."""
    half = 3
    while 4**half < n:
        half += 1
    side = 2**half
    state = splitmix(splitmix(seed) ^ epoch)
    value = position
    while True:
        left, right = divmod(value, side)
        for number in range(1, 9):
            key = splitmix((state + number * GAMMA) % WORD)
            left, right = right, left ^ splitmix(right ^ key) % side
        value = left * side + right
        if value < n:
            return value


def test_splitmix_is_the_published_generator() -> None:
    # First outputs of SplitMix64 seeded with 1234567, as published with its reference code.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix(state))
        state = (state + GAMMA) % WORD
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(n=st.integers(1, 700), seed=st.integers(0, 2**53), epoch=st.integers(0, 2**40))
def test_every_window_exactly_once(n: int, seed: int, epoch: int) -> None:
    found = permuted(seed, epoch, np.arange(n), n)
    assert np.array_equal(np.sort(found), np.arange(n))


@given(
    n=st.integers(1, 2**62),
    seed=st.integers(0, 2**53),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_equals_the_slow_form_at_any_size(
    n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, n - 1))
    found = permuted(seed, epoch, np.array([position]), n)
    assert found.dtype == np.int64
    assert int(found[0]) == slow(seed, epoch, position, n)


def test_pinned_order() -> None:
    expected = [slow(7, 3, position, 10) for position in range(10)]
    assert permuted(7, 3, np.arange(10), 10).tolist() == expected
    assert sorted(expected) == list(range(10))
    assert expected == [8, 1, 4, 9, 0, 7, 5, 2, 3, 6]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(permuted(seed, epoch, np.arange(100), 100).tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


def test_small_keys_are_not_swapped() -> None:
    # A key of seed + epoch alone would make (1, 2) and (2, 1) the same.
    a, b = (permuted(s, e, np.arange(200), 200) for s, e in ((1, 2), (2, 1)))
    assert (a != b).any()


@pytest.mark.parametrize("n", [16, 50])
def test_places_are_uniform(n: int) -> None:
    """Count of (position, window) over epochs, against the bounds of a chi-square variable."""
    epochs = 600
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        counts[np.arange(n), permuted(5, epoch, np.arange(n), n)] += 1
    expected = epochs / n
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_neighbours_are_not_kept_together() -> None:
    # A uniform order follows i by i + 1 about once an epoch, whatever n is.
    epochs, n = 300, 1000
    steps = sum(
        int((np.diff(permuted(11, epoch, np.arange(n), n)) == 1).sum()) for epoch in range(epochs)
    )
    assert abs(steps / epochs - 1.0) < 5 / np.sqrt(epochs)


def test_stream_crosses_epochs_where_permuted_does() -> None:
    order = Order(n=7, seed=3)
    whole = np.concatenate([permuted(3, epoch, np.arange(7), 7) for epoch in range(4)])
    assert order.indices(0, 28).tolist() == whole.tolist()
    for start in range(28):
        assert order.indices(start, 28 - start).tolist() == whole[start:].tolist()
    assert order.indices(5, 0).size == 0


def test_seek_is_immediate_far_away() -> None:
    # Were an epoch listed, or the stream walked, this would need 2**60 numbers.
    n, start = 2**50 + 7, 2**60 + 12345
    found = Order(n=n, seed=1).indices(start, 4)
    expected = [slow(1, (start + k) // n, (start + k) % n, n) for k in range(4)]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("seed", "epoch", "positions", "n"),
    [(0, 0, [5], 5), (0, 0, [-1], 5), (0, 0, [0], 0), (-1, 0, [0], 5), (0, -1, [0], 5)],
)
def test_nonsense_is_an_error(seed: int, epoch: int, positions: list[int], n: int) -> None:
    with pytest.raises(ValueError, match="must"):
        permuted(seed, epoch, np.array(positions), n)
    with pytest.raises(ValueError, match="negative"):
        Order(n=5, seed=0).indices(-1, 2)
