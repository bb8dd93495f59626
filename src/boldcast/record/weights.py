"""How far two files of weights are apart: in units in the last place and relative to their size.

Tensors are read one by one and compared in pieces, so that memory stays bounded by one tensor.

Example
-------
>>> import numpy as np
>>> one = np.float32([1.0, 2.0])
>>> distance("w", one, np.nextafter(one, np.float32(9))).max_ulp
1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boldcast.errors import DataRefused

if TYPE_CHECKING:
    import numpy as np

_PIECE = 1 << 20


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs between two files."""

    name: str
    n_differ: int
    """Elements whose bits differ."""
    n_elements: int
    max_ulp: int | None
    """Most representable numbers between two elements; null where that means nothing."""
    max_relative: float | None
    """Largest absolute difference over the larger of the two absolute values."""
    note: str = ""
    """What else is to be said: another shape, only in one file, values that are not finite."""


def differing_tensors(a: Path, b: Path) -> list[TensorDifference]:
    """Return the tensors that differ between two safetensors files, by name.

    Parameters
    ----------
    a, b : Path
        Files that the caller has found to be regular ones inside their folders.

    Raises
    ------
    DataRefused
        If one of them is no safetensors file.
    """
    return list(_differing(a, b))


def distance(name: str, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> TensorDifference:
    """Return how far two arrays of one shape and type are apart; NaN equals the same NaN.

    The distance in units in the last place counts the numbers of that type between two elements,
    -0 and +0 being neighbours (Bruce Dawson, "Comparing floating point numbers", 2012).
    """
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    n_differ, ulps, relative, odd = 0, 0, 0.0, 0
    for start in range(0, flat_a.size, _PIECE):
        piece = slice(start, start + _PIECE)
        n, ulp, rel, not_finite = _piece(flat_a[piece], flat_b[piece])
        n_differ, odd = n_differ + n, odd + not_finite
        ulps, relative = max(ulps, ulp), max(relative, rel)
    floating = a.dtype.kind == "f"
    note = f"{odd} of them not finite" if odd else ""
    return TensorDifference(
        name,
        n_differ,
        int(flat_a.size),
        ulps if floating and n_differ > odd else None,
        relative if n_differ > odd else None,
        note,
    )


def _piece(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[int, int, float, int]:
    """Return (elements that differ, most ULP, largest relative difference, those not finite)."""
    import numpy as np

    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    bits_a, bits_b = a.view(unsigned), b.view(unsigned)
    differ = bits_a != bits_b
    n_differ = int(np.count_nonzero(differ))
    if not n_differ:
        return 0, 0, 0.0, 0
    finite = differ & np.isfinite(a) & np.isfinite(b)
    n_finite = int(np.count_nonzero(finite))
    if not n_finite:
        return n_differ, 0, 0.0, n_differ
    ulp = 0
    if a.dtype.kind == "f":
        left, right = _ordered(bits_a[finite]), _ordered(bits_b[finite])
        ulp = int(np.max(np.maximum(left, right) - np.minimum(left, right)))
    x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
    size = np.maximum(np.abs(x), np.abs(y))
    # halved, so that two numbers at the opposite ends of float64 do not overflow
    half = np.abs(x / 2 - y / 2)
    ratio = np.divide(half, size, out=np.zeros_like(half), where=size > 0) * 2
    return n_differ, ulp, float(np.max(ratio)), n_differ - n_finite


def _ordered(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Map the bits of floats to unsigned integers in the order of the numbers."""
    import numpy as np

    sign = bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def _differing(a: Path, b: Path) -> Iterator[TensorDifference]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(a, framework="numpy") as left, safe_open(b, framework="numpy") as right:
            names_a, names_b = set(left.keys()), set(right.keys())
            for name in sorted(names_a | names_b):
                if name not in names_a or name not in names_b:
                    note = f"only in {'B' if name not in names_a else 'A'}"
                    yield TensorDifference(name, 0, 0, None, None, note)
                else:
                    found = _one(name, left, right)
                    if found.n_differ or found.note:
                        yield found
    except (SafetensorError, OSError) as error:
        raise DataRefused(
            f"`{a.name}` must be a safetensors file in both runs, but is not: {str(error)[:120]}. "
            "Run `boldcast verify` on both."
        ) from None


def _one(name: str, left: Any, right: Any) -> TensorDifference:
    pieces = left.get_slice(name), right.get_slice(name)
    shapes = [piece.get_shape() for piece in pieces]
    types = [piece.get_dtype() for piece in pieces]
    if shapes[0] != shapes[1] or types[0] != types[1]:
        note = f"{types[0]}{shapes[0]} against {types[1]}{shapes[1]}"
        return TensorDifference(name, 0, 0, None, None, note)
    try:
        a, b = left.get_tensor(name), right.get_tensor(name)
    except (TypeError, AttributeError):  # a type that numpy has no numbers for
        return TensorDifference(name, 0, 0, None, None, f"{types[0]} is not compared")
    return distance(name, a, b)
