"""``--nproc N`` or ``--nproc MIN:MAX``: on how many ranks a run may train.

Example
-------
>>> read_nproc("2"), read_nproc("1:4")
(2, (1, 4))
>>> from boldcast.config.schema import Config
>>> world_sizes(Config(), (1, 3))
[3, 2, 1]
"""

from __future__ import annotations

import re

from boldcast.config.resolve import check_world
from boldcast.config.schema import Config
from boldcast.errors import UsageRefused

Nproc = int | tuple[int, int]
"""So many processes, or from the fewest to the most."""


def read_nproc(text: str) -> Nproc:
    """Read a number of processes, or the fewest and the most with a colon between."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?", text, re.ASCII)
    if not found or (found[2] and int(found[2]) < int(found[1])):
        raise ValueError("an integer, at least 1, or MIN:MAX such as 1:4")
    return (int(found[1]), int(found[2])) if found[2] else int(found[1])


def world_sizes(config: Config, nproc: Nproc) -> list[int]:
    """Return every number of ranks that ``nproc`` allows and ``config`` can do, the largest first.

    Raises
    ------
    UsageRefused
        If there is none.
    """
    low, high = nproc if isinstance(nproc, tuple) else (nproc, nproc)
    problems: list[str] = []
    sizes: list[int] = []
    # above the number of micro-batches nothing can be shared out
    most = min(high, max(low, config.train.global_batch_size))
    for size in range(most, low - 1, -1):
        if problems := check_world(config, size):
            continue
        sizes.append(size)
    if not sizes:
        raise UsageRefused(problems)
    return sizes
