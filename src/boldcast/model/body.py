"""The recurrent body of the forecaster, in two layouts.

``frame``: a volume is one token, so all regions mix in every layer. ``region``: each region is a
sequence of its own with shared weights, and attention between neighbouring regions lies between
the layers over time. The heads start at zero: an untrained body forecasts the scan mean, an honest
loss of 1.

Normalization is RMSNorm: the bits of LayerNorm's weight gradient depend on the thread count.

Shape letters: see `boldcast.model.scan`.

Example
-------
>>> import torch
>>> from boldcast.config.schema import ModelConfig
>>> cfg = ModelConfig(d_model=32, headdim=16, n_layer=1, spatial_k=0)
>>> body = RegionBody(cfg, torch.device("cpu"), n_regions=5, n_horizons=2, neighbours=None)
>>> body(torch.zeros(2, 16, 5, 1)).shape
torch.Size([2, 16, 5, 2, 1])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from boldcast.config.schema import ModelConfig
from boldcast.model.initial import Draw
from boldcast.model.mixer import EPS, initialize_mixer, make_mixer
from boldcast.model.spatial import NeighbourAttention


class Residual(nn.Module):
    """x + dropout(inner(norm(x))), any (..., D)."""

    def __init__(self, inner: nn.Module, cfg: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(cfg.d_model, eps=EPS)
        self.inner = inner
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to ``x``."""
        out: Tensor = x + self.dropout(self.inner(self.norm(x)))
        return out


class RegionLayer(nn.Module):
    """Mix over time within each region, then over neighbours within each volume."""

    def __init__(self, cfg: ModelConfig, device: torch.device, neighbours: Tensor | None) -> None:
        super().__init__()
        self.time = Residual(make_mixer(cfg, device), cfg)
        self.space: Residual | None = None
        if cfg.spatial_k:
            if neighbours is None:
                raise ValueError("`neighbours` must be given when `model.spatial_k` is not 0")
            self.space = Residual(NeighbourAttention(cfg.d_model, neighbours), cfg)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x`` (R, B, T, D)."""
        # Regions first: both steps then see their own shape without moving memory.
        shape = x.shape
        x = self.time(x.flatten(0, 1))
        if self.space is not None:
            x = self.space(x.view(shape[0], -1, shape[3]))
        return x.view(shape)


class FrameBody(nn.Module):
    """A volume is one token; (B, T, R) to (B, T, R, H)."""

    def __init__(
        self, cfg: ModelConfig, device: torch.device, n_regions: int, n_horizons: int
    ) -> None:
        super().__init__()
        self.n_horizons = n_horizons
        self.recompute = cfg.activation_checkpointing
        self.embed = nn.Linear(n_regions, cfg.d_model)
        self.layers = nn.ModuleList(
            Residual(make_mixer(cfg, device), cfg) for _ in range(cfg.n_layer)
        )
        self.norm = nn.RMSNorm(cfg.d_model, eps=EPS)
        self.head = nn.Linear(cfg.d_model, n_regions * n_horizons)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast from ``x`` (B, T, R)."""
        hidden = self.embed(x).to(x.dtype)
        hidden = _through(self.layers, hidden, self.recompute and self.training)
        out = self.head(self.norm(hidden))
        return torch.unflatten(out, -1, (x.shape[-1], self.n_horizons))

    def initialize(self, draw: Draw) -> None:
        """Draw the first weights; the head is zero."""
        draw.linear("embed", self.embed)
        _initialize_branches(self.layers, draw)
        _zero(self.head)


class RegionBody(nn.Module):
    """Each region is a sequence of its own; (B, T, R, 1) to (B, T, R, H, 1)."""

    def __init__(
        self,
        cfg: ModelConfig,
        device: torch.device,
        n_regions: int,
        n_horizons: int,
        neighbours: Tensor | None,
    ) -> None:
        super().__init__()
        self.recompute = cfg.activation_checkpointing
        self.embed = nn.Linear(1, cfg.d_model)
        self.region = nn.Parameter(torch.zeros(n_regions, cfg.d_model))
        self.region._no_weight_decay = True  # type: ignore[attr-defined]
        self.layers = nn.ModuleList(
            RegionLayer(cfg, device, neighbours) for _ in range(cfg.n_layer)
        )
        self.norm = nn.RMSNorm(cfg.d_model, eps=EPS)
        self.head = nn.Linear(cfg.d_model, n_horizons)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast from ``x`` (B, T, R, 1)."""
        hidden = self.embed(x.permute(2, 0, 1, 3)).to(x.dtype)  # R B T D
        hidden = hidden + self.region[:, None, None]
        hidden = _through(self.layers, hidden, self.recompute and self.training)
        out: Tensor = self.head(self.norm(hidden))
        return out.permute(1, 2, 0, 3).unsqueeze(-1)

    def initialize(self, draw: Draw) -> None:
        """Draw the first weights; the head is zero."""
        draw.linear("embed", self.embed)
        draw.uniform("region", self.region, bound=1.0)
        _initialize_branches(self.layers, draw)
        _zero(self.head)


def _through(layers: nn.ModuleList, hidden: Tensor, recompute: bool) -> Tensor:
    for layer in layers:
        # The random state is put back for the second pass, so dropout draws the same values.
        hidden = checkpoint(layer, hidden, use_reentrant=False) if recompute else layer(hidden)
    return hidden


def _initialize_branches(layers: nn.ModuleList, draw: Draw) -> None:
    branches = [(n, m) for n, m in layers.named_modules() if isinstance(m, Residual)]
    scale = 1.0 / math.sqrt(len(branches))
    for name, branch in branches:
        nn.init.ones_(branch.norm.weight)
        inner_draw = draw.within("layers").within(name).within("inner")
        if isinstance(branch.inner, NeighbourAttention):
            branch.inner.initialize(inner_draw, scale)
        else:
            initialize_mixer(branch.inner, inner_draw, scale)


def _zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
