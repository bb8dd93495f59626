"""The squared error of a batch of windows: what training descends and validation reports.

Every position of a window forecasts every horizon. A cell (window, position, region, horizon)
counts if its region is kept and both its position and its target volume are observed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Objective:
    """What is forecast, and which cells count.

    Attributes
    ----------
    context_length : int
        Volumes that the model reads.
    horizons : tuple of int
        Volumes ahead, ascending.
    region_mask : Tensor, shape (n_regions,), float32
        1 for regions that count, 0 for those masked out.
    region_layout : bool
        Whether the model takes ``(B, T, R, 1)`` instead of ``(B, T, R)``.
    autocast : torch.dtype or None
        Type of the forward pass where it is not float32.
    """

    context_length: int
    horizons: tuple[int, ...]
    region_mask: Tensor
    region_layout: bool = False
    autocast: torch.dtype | None = None

    def cells(self, n_windows: int) -> float:
        """Return how many cells ``n_windows`` fully observed windows hold."""
        kept = float(self.region_mask.sum())
        return n_windows * self.context_length * kept * len(self.horizons)

    def forecast(self, model: nn.Module, volumes: Tensor) -> Tensor:
        """Return the forecasts of ``volumes`` (B, T, R): float32, shape (B, T, R, H)."""
        with torch.autocast(volumes.device.type, self.autocast, self.autocast is not None):
            if self.region_layout:
                forecasts: Tensor = model(volumes.unsqueeze(-1)).squeeze(-1)
            else:
                forecasts = model(volumes)
        return forecasts.float()

    def errors(self, model: nn.Module, span: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return per horizon the sum of squared errors and the number of cells summed.

        Parameters
        ----------
        span : Tensor, shape (B, context_length + horizons[-1], R), float32
        observed : Tensor, shape (B, context_length + horizons[-1]), bool

        Returns
        -------
        squared, cells : Tensor, shape (H,), float32
        """
        length = self.context_length
        forecasts = self.forecast(model, span[:, :length])
        ahead = [span[:, h : h + length] for h in self.horizons]
        seen = [observed[:, h : h + length] & observed[:, :length] for h in self.horizons]
        weight = torch.stack(seen, -1).float()
        squared = (forecasts - torch.stack(ahead, -1)).square()
        per_region = torch.einsum("btrh,r->bth", squared, self.region_mask)
        return (per_region * weight).sum((0, 1)), weight.sum((0, 1)) * self.region_mask.sum()
