"""Feed each rank its micro-batches, from any step on, and validation its windows, each once.

The order of training windows is a pure function of seed, epoch and position (``data.order``), so
the place in it is one integer, the optimizer step: no rank, worker or world size is in it, and
seeking costs the same at step one million as at step one. Torch's own samplers work too; then
``set_epoch`` is called once per cycle, without which they repeat one order for ever.

Example
-------
>>> from boldcast.data.order import Order
>>> batches = MicroBatches(Order(10, seed=0), range(0, 2), n_micro=4, micro_batch_size=1)
>>> batches.seek(7)
>>> len(next(iter(batches)))
1
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from boldcast.data.order import Order
from boldcast.parallel.world import World, share

Window = tuple[Tensor, Tensor]
"""A span of volumes, float32 (n_volumes, n_regions), and which of them are observed, bool."""


class MicroBatches(Sampler[list[int]]):
    """One rank's micro-batches of the endless stream of windows, as lists of window indices.

    Step s, micro-batch m covers the positions from ``(s * n_micro + m) * micro_batch_size``.

    Parameters
    ----------
    order : Order
        Which window stands at which position.
    leaves : range
        The micro-batches of each global batch that this rank computes.
    n_micro, micro_batch_size : int
        Micro-batches of a global batch, and windows of a micro-batch.
    """

    def __init__(self, order: Order, leaves: range, *, n_micro: int, micro_batch_size: int) -> None:
        self.order = order
        self.leaves = leaves
        self.n_micro = n_micro
        self.micro_batch_size = micro_batch_size
        self.step = 0

    def seek(self, step: int) -> None:
        """Begin the next iteration at optimizer step ``step``."""
        self.step = step

    def windows(self, step: int, leaf: int) -> list[int]:
        """Return the window indices of one micro-batch, whoever computes it."""
        start = (step * self.n_micro + leaf) * self.micro_batch_size
        return [int(i) for i in self.order.indices(start, self.micro_batch_size)]

    def __iter__(self) -> Iterator[list[int]]:
        """Yield micro-batches without end."""
        step = self.step
        while self.leaves:
            for leaf in self.leaves:
                yield self.windows(step, leaf)
            step += 1


class ValidationBatches(Sampler[list[int]]):
    """The windows of the held-out set in order, in fixed groups, each group on one rank.

    No window is repeated to make the ranks' parts even. The groups do not depend on the number of
    ranks, and neither does any group's arithmetic.
    """

    def __init__(self, n_windows: int, group_size: int, world: World, mode: str) -> None:
        groups = range(-(-n_windows // group_size))
        if mode == "rank0":
            self.groups = groups if world.is_rank_zero else range(0)
        else:
            self.groups = share(len(groups), world.world_size, world.rank)
        self.n_windows = n_windows
        self.group_size = group_size

    def __len__(self) -> int:
        """Return how many groups this rank validates."""
        return len(self.groups)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's groups of window indices."""
        for group in self.groups:
            start = group * self.group_size
            yield list(range(start, min(start + self.group_size, self.n_windows)))


def loader(
    windows: Dataset[Window],
    batches: Sampler[list[int]],
    *,
    n_workers: int = 0,
    pin_memory: bool = False,
) -> DataLoader[Window]:
    """Return a loader of ``batches``; its workers leave stopping to the process they serve."""
    return DataLoader(
        windows,
        batch_sampler=batches,
        num_workers=n_workers,
        pin_memory=pin_memory,
        persistent_workers=n_workers > 0,
        worker_init_fn=_ignore_stop_signals,
        generator=torch.Generator(),  # else every pass would draw from the global generator
    )


def infinite_loader(
    train_loader: Iterable[Window], sampler: Any = None, start: int = 0
) -> Iterator[Window]:
    """Cycle through ``train_loader``, calling ``sampler.set_epoch`` once before each cycle.

    Parameters
    ----------
    train_loader : iterable
        With a length when ``start`` is not 0.
    sampler : object, optional
        Any sampler; without a ``set_epoch`` method nothing is called.
    start : int
        Batches consumed before; they are passed over, in the epoch they belong to.
    """
    epoch, passed = divmod(start, len(train_loader)) if start else (0, 0)  # type: ignore[arg-type]
    while True:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        empty = True
        for index, batch in enumerate(train_loader):
            empty = False
            if index >= passed:
                yield batch
        if empty:
            raise ValueError("the training loader yields no batch")
        epoch, passed = epoch + 1, 0


def stream(
    train_loader: Iterable[Window], sampler: Any, step: int, n_leaves: int
) -> Iterator[Window]:
    """Return this rank's micro-batches from optimizer step ``step`` on."""
    if isinstance(sampler, MicroBatches):
        sampler.seek(step)
        return iter(train_loader)
    return infinite_loader(train_loader, sampler, step * n_leaves)


def end_workers(train_loader: DataLoader[Window]) -> None:
    """End the loader's processes.

    They ignore stop signals, hence also the one by which the interpreter, when it ends, would end
    them; it would wait for them for ever.
    """
    iterator = getattr(train_loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()
        train_loader._iterator = None


def refuse_padding(val_loader: Iterable[Window]) -> None:
    """Refuse a validation sampler that repeats windows to make the ranks' parts even.

    Raises
    ------
    ValueError
        If the loader's ``DistributedSampler`` would count windows twice.
    """
    sampler = getattr(val_loader, "sampler", None)
    if isinstance(sampler, DistributedSampler) and not sampler.drop_last:
        n_windows = len(sampler.dataset)  # type: ignore[arg-type]
        if n_windows % sampler.num_replicas:
            raise ValueError(
                f"`val_loader` must not repeat windows, but its DistributedSampler pads "
                f"{n_windows} windows for {sampler.num_replicas} ranks. Use ValidationBatches."
            )


def _ignore_stop_signals(worker: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
