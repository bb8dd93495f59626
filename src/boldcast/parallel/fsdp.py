"""Share out weights, gradients and optimizer state among the ranks (torch's FSDP2).

A rank keeps a slice of every parameter and gathers a module's weights when it computes. At the
levels ``deterministic`` and ``fast`` torch's reduce-scatter adds the gradients. At ``exact`` its
place is taken by an exchange that only moves data: each rank collects its slice of every node of
the tree (``tree``) and adds them in canonical order, so the bits are those of one process.

That order costs memory. Weights between steps and the optimizer's moments are shared out at every
level, but at ``exact`` a rank holds whole gradients: of all nodes of its own micro-batches until
the last backward has sent them (up to about 2 log2 of their number), and of the sum, float32, while
the norm for clipping is taken. Where shares are uneven it holds all weights for the whole step. A
model whose gradients do not fit beside its activations needs one of the other levels.

Example
-------
::

    model = shard(model, ("Residual",), world)
    with gathered(model):      # every rank holds all weights: forward passes need no other rank
        model(x)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from boldcast.errors import UsageRefused
from boldcast.parallel.tree import Accumulator, cover, fold
from boldcast.parallel.world import World, share


def shard(model: nn.Module, wrap_classes: Sequence[str], world: World) -> nn.Module:
    """Slice ``model``'s parameters among the ranks, in place, and return it.

    Parameters
    ----------
    wrap_classes : sequence of str
        Names of the classes whose modules are gathered and freed one at a time.

    Raises
    ------
    UsageRefused
        If none of them is in the model, though it has layers.
    """
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (world.world_size,))
    marks = {name: dict(vars(parameter)) for name, parameter in model.named_parameters()}
    units = [m for m in model.modules() if type(m).__name__ in wrap_classes]
    if wrap_classes and not units and _has_layers(model):
        present = sorted({type(m).__name__ for m in model.modules()})
        raise UsageRefused(
            f"`parallel.wrap_classes` must name a class of the model's modules, but is "
            f"{list(wrap_classes)}. The model has {', '.join(present)}."
        )
    for module in [*reversed(units), model]:  # inner before outer
        fully_shard(module, mesh=mesh)
        assert isinstance(module, FSDPModule)
        # a sum; never ReduceOp.AVG, which some Gloo versions lack
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
        module.set_reduce_scatter_unused_params(True)  # ranks must send alike
    for name, parameter in model.named_parameters():
        for mark, value in marks[name].items():  # such as Mamba's exemptions from weight decay
            setattr(parameter, mark, value)
    return model


class ShardedSum:
    """The fixed-order sum of a global batch's gradients, each rank keeping its slice.

    The slices of a rank's nodes travel once, with its last micro-batch: (W - 1) / W of the
    gradient per node. Weights are gathered once per step where shares are uneven, because ranks
    then run different numbers of forward passes and no gathering may wait for the others.
    """

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
        self.leaves = world.share(n_micro)
        self._model = model
        self._even = n_micro % world.world_size == 0
        self._scatters = [_TreeScatter(n_micro, world) for _ in _modules(model)]
        for module, scatter in zip(_modules(model), self._scatters, strict=True):
            module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]

    @contextmanager
    def around(self, leaf: int) -> Iterator[None]:
        """Say which micro-batch the next gradients are of."""
        last = leaf == self.leaves[-1]
        _free_after_forward(self._model, self._even)
        for module, scatter in zip(_modules(self._model), self._scatters, strict=True):
            scatter.leaf = leaf
            module.set_reshard_after_backward(self._even or last, recurse=False)
        yield

    def add(self, leaf: int) -> None:
        """Drop what stands for a sum that is not complete yet."""
        if leaf != self.leaves[-1]:
            for parameter in self._model.parameters():
                parameter.grad = None

    def finish(self, divisor: Tensor | float) -> None:
        """Divide this rank's slice of the sum."""
        # the same type and operation as for whole gradients
        for gradient in _slices(self._model):
            gradient.div_(torch.as_tensor(divisor, dtype=torch.float32, device=gradient.device))

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to an L2 norm of at most ``limit`` and return the norm it had.

        The norm is that of the whole gradients, gathered one after another: a sum over slices
        would depend on where they are cut.
        """
        grads = [_whole(p.grad) for p in self._model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, foreach=True)
        _scale(_slices(self._model), limit, norm)
        return norm


class ShardedAverage:
    """Torch's own accumulation and reduce-scatter."""

    def __init__(self, model: nn.Module, n_micro: int, world: World) -> None:
        self.leaves = world.share(n_micro)
        self._model = model

    @contextmanager
    def around(self, leaf: int) -> Iterator[None]:
        """Reduce with the last micro-batch only."""
        _free_after_forward(self._model, True)
        for module in _modules(self._model):
            module.set_requires_gradient_sync(leaf == self.leaves[-1], recurse=False)
        yield

    def add(self, leaf: int) -> None:
        """Leave the accumulating to FSDP."""

    def finish(self, divisor: Tensor | float) -> None:
        """Turn the sum over the global batch into its mean."""
        for gradient in _slices(self._model):
            gradient /= divisor

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to an L2 norm of at most ``limit`` and return the norm it had."""
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        norm = _whole(torch.nn.utils.get_total_norm(grads, foreach=True))
        _scale(_slices(self._model), limit, norm)
        return norm


class _TreeScatter:
    """In the place of one module's reduce-scatter: the tree's order instead of the back end's."""

    def __init__(self, n_micro: int, world: World) -> None:
        self.leaf = 0
        self._n_micro = n_micro
        self._world = world
        self._last = world.share(n_micro)[-1]
        ranks = range(world.world_size)
        self._covers = [cover(n_micro, share(n_micro, world.world_size, rank)) for rank in ranks]
        self._nodes: Accumulator[Tensor] = Accumulator(n_micro)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Take ``input_tensor`` (W slices, one after another); give the sum with the last leaf."""
        if input_tensor.is_cuda:  # it is added and freed on another stream than it was made on
            input_tensor.record_stream(torch.cuda.current_stream())
        self._nodes.add((self.leaf, self.leaf + 1), input_tensor)
        if self.leaf != self._last:
            output_tensor.zero_()
            return
        nodes, self._nodes = self._nodes.nodes, Accumulator(self._n_micro)
        n_ranks, n = self._world.world_size, output_tensor.numel()
        sent = torch.stack([value.view(n_ranks, n) for _, value in nodes], dim=1)
        sizes = [len(each) * n for each in self._covers]
        received = output_tensor.new_empty(sum(sizes))
        dist.all_to_all_single(
            received, sent.view(-1), sizes, [len(nodes) * n] * n_ranks, group=group
        )
        everyone = [node for each in self._covers for node in each]
        total: Tensor = fold(self._n_micro, zip(everyone, received.view(-1, n), strict=True))
        output_tensor.copy_(total)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Keep all weights on every rank for the body's time; nothing to do without FSDP2.

    Forward passes inside need no other rank, so their number may differ between ranks.
    """
    modules = _modules(model)
    _free_after_forward(model, False)  # the next training pass sets it back
    for module in modules:
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Tell whether ``shard`` was applied to ``model``."""
    return isinstance(model, FSDPModule)


def whole_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU with slices put together; every rank must call this.

    The device holds one whole tensor at a time.
    """
    return {name: _whole(tensor).cpu() for name, tensor in tensors.items()}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _modules(model: nn.Module) -> list[FSDPModule]:
    """Return what is gathered as one, the whole model's remainder first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _free_after_forward(model: nn.Module, free: bool) -> None:
    """Say whether a module's gathered weights go when its forward pass has ended.

    Those of the whole model's remainder stay: backward begins with them.
    """
    for index, module in enumerate(_modules(model)):
        module.set_reshard_after_forward(free and index > 0, recurse=False)


def _slices(model: nn.Module) -> list[Tensor]:
    """Return this rank's part of every gradient."""
    grads = (p.grad for p in model.parameters() if p.grad is not None)
    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]


def _scale(tensors: Iterable[Tensor], limit: float, norm: Tensor) -> None:
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)  # as in torch.nn.utils.clip_grad_norm_
    for tensor in tensors:
        tensor.mul_(factor.to(tensor.device))


def _has_layers(model: nn.Module) -> bool:
    return any(isinstance(m, nn.ModuleList) and len(m) for m in model.modules())
