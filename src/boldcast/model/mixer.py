"""The Mamba-2 block: ours in plain torch for the CPU, the mamba_ssm package's on CUDA.

Both hold the same parameters under the same names and in the same shapes, so a checkpoint moves
between them strictly, and `initialize_mixer` gives both the same first weights.

Shape letters: see `boldcast.model.scan`.

Example
-------
>>> import torch
>>> from boldcast.config.schema import ModelConfig
>>> mixer = make_mixer(ModelConfig(d_model=32, headdim=16), torch.device("cpu"))
>>> mixer(torch.zeros(2, 5, 32)).shape
torch.Size([2, 5, 32])
"""

from __future__ import annotations

import importlib
import math
import sys
import types
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from boldcast.config.schema import ModelConfig
from boldcast.errors import UsageRefused
from boldcast.model.initial import Draw, assign
from boldcast.model.scan import ssd_chunked

EPS = 1e-5
_DT_RANGE = (1e-3, 1e-1)
_A_RANGE = (1.0, 16.0)


class CausalConv(torch.autograd.Function):
    """Depthwise convolution over past volumes as shifted in-place multiply-adds.

    Faster on a CPU than a general convolution, and without the zero-filled slices that autograd
    makes of shifted adds.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve ``x`` (B, T, channels) with ``weight`` (channels, 1, taps), last tap = now."""
        taps = weight.squeeze(1).t().flip(0).contiguous()  # taps[lag] (channels,)
        ctx.save_for_backward(x, taps)
        n_volumes = x.shape[1]
        y = torch.addcmul(bias, x, taps[0])
        for lag in range(1, min(len(taps), n_volumes)):
            y[:, lag:].addcmul_(x[:, : n_volumes - lag], taps[lag])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias."""
        x, taps = ctx.saved_tensors
        n_volumes = x.shape[1]
        grad_x = grad * taps[0]
        grad_taps = torch.zeros_like(taps)
        grad_taps[0] = (grad * x).sum((0, 1))
        for lag in range(1, min(len(taps), n_volumes)):
            later, earlier = grad[:, lag:], x[:, : n_volumes - lag]
            grad_x[:, : n_volumes - lag].addcmul_(later, taps[lag])
            grad_taps[lag] = (later * earlier).sum((0, 1))
        return grad_x, grad_taps.flip(0).t().unsqueeze(1), grad.sum((0, 1))


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply `CausalConv`."""
    out: Tensor = CausalConv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class GatedRMSNorm(nn.Module):
    """RMS normalization of ``x * silu(z)`` within each group of channels."""

    def __init__(self, width: int, n_groups: int) -> None:
        super().__init__()
        self.n_groups = n_groups
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Normalize ``x`` gated by ``z``, both (B, T, width)."""
        gated = torch.unflatten(x * F.silu(z), -1, (self.n_groups, -1))
        scale = torch.rsqrt(gated.square().mean(-1, keepdim=True) + EPS)
        return (gated * scale).flatten(-2) * self.weight


class Mamba2Mixer(nn.Module):
    """Mamba-2 in plain torch, (B, T, D) to (B, T, D), causal over T.

    Parameters have the names and shapes of ``mamba_ssm.modules.mamba2.Mamba2``; ``chunk_size`` is
    not part of them.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        d_inner = cfg.expand * cfg.d_model
        self.headdim, self.d_state, self.n_groups = cfg.headdim, cfg.d_state, cfg.ngroups
        self.chunk_size = cfg.chunk_size
        n_heads = d_inner // cfg.headdim
        channels = d_inner + 2 * cfg.ngroups * cfg.d_state
        self.widths = (d_inner, channels, n_heads)
        self.in_proj = nn.Linear(cfg.d_model, sum(self.widths), bias=False)
        self.conv1d = nn.Conv1d(channels, channels, cfg.d_conv, groups=channels)
        self.dt_bias = nn.Parameter(torch.zeros(n_heads))
        self.A_log = nn.Parameter(torch.zeros(n_heads))
        self.D = nn.Parameter(torch.ones(n_heads))
        self.norm = GatedRMSNorm(d_inner, cfg.ngroups)
        self.out_proj = nn.Linear(d_inner, cfg.d_model, bias=False)
        for parameter in (self.dt_bias, self.A_log, self.D):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]

    def forward(self, u: Tensor) -> Tensor:
        """Mix ``u`` (B, T, D) over its past volumes."""
        z, xbc, dt = torch.split_with_sizes(self.in_proj(u), self.widths, dim=-1)
        xbc = F.silu(causal_conv(xbc, self.conv1d.weight, self.conv1d.bias))
        state = self.n_groups * self.d_state
        x, b, c = torch.split_with_sizes(xbc, (self.widths[0], state, state), dim=-1)
        y = ssd_chunked(
            torch.unflatten(x, -1, (-1, self.headdim)),
            F.softplus(dt + self.dt_bias),
            -torch.exp(self.A_log),
            torch.unflatten(b, -1, (self.n_groups, -1)),
            torch.unflatten(c, -1, (self.n_groups, -1)),
            self.chunk_size,
            self.D,
        )
        out: Tensor = self.out_proj(self.norm(y.flatten(-2), z))
        return out


def make_mixer(cfg: ModelConfig, device: torch.device) -> nn.Module:
    """Build the block for ``device``: ours, or the package's on CUDA; still on the CPU.

    Raises
    ------
    UsageRefused
        If the sizes do not divide, or CUDA is asked for and mamba_ssm cannot be imported.
    """
    check_sizes(cfg)
    return package_mixer(cfg) if device.type == "cuda" else Mamba2Mixer(cfg)


def check_sizes(cfg: ModelConfig) -> None:
    """Refuse head and group sizes that do not divide.

    Raises
    ------
    UsageRefused
        Naming every setting that does not fit.
    """
    d_inner = cfg.expand * cfg.d_model
    problems = []
    if d_inner % cfg.headdim:
        problems.append(
            f"`model.headdim` must divide `model.expand` x `model.d_model` = {d_inner} channels, "
            f"but is {cfg.headdim}. Try {math.gcd(cfg.headdim, d_inner)}."
        )
    elif (d_inner // cfg.headdim) % cfg.ngroups:
        n_heads = d_inner // cfg.headdim
        problems.append(
            f"`model.ngroups` must divide the {n_heads} heads (`model.expand` x `model.d_model` / "
            f"`model.headdim`), but is {cfg.ngroups}. Try {math.gcd(cfg.ngroups, n_heads)}."
        )
    if problems:
        raise UsageRefused(problems)


def package_mixer(cfg: ModelConfig) -> nn.Module:
    """Build mamba_ssm's own Mamba2, fused where a compiled causal_conv1d allows it.

    Raises
    ------
    UsageRefused
        If the package cannot be imported, or compiled causal_conv1d cannot take these sizes.
    """
    mamba2 = _import_mamba2()
    fused = _has_causal_conv1d()
    channels = cfg.expand * cfg.d_model + 2 * cfg.ngroups * cfg.d_state
    if fused and channels % 8:
        raise UsageRefused(
            "`model.expand` x `model.d_model` + 2 x `model.ngroups` x `model.d_state` must be a "
            f"multiple of 8 on CUDA, but is {channels} channels. Change `model.d_state`."
        )
    with torch.random.fork_rng(devices=[]):
        mixer: nn.Module = mamba2(
            d_model=cfg.d_model,
            d_state=cfg.d_state,
            d_conv=cfg.d_conv,
            expand=cfg.expand,
            headdim=cfg.headdim,
            ngroups=cfg.ngroups,
            chunk_size=cfg.chunk_size,
            use_mem_eff_path=fused,
        )
    return mixer


def _import_mamba2() -> Any:
    """Return the package's class; the only place that imports mamba_ssm."""
    # The package imports Mamba-1's compiled extension unconditionally; Mamba-2 never calls it.
    if "selective_scan_cuda" not in sys.modules and not _importable("selective_scan_cuda"):
        sys.modules["selective_scan_cuda"] = types.ModuleType("selective_scan_cuda")
    try:
        with warnings.catch_warnings():
            # It recommends a setting that lets processes time their kernels and disagree.
            warnings.filterwarnings("ignore", message="Deterministic mode")
            return importlib.import_module("mamba_ssm.modules.mamba2").Mamba2
    except Exception as error:
        cause: BaseException = error
        while (earlier := cause.__cause__ or cause.__context__) is not None:
            cause = earlier
        raise UsageRefused(
            "`train.device` must be cpu where mamba_ssm cannot be imported, but is cuda. First "
            f"cause: {type(cause).__name__}: {cause}. Install the CUDA requirements, or add "
            "`--train.device cpu`."
        ) from error


def _has_causal_conv1d() -> bool:
    return _importable("causal_conv1d")


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError):
        return False
    return True


def initialize_mixer(mixer: nn.Module, draw: Draw, residual_scale: float) -> None:
    """Give either kind of mixer its first weights.

    Parameters
    ----------
    mixer : nn.Module
        `Mamba2Mixer` or the package's Mamba2.
    draw : Draw
        Source of numbers for this mixer.
    residual_scale : float
        Factor on the output projection: 1 / sqrt(number of residual branches).

    Notes
    -----
    The distributions are those of mamba_ssm: step sizes log-uniform in [1e-3, 1e-1], decay rates
    uniform in [1, 16].
    """
    parts: Any = mixer
    draw.linear("in_proj", parts.in_proj)
    draw.linear("out_proj", parts.out_proj, residual_scale)
    bound = 1.0 / math.sqrt(parts.conv1d.kernel_size[0])
    draw.uniform("conv1d.weight", parts.conv1d.weight, bound)
    draw.uniform("conv1d.bias", parts.conv1d.bias, bound)
    low, high = (math.log(limit) for limit in _DT_RANGE)
    steps = [math.exp(low + (high - low) * u) for u in draw.unit("dt_bias", len(parts.dt_bias))]
    # The inverse of softplus, so that softplus(dt_bias) is the step.
    assign(parts.dt_bias, np.array([s + math.log(-math.expm1(-s)) for s in steps]))
    low, high = _A_RANGE
    rates = [math.log(low + (high - low) * u) for u in draw.unit("A_log", len(parts.A_log))]
    assign(parts.A_log, np.array(rates))
    nn.init.ones_(parts.D)
    nn.init.ones_(parts.norm.weight)
