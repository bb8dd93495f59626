"""Single-head attention of each region to its k nearest neighbours, within one volume.

Only listed neighbours are read, so cost and memory grow with R k, not with R squared. Nothing
mixes over time here: causality is untouched.

Shape letters: see `boldcast.model.scan`; M any number of volumes (batch and time together),
k neighbours, the region itself among them.

Example
-------
>>> import torch
>>> attention = NeighbourAttention(d_model=4, neighbours=torch.tensor([[0, 1], [1, 0], [2, 1]]))
>>> attention(torch.zeros(3, 5, 4)).shape
torch.Size([3, 5, 4])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from boldcast.model.initial import Draw


class NeighbourAttention(nn.Module):
    """Attention over a fixed neighbour table; (R, M, D) to (R, M, D).

    Parameters
    ----------
    d_model : int
        Width D of queries, keys and values.
    neighbours : Tensor (R, k), int64
        Row r lists the regions that region r sees, itself first. Kept as a buffer, so a checkpoint
        carries the table it was trained with.

    Raises
    ------
    ValueError
        If the table is not such a table.

    Notes
    -----
    On CUDA the gradient of the neighbour look-up is an `index_add`, whose order is fixed only
    under `torch.use_deterministic_algorithms(True)`.
    """

    neighbours: Tensor

    def __init__(self, d_model: int, neighbours: Tensor) -> None:
        super().__init__()
        _check_table(neighbours)
        self.register_buffer("neighbours", neighbours.to(torch.int64).clone())
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x`` (R, M, D) over neighbouring regions."""
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        query = query / math.sqrt(query.shape[-1])
        # A loop over k instead of one (R, k, M, D) gather: a k-th of the peak memory.
        columns = self.neighbours.unbind(1)
        scores = [(query * key.index_select(0, column)).sum(-1) for column in columns]
        weights = torch.stack(scores, dim=-1).softmax(-1)
        mixed = torch.zeros_like(value)
        for position, column in enumerate(columns):
            mixed = mixed + weights[..., position, None] * value.index_select(0, column)
        out: Tensor = self.out_proj(mixed)
        return out

    def initialize(self, draw: Draw, residual_scale: float) -> None:
        """Draw the first weights; the output projection is scaled by ``residual_scale``."""
        draw.linear("query_key_value", self.query_key_value)
        draw.linear("out_proj", self.out_proj, residual_scale)


def _check_table(neighbours: Tensor) -> None:
    if neighbours.ndim != 2 or neighbours.is_floating_point() or neighbours.shape[1] == 0:
        raise ValueError(
            "`neighbours` must be integers of shape (n_regions, k), but is "
            f"{neighbours.dtype} {tuple(neighbours.shape)}"
        )
    n_regions = neighbours.shape[0]
    if not torch.equal(neighbours[:, 0].cpu(), torch.arange(n_regions, dtype=neighbours.dtype)):
        raise ValueError("`neighbours` must list each region itself first")
    if int(neighbours.min()) < 0 or int(neighbours.max()) >= n_regions:
        raise ValueError(f"`neighbours` must name regions 0 to {n_regions - 1}")
    ordered = neighbours.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ValueError("`neighbours` must not name a region twice in one row")
