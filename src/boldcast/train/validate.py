"""The held-out loss: every window once, summed in an order that no number of ranks can change."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from boldcast.errors import DataRefused
from boldcast.parallel.reduce import gather_rows, sum_rows
from boldcast.parallel.world import World
from boldcast.train.loader import Window
from boldcast.train.objective import Objective


@torch.no_grad()
def heldout_errors(
    model: nn.Module, val_loader: Iterable[Window], objective: Objective, world: World
) -> list[float]:
    """Return the mean squared error per horizon over the windows of all ranks together.

    Sums and counts are added over ranks before they are divided, so ranks with fewer windows
    weigh less. ``model`` (unwrapped) is left in the training mode it was found in.

    Raises
    ------
    DataRefused
        If no rank has a window.
    """
    device = objective.region_mask.device
    was_training = model.training
    model.eval()
    rows = [
        torch.cat(objective.errors(model, span.to(device), observed.to(device))).double()
        for span, observed in val_loader
    ]
    model.train(was_training)
    n_columns = 2 * len(objective.horizons)
    mine = torch.stack(rows) if rows else torch.zeros((0, n_columns), dtype=torch.float64)
    everyone = gather_rows(mine.to(device), _counts(len(rows), world, device), world)
    if not len(everyone):
        raise DataRefused("The held-out set has no window. Hold out more, or longer scans.")
    squared, cells = sum_rows(everyone).view(2, -1)
    errors: list[float] = (squared / cells).tolist()
    return errors


def _counts(n: int, world: World, device: torch.device) -> list[int]:
    if world.world_size == 1:
        return [n]
    counts: Tensor = torch.zeros(world.world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(counts, torch.tensor([n], device=device))
    return counts.tolist()
