"""Stretches of observed volumes, the pieces that windows may be cut from.

Example
-------
>>> import numpy as np
>>> observed_stretches(np.array([True, True, False, True]))
((0, 2), (3, 1))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def observed_stretches(observed: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Return (first volume, number of volumes) of every unbroken observed stretch.

    Parameters
    ----------
    observed : bool array, shape (n_volumes,)
        False where a volume was censored.
    """
    padded = np.concatenate(([False], observed, [False]))
    edges = np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)
    return tuple((int(first), int(end - first)) for first, end in edges)
