"""The windows that every rank is given, from the very parts that training uses.

Imports torch; ``plan`` therefore imports this last.
"""

from __future__ import annotations

from pathlib import Path

from boldcast.config.schema import Config
from boldcast.data.order import Order
from boldcast.data.store import Store, prepare
from boldcast.data.windows import Windows
from boldcast.parallel.world import share
from boldcast.train.loader import MicroBatches
from boldcast.train.seeding import derive


def windows_of_ranks(
    config: Config, data: Path, cache: Path, n_ranks: int
) -> tuple[int, list[list[list[int]]]]:
    """Return how many training windows there are, and per rank and step which it is given.

    Parameters
    ----------
    data, cache : Path
        Folder of the data and of packed stores, as the runs had them.
    """
    store = Store.open(prepare(config, data, cache))
    settings, train = config.data, config.train
    windows = Windows(store, "train", settings.context_length, settings.horizons, settings.stride)
    n_micro = train.global_batch_size // train.micro_batch_size
    order = Order(len(windows), derive(config.seed, "order"))
    ranks = []
    for rank in range(n_ranks):
        batches = iter(
            MicroBatches(
                order,
                leaves := share(n_micro, n_ranks, rank),
                n_micro=n_micro,
                micro_batch_size=train.micro_batch_size,
            )
        )
        ranks.append([[w for _ in leaves for w in next(batches)] for _ in range(train.steps)])
    return len(windows), ranks
