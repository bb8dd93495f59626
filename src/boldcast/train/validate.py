"""The held-out loss: every window once, summed in an order that no number of ranks can change.

A validation that a stop request interrupts is given up, and made up for by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized

import torch
import torch.distributed as dist
from torch import Tensor, nn

from boldcast.errors import DataRefused
from boldcast.parallel.agree import any_rank
from boldcast.parallel.reduce import gather_rows, sum_rows
from boldcast.parallel.world import World
from boldcast.train.loader import Window
from boldcast.train.objective import Objective

_POLL_EVERY = 8
"""Groups of windows between two looks at the stop requests, which several ranks take together."""


class Interrupted(Exception):
    """A stop was asked for, on some rank, before the last window."""


@torch.no_grad()
def heldout_errors(
    model: nn.Module,
    val_loader: Iterable[Window],
    objective: Objective,
    world: World,
    stopping: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Return the mean squared error per horizon over the windows of all ranks together.

    Sums and counts are added over ranks before they are divided, so ranks with fewer windows
    weigh less. ``model`` (unwrapped) is left in the training mode it was found in.

    Parameters
    ----------
    stopping : callable
        Whether this rank was asked to stop; the ranks agree on it every few groups of windows.

    Raises
    ------
    Interrupted
        On every rank alike, if a stop was asked for.
    DataRefused
        If no rank has a window.
    """
    device = objective.region_mask.device
    was_training = model.training
    model.eval()
    try:
        rows = [
            torch.cat(objective.errors(model, span.to(device), observed.to(device))).double()
            for span, observed in _polled(val_loader, world, device, stopping)
        ]
    finally:
        model.train(was_training)
    n_columns = 2 * len(objective.horizons)
    mine = torch.stack(rows) if rows else torch.zeros((0, n_columns), dtype=torch.float64)
    everyone = gather_rows(mine.to(device), _counts(len(rows), world, device), world)
    if not len(everyone):
        raise DataRefused("The held-out set has no window. Hold out more, or longer scans.")
    squared, cells = sum_rows(everyone).view(2, -1)
    errors: list[float] = (squared / cells).tolist()
    return errors


def _polled(
    val_loader: Iterable[Window],
    world: World,
    device: torch.device,
    stopping: Callable[[], bool],
) -> Iterator[Window]:
    """Yield this rank's windows; every rank looks at the requests as often as the busiest one."""

    def poll() -> None:
        if any_rank(world, stopping(), device):
            raise Interrupted

    poll()
    polls = 0
    if isinstance(val_loader, Sized):
        polls = max(_counts(len(val_loader), world, device)) // _POLL_EVERY
    for index, window in enumerate(val_loader):
        yield window
        if polls and (index + 1) % _POLL_EVERY == 0:
            polls -= 1
            poll()
    for _ in range(polls):
        poll()


def _counts(n: int, world: World, device: torch.device) -> list[int]:
    if world.world_size == 1:
        return [n]
    counts: Tensor = torch.zeros(world.world_size, dtype=torch.int64, device=device)
    dist.all_gather_single(counts, torch.tensor([n], device=device))
    return counts.tolist()
