"""AdamW with Mamba's exemptions from weight decay, and the learning rate of every step.

Example
-------
>>> from boldcast.config.schema import OptimConfig
>>> config = OptimConfig(lr=1.0, warmup_steps=10, min_lr_ratio=0.0)
>>> [learning_rate(config, step, steps=110, global_batch_size=16) for step in (0, 9, 110)]
[0.1, 1.0, 0.0]
"""

from __future__ import annotations

import math

import torch
from torch import nn

from boldcast.config.schema import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters of an unwrapped ``model``.

    Parameters marked ``_no_weight_decay`` (Mamba's ``A_log``, ``D`` and ``dt_bias``, embeddings)
    and vectors (biases, norms) are not decayed. The implementation is pinned: the fused one
    rounds differently.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            exempt = getattr(parameter, "_no_weight_decay", False) or parameter.ndim < 2
            groups[not exempt].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": config.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        foreach=True,
        fused=False,
    )


def learning_rate(config: OptimConfig, step: int, *, steps: int, global_batch_size: int) -> float:
    """Return the learning rate of optimizer step ``step`` (from 0) of ``steps``.

    Linear warm-up over ``warmup_steps``, then a cosine from the peak down to ``min_lr_ratio`` of
    it. The peak follows `lr_scaling` with the global batch.
    """
    ratio = global_batch_size / config.lr_reference_batch
    peak = config.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return peak * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate ``lr``."""
    for group in optimizer.param_groups:
        group["lr"] = lr
