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
from boldcast.launch import environment

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


def usable_gpus(config: Config) -> int:
    """Return how many GPUs ``config`` would train on, as far as is known without torch."""
    return 0 if config.train.device == "cpu" else environment.visible_gpus()


def default_nproc(config: Config) -> int:
    """Return the ranks to start where none are asked for: one per visible GPU with work, or one.

    Raises
    ------
    UsageRefused
        If not even one rank can do ``config``.
    """
    return world_sizes(config, (1, max(1, usable_gpus(config))))[0]
