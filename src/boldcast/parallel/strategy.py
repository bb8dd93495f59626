"""Wrap a model for its ranks, and add up the gradient of a global batch.

On one rank nothing is wrapped. On several, torch's DistributedDataParallel broadcasts rank 0's
weights and checks that all ranks hold the same model, or FSDP2 shares them out (``fsdp``). At the
level ``exact`` the gradient is then added in the order of ``tree``, so that its bits depend neither
on the number of ranks nor on the strategy; at the other levels torch's own reduction averages it
over the ranks during the last micro-batch's backward.

Example
-------
>>> import torch
>>> model = torch.nn.Linear(2, 1)
>>> unwrap(wrap(model, ParallelConfig(), World())) is model
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from boldcast.config.schema import ParallelConfig
from boldcast.errors import UsageRefused
from boldcast.parallel.fsdp import ShardedAverage, ShardedSum, shard
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

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to an L2 norm of at most ``limit``; return the norm it had."""


class ExactGradient:
    """The fixed-order sum; DDP's own reduction stays silent."""

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
        self._model = model
        self._sum = GradientSum(trainable(model), n_micro, world)
        self.leaves = self._sum.leaves
        self.add = self._sum.add
        self.finish = self._sum.finish

    @contextmanager
    def around(self, leaf: int) -> Iterator[None]:
        """Keep DDP from reducing; the sum takes the gradients as they come."""
        with _silent(self._model), self._sum.during(leaf):
            yield

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient, the same bits on every rank."""
        return torch.nn.utils.clip_grad_norm_(trainable(self._model), limit, foreach=True)


class AveragedGradient:
    """Torch's own accumulation, and DDP's all-reduce with the last micro-batch."""

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
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

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient, which is the same on every rank."""
        return torch.nn.utils.clip_grad_norm_(trainable(self._model), limit, foreach=True)


def trainable(model: nn.Module) -> Sequence[nn.Parameter]:
    """Return the parameters that training moves, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]


def gradient_source(level: str, model: nn.Module, n_micro: int, world: World) -> GradientSource:
    """Return how gradients are added at a determinism level.

    Parameters
    ----------
    model : nn.Module
        As ``wrap`` returned it.
    n_micro : int
        Micro-batches of the global batch, over all ranks.

    Raises
    ------
    UsageRefused
        If the micro-batches do not divide among the ranks, except at ``exact``.
    """
    sharded = isinstance(model, FSDPModule)
    if level == "exact":
        return (ShardedSum if sharded else ExactGradient)(model, n_micro, world)
    if n_micro % world.world_size:
        raise UsageRefused(
            f"`train.global_batch_size` must be a multiple of `train.micro_batch_size` x world "
            f"size at this level, but its {n_micro} micro-batches do not divide among "
            f"{world.world_size} ranks. Change it, or set `numerics.level` to exact."
        )
    return (ShardedAverage if sharded else AveragedGradient)(model, n_micro, world)


def chosen(config: ParallelConfig, world: World) -> Literal["single", "ddp", "fsdp2"]:
    """Return the strategy in effect: one rank needs no wrapper, several use DDP unless told.

    Raises
    ------
    UsageRefused
        If the strategy is ``single`` on several ranks.
    """
    if world.world_size == 1:
        return "single"
    if config.strategy == "single":
        raise UsageRefused(
            f"`parallel.strategy` must be ddp, fsdp2 or auto on several ranks, but is single on "
            f"{world.world_size}. Set it to ddp, or start one rank."
        )
    return "fsdp2" if config.strategy == "fsdp2" else "ddp"


def wrap(model: nn.Module, config: ParallelConfig, world: World) -> nn.Module:
    """Return ``model`` ready for its ranks; build the optimizer afterwards, over its parameters.

    Raises
    ------
    UsageRefused
        If the strategy does not fit the world or the model.
    """
    strategy = chosen(config, world)
    if config.sync_bn and strategy != "single":
        model = _with_shared_statistics(model)
    if strategy == "single":
        return model
    if strategy == "fsdp2":
        return shard(model, config.wrap_classes, world)
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        forward_sync_buffers=config.broadcast_buffers,
        find_unused_parameters=config.find_unused_parameters,
        bucket_cap_mb=config.bucket_cap_mb,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )


def _with_shared_statistics(model: nn.Module) -> nn.Module:
    """Return ``model`` with its BatchNorms made to count over all ranks; CUDA only."""
    if next(model.parameters()).device.type != "cuda":
        raise UsageRefused(
            "`parallel.sync_bn` must be false on the CPU, for which torch has no SyncBatchNorm, "
            "but is true. Set it to false."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return converted


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside any chain of wrappers that keep it as ``module``."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _silent(model: nn.Module) -> AbstractContextManager[None]:
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()
