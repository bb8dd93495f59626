"""The linear skip path: region-wise autoregression plus a low-rank VAR, inside the model.

Linear models are the ones to beat on BOLD series. With this path the network starts from one of
them, learned along with it (`trained`) or fitted in closed form beforehand (`fitted`), and the
recurrent part only has to find what they miss.

Shape letters: see `boldcast.model.scan`; L lags, Z rank.

Example
-------
>>> import numpy as np
>>> import torch
>>> skip = LinearSkip(n_regions=1, horizons=(1,), n_lags=1, rank=0)
>>> decaying = (0.5 ** np.arange(20, dtype=np.float32))[:, None]
>>> fit_skip(skip, [decaying], np.array([True]), ridge=0.0)
>>> skip(torch.tensor([[[8.0]]])).item()
4.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from boldcast.model.initial import Draw


class LinearSkip(nn.Module):
    """Forecasts linear in the last L volumes; (B, T, R) to (B, T, R, H), causal.

    Volumes before the window's start count as zero, the mean of a z-scored series.

    Parameters
    ----------
    n_regions : int
        Regions R.
    horizons : sequence of int
        Volumes ahead, H of them.
    n_lags : int
        Past volumes that each region's own autoregression reads, the present one included.
    rank : int
        Rank of the VAR on the present volume; 0: none.
    """

    def __init__(self, n_regions: int, horizons: Sequence[int], n_lags: int, rank: int) -> None:
        super().__init__()
        self.horizons = tuple(horizons)
        n_horizons = len(self.horizons)
        self.ar = nn.Parameter(torch.zeros(n_horizons, n_regions, n_lags))
        self.var_in: nn.Parameter | None = None
        self.var_out: nn.Parameter | None = None
        if rank:
            self.var_in = nn.Parameter(torch.zeros(min(rank, n_regions), n_regions))
            self.var_out = nn.Parameter(torch.zeros(n_horizons, n_regions, self.var_in.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        """Forecast every horizon from every volume of ``x`` (B, T, R), in float32 or float64."""
        # bfloat16 would cost more accuracy than the network on top can win back.
        with torch.autocast(x.device.type, enabled=False):
            n_lags = self.ar.shape[2]
            lagged = F.pad(x, (0, 0, n_lags - 1, 0)).unfold(1, n_lags, 1).flip(-1)  # B T R L
            y = torch.einsum("btrl,hrl->btrh", lagged, self.ar)
            if self.var_in is not None and self.var_out is not None:
                y = y + torch.einsum("btz,hrz->btrh", F.linear(x, self.var_in), self.var_out)
        return y

    def initialize(self, draw: Draw) -> None:
        """Start from a forecast of zero, with small random factors that let the VAR learn."""
        nn.init.zeros_(self.ar)
        if self.var_in is not None and self.var_out is not None:
            draw.uniform("var_in", self.var_in, bound=self.var_in.shape[1] ** -0.5)
            nn.init.zeros_(self.var_out)


def fit_skip(
    module: LinearSkip,
    series: Sequence[NDArray[np.float32]],
    region_mask: NDArray[np.bool_],
    ridge: float,
) -> None:
    """Fit the skip path by ridge regression on whole scans and freeze it.

    First each region's autoregression, then a ridge VAR of its residual for each horizon; the
    VARs of all horizons together are cut to the module's rank so that their fitted values lose
    least (reduced-rank ridge regression).

    Parameters
    ----------
    module : LinearSkip
        Receives the coefficients; its ``requires_grad`` is taken away.
    series : sequence of arrays (n_volumes, R), float32
        Z-scored training scans without gaps.
    region_mask : array (R,), bool
        False: the region's coefficients stay zero, as source and as target.
    ridge : float
        Penalty on squared coefficients, in units of one volume's square.

    Raises
    ------
    ValueError
        If no scan is longer than the lags and the farthest horizon together.

    Notes
    -----
    Computed in float64 on one CPU thread, whatever torch is set to, so the bits do not depend on
    that setting. Source: Mukherjee and Zhu 2011, 10.1002/sam.10138.
    """
    scans = [torch.from_numpy(np.ascontiguousarray(s, dtype=np.float64)) for s in series]
    n_lags, farthest = module.ar.shape[2], max(module.horizons)
    scans = [scan for scan in scans if len(scan) >= n_lags + farthest]
    if not scans:
        raise ValueError(f"no scan has the {n_lags + farthest} volumes that a fit needs")
    kept = torch.from_numpy(np.asarray(region_mask, dtype=np.bool_))
    scans = [torch.where(kept, scan, 0.0) for scan in scans]
    with _one_thread(), torch.no_grad():
        ar = torch.stack([_fit_ar(scans, h, n_lags, ridge) for h in module.horizons])
        module.ar.copy_(ar)
        if module.var_in is not None and module.var_out is not None:
            var_in, var_out = _fit_var(scans, ar, module.horizons, ridge, len(module.var_in))
            module.var_in.copy_(var_in)
            module.var_out.copy_(var_out.view(module.var_out.shape))
            module.var_in[:, ~kept] = 0.0  # rounding may have left traces
            module.var_out[:, ~kept] = 0.0
        module.ar[:, ~kept] = 0.0
    module.requires_grad_(False)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _lagged(scan: Tensor, n_lags: int) -> Tensor:
    """Return the last ``n_lags`` volumes, newest first, at each volume that has them: (N, R, L)."""
    return scan.unfold(0, n_lags, 1).flip(-1)


def _solve(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """Solve (gram + ridge I) w = cross; a singular system without ridge gets the least norm."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype)
    if ridge > 0:
        solution: Tensor = torch.linalg.solve(gram + ridge * identity, cross)
    else:
        solution = torch.linalg.pinv(gram, hermitian=True) @ cross
    return solution


def _fit_ar(scans: Sequence[Tensor], horizon: int, n_lags: int, ridge: float) -> Tensor:
    """Return each region's autoregression for one horizon, (R, L)."""
    n_regions = scans[0].shape[1]
    gram = torch.zeros(n_regions, n_lags, n_lags, dtype=scans[0].dtype)
    cross = torch.zeros(n_regions, n_lags, dtype=scans[0].dtype)
    for scan in scans:
        past = _lagged(scan, n_lags)[:-horizon]
        gram += torch.einsum("nrl,nrm->rlm", past, past)
        cross += torch.einsum("nrl,nr->rl", past, scan[n_lags - 1 + horizon :])
    return _solve(gram, cross.unsqueeze(-1), ridge).squeeze(-1)


def _fit_var(
    scans: Sequence[Tensor], ar: Tensor, horizons: Sequence[int], ridge: float, rank: int
) -> tuple[Tensor, Tensor]:
    """Return the factors (rank, R) and (H R, rank) of the VAR of the autoregression's residual.

    All horizons use the rows that the farthest one has, so that they share one design matrix.
    """
    n_lags, farthest = ar.shape[2], max(horizons)
    n_regions = ar.shape[1]
    gram = torch.zeros(n_regions, n_regions, dtype=ar.dtype)
    cross = torch.zeros(n_regions, len(horizons), n_regions, dtype=ar.dtype)
    for scan in scans:
        past = _lagged(scan, n_lags)[:-farthest]
        present = past[..., 0]
        gram += present.t() @ present
        for index, horizon in enumerate(horizons):
            target = scan[n_lags - 1 + horizon :][: len(past)]
            residual = target - torch.einsum("nrl,rl->nr", past, ar[index])
            cross[:, index] += present.t() @ residual
    full = _solve(gram, cross.flatten(1), ridge)  # R (H R)
    penalized = gram + ridge * torch.eye(n_regions, dtype=gram.dtype)
    # Of all matrices of this rank, full V V' is nearest in the metric of the penalized fit.
    values, vectors = torch.linalg.eigh(penalized)
    root = values.clamp(min=0.0).sqrt().unsqueeze(1) * vectors.t()
    directions = torch.linalg.svd(root @ full, full_matrices=False).Vh[:rank]  # rank (H R)
    directions = directions * _signs(directions)
    return (full @ directions.t()).t(), directions.t()


def _signs(rows: Tensor) -> Tensor:
    """Return +1 or -1 per row, so that a row's entry of largest magnitude becomes positive."""
    largest = rows.abs().argmax(dim=1, keepdim=True)
    return torch.where(rows.gather(1, largest) < 0, -1.0, 1.0).to(rows.dtype)
