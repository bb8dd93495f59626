"""The order of windows as a pure function of (seed, epoch, position), with nothing stored.

Position ``p`` of an epoch holds window ``F(p)``, where ``F`` is a keyed Feistel permutation of
the numbers below a power of two, walked along its cycle until it falls below ``n`` again. So any
place in the stream is found at once, on any rank, and every window comes exactly once an epoch.

Example
-------
>>> order = Order(n=3, seed=1)
>>> sorted(order.indices(6, 3).tolist())
[0, 1, 2]

References
----------
Black and Rogaway (2002), Ciphers with arbitrary finite domains, CT-RSA (cycle walking).
Steele, Lea and Flood (2014), Fast splittable pseudorandom number generators (the mixer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
LARGEST_N = 2**62
# Fewer bits leave the rounds too little to mix: two bits have only 24 orders in all.
_FEWEST_BITS = 6
_GAMMA = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Order:
    """The endless stream of windows: one permutation of ``n`` after another, an epoch each."""

    n: int
    seed: int

    def indices(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the windows at stream positions ``start`` to ``start + count - 1``.

        Parameters
        ----------
        start, count : int
            Not negative; the epoch of a position is ``position // n``.

        Returns
        -------
        int64 array, shape (count,)
            Windows in ``[0, n)``.
        """
        if start < 0 or count < 0:
            raise ValueError(f"start and count must not be negative, but are {start} and {count}")
        pieces = []
        while count > 0:
            epoch, first = divmod(start, self.n)
            length = min(count, self.n - first)
            positions = np.arange(first, first + length, dtype=np.int64)
            pieces.append(permuted(self.seed, epoch, positions, self.n))
            start, count = start + length, count - length
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def permuted(seed: int, epoch: int, positions: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return which of ``n`` windows is at each position of an epoch.

    Parameters
    ----------
    seed, epoch : int
        Not negative; each pair has an order of its own.
    positions : int64 array
        Positions in ``[0, n)``.
    n : int
        Windows of an epoch, from 1 to 2**62.

    Returns
    -------
    int64 array, shape of ``positions``
        Over all positions each of ``0 .. n - 1`` exactly once.
    """
    if not 1 <= n <= LARGEST_N:
        raise ValueError(f"n must be from 1 to 2**62, but is {n}")
    if seed < 0 or epoch < 0:
        raise ValueError(f"seed and epoch must not be negative, but are {seed} and {epoch}")
    positions = np.asarray(positions, dtype=np.int64)
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < n:
        raise ValueError(f"positions must be in [0, {n})")
    half = (max((n - 1).bit_length(), _FEWEST_BITS) + 1) // 2
    keys = _round_keys(seed, epoch)
    values = _feistel(positions.astype(np.uint64).ravel(), keys, half)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        values[outside] = _feistel(values[outside], keys, half)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64).reshape(positions.shape)


def _round_keys(seed: int, epoch: int) -> list[int]:
    state = _mix(_mix(seed & _MASK) ^ (epoch & _MASK))
    return [_mix((state + _GAMMA * (number + 1)) & _MASK) for number in range(ROUNDS)]


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _feistel(values: NDArray[np.uint64], keys: list[int], half: int) -> NDArray[np.uint64]:
    low = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & low
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ np.uint64(key)) & low)
    return (left << np.uint64(half)) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Array arithmetic of unsigned integers wraps without a warning, as the mixer needs.
    values = values + np.uint64(_GAMMA)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
