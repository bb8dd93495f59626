"""The forecaster: every volume of a window forecasts the volumes at each horizon after it.

A recurrent body in one of two layouts (`boldcast.model.body`), a linear skip path
(`boldcast.model.skip`), or the sum of both.

Shape letters: see `boldcast.model.scan`.

Example
-------
>>> import torch
>>> from boldcast.config.schema import ModelConfig
>>> cfg = ModelConfig(d_model=32, headdim=16, n_layer=1)
>>> model = build_forecaster(cfg, n_regions=5, horizons=(1, 4), seed=0)
>>> model(torch.zeros(2, 16, 5)).shape
torch.Size([2, 16, 5, 2])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boldcast.config.schema import ModelConfig
from boldcast.errors import UsageRefused
from boldcast.model.body import FrameBody, RegionBody
from boldcast.model.initial import Draw
from boldcast.model.mixer import check_sizes
from boldcast.model.skip import LinearSkip


class Forecaster(nn.Module):
    """A body, a linear skip path, or the sum of both.

    Attributes
    ----------
    horizons : tuple of int
        Volumes ahead, in the order of the output's axis H.
    layout : str
        ``frame``: (B, T, R) to (B, T, R, H). ``region``: (B, T, R, 1) to (B, T, R, H, 1).
    """

    def __init__(
        self,
        body: FrameBody | RegionBody | None,
        skip: LinearSkip | None,
        horizons: Sequence[int],
        layout: str,
    ) -> None:
        super().__init__()
        self.horizons = tuple(horizons)
        self.layout = layout
        self.body = body
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """Forecast every horizon from every volume of the window ``x``."""
        y: Tensor | None = None
        if self.body is not None:
            y = self.body(x).to(x.dtype)
        if self.skip is not None:
            linear = self.skip(x) if self.layout == "frame" else self.skip(x[..., 0])[..., None]
            y = linear if y is None else y + linear
        assert y is not None
        return y


def build_forecaster(
    cfg: ModelConfig,
    *,
    n_regions: int,
    horizons: Sequence[int],
    seed: int,
    neighbours: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Forecaster:
    """Build a forecaster with the initial weights that ``seed`` stands for, on ``device``.

    Parameters
    ----------
    cfg : ModelConfig
        The model's settings.
    n_regions : int
        Regions R of every volume.
    horizons : sequence of int
        Volumes ahead, ascending.
    seed : int
        Decides the weights, alone: they are the same bits on every device and kernel.
    neighbours : Tensor (R, k), int64, optional
        For layout ``region`` with ``cfg.spatial_k``: each region's neighbours, itself first.
    device : torch.device or str
        Where to put it; also chooses the Mamba kernel.

    Raises
    ------
    UsageRefused
        If settings do not fit each other or the device.
    """
    device = torch.device(device)
    _check(cfg, n_regions)
    body: FrameBody | RegionBody | None = None
    with torch.random.fork_rng(devices=[]):  # torch's modules draw weights that are not kept
        if cfg.n_layer and cfg.layout == "frame":
            body = FrameBody(cfg, device, n_regions, len(horizons))
        elif cfg.n_layer:
            body = RegionBody(cfg, device, n_regions, len(horizons), neighbours)
    skip = None
    if cfg.skip != "none":
        skip = LinearSkip(n_regions, horizons, cfg.skip_lags, cfg.skip_rank)
    draw = Draw(seed)
    if body is not None:
        body.initialize(draw.within("body"))
    if skip is not None:
        skip.initialize(draw.within("skip"))
    model = Forecaster(body, skip, horizons, cfg.layout)
    for parameter in model.parameters():
        if parameter.ndim <= 1:  # biases, norms and Mamba's per-head scalars
            parameter._no_weight_decay = True  # type: ignore[attr-defined]
    return model.to(device)


def check_horizons(model: nn.Module, horizons: Sequence[int]) -> None:
    """Compare the model's horizons with the data's, through DDP and other wrappers.

    Raises
    ------
    ValueError
        If they differ, or the model has none.
    """
    inner = model
    while not hasattr(inner, "horizons") and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module  # type: ignore[assignment]
    found = getattr(inner, "horizons", None)
    if found is None:
        raise ValueError(f"`model` must have horizons, but {type(inner).__name__} has none")
    if tuple(found) != tuple(horizons):
        raise ValueError(
            f"`model.horizons` must equal the data's {tuple(horizons)} volumes, but is "
            f"{tuple(found)}. Build both from the same `data.horizons`."
        )


def describe(model: Forecaster) -> dict[str, int]:
    """Count parameters: of each part, ``total`` and ``trainable``."""
    counts = {"embedding": 0, "time": 0, "space": 0, "head": 0, "skip": 0}
    for name, parameter in model.named_parameters():
        counts[_part(name)] += parameter.numel()
    counts["total"] = sum(counts.values())
    counts["trainable"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return counts


def _part(name: str) -> str:
    if name.startswith("skip."):
        return "skip"
    if name.startswith("body.layers."):
        return "space" if ".space." in name else "time"
    return "embedding" if name.startswith(("body.embed", "body.region")) else "head"


def _check(cfg: ModelConfig, n_regions: int) -> None:
    problems = []
    if cfg.n_layer == 0 and cfg.skip != "trained":
        problems.append(
            "`model.n_layer` must be at least 1 unless `model.skip` is trained, but is 0 layers. "
            "Nothing would be left to train: add a layer, or set `model.skip` to trained."
        )
    if cfg.layout == "region" and cfg.n_layer and cfg.spatial_k > n_regions:
        problems.append(
            f"`model.spatial_k` must be at most the {n_regions} regions of the data, but is "
            f"{cfg.spatial_k} neighbours. Lower it."
        )
    try:
        check_sizes(cfg)
    except UsageRefused as refusal:
        problems.extend(refusal.problems)
    if problems:
        raise UsageRefused(problems)
