"""Wrap a model for its ranks, and add up the gradient of a global batch.

On one rank nothing is wrapped. On several, torch's DistributedDataParallel broadcasts rank 0's
weights and checks that all ranks hold the same model. At the level ``exact`` the gradient is then
added by ``reduce.GradientSum``, whose bits do not depend on the number of ranks; at the other
levels DDP's own all-reduce averages it over the ranks during the last micro-batch's backward.

Example
-------
>>> import torch
>>> model = torch.nn.Linear(2, 1)
>>> unwrap(wrap(model, ParallelConfig(), World())) is model
True
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from boldcast.config.schema import ParallelConfig
from boldcast.errors import UsageRefused
from boldcast.parallel.reduce import GradientSum
from boldcast.parallel.world import World


class GradientSource(Protocol):
    """How the micro-batch gradients of one step become the step's gradient."""

    leaves: range
    """Micro-batches of the global batch that this rank computes."""

    def around(self, leaf: int) -> AbstractContextManager[None]:
        """Return the context of micro-batch ``leaf``'s forward and backward."""

    def add(self, leaf: int) -> None:
        """Take what backward left in ``grad``."""

    def finish(self, divisor: Tensor | float) -> None:
        """Leave the sum over all micro-batches, over ``divisor``, in every ``grad``."""


class ExactGradient:
    """The fixed-order sum; DDP's own reduction stays silent."""

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
        self._model = model
        self._sum = GradientSum(trainable(model), n_micro, world)
        self.leaves = self._sum.leaves
        self.add = self._sum.add
        self.finish = self._sum.finish

    def around(self, leaf: int) -> AbstractContextManager[None]:
        """Keep DDP from reducing: the sum is made in ``finish``."""
        return _silent(self._model)


class AveragedGradient:
    """Torch's own accumulation, and DDP's all-reduce with the last micro-batch."""

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
        if n_micro % world.world_size:
            raise UsageRefused(
                f"`train.global_batch_size` must be a multiple of `train.micro_batch_size` x world "
                f"size at this level, but its {n_micro} micro-batches do not divide among "
                f"{world.world_size} ranks. Change it, or set `numerics.level` to exact."
            )
        self._model = model
        self._n_ranks = world.world_size
        self.leaves = world.share(n_micro)

    def around(self, leaf: int) -> AbstractContextManager[None]:
        """Reduce with the last micro-batch only."""
        return nullcontext() if leaf == self.leaves[-1] else _silent(self._model)

    def add(self, leaf: int) -> None:
        """Leave the accumulating to autograd."""

    def finish(self, divisor: Tensor | float) -> None:
        """Turn DDP's mean over ranks into the mean over the global batch."""
        for parameter in trainable(self._model):
            if parameter.grad is not None:
                parameter.grad *= self._n_ranks / divisor


def trainable(model: nn.Module) -> Sequence[nn.Parameter]:
    """Return the parameters that training moves, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]


def gradient_source(level: str, model: nn.Module, n_micro: int, world: World) -> GradientSource:
    """Return how gradients are added at a determinism level."""
    kind = ExactGradient if level == "exact" else AveragedGradient
    return kind(model, n_micro, world)


def wrap(model: nn.Module, config: ParallelConfig, world: World) -> nn.Module:
    """Return ``model`` ready for its ranks.

    Raises
    ------
    UsageRefused
        If the strategy is ``single`` on several ranks.
    """
    if config.strategy == "single" and world.world_size > 1:
        raise UsageRefused(
            f"`parallel.strategy` must be ddp or auto on several ranks, but is single on "
            f"{world.world_size}. Set it to ddp, or start one rank."
        )
    if world.world_size == 1:
        return model
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        broadcast_buffers=False,  # no buffer changes in training, and a broadcast hides a mistake
        find_unused_parameters=config.find_unused_parameters,
        bucket_cap_mb=config.bucket_cap_mb,
        gradient_as_bucket_view=True,
    )


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside any chain of wrappers that keep it as ``module``."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _silent(model: nn.Module) -> AbstractContextManager[None]:
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def reduce_sum(value: Tensor) -> Tensor:
    """Add ``value`` over all ranks, in place; a no-op without a process group.

    A sum and a division, never ``ReduceOp.AVG``, which some Gloo versions lack.
    """
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.SUM)
    return value
