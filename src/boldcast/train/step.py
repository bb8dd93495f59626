"""One optimizer step over all ranks: everything between two states of the weights.

Example
-------
::

    done = global_step.take(batches, step=0, stop=False)
    done.loss, done.grad_norm, done.lr
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from boldcast.config.schema import Config
from boldcast.errors import Diverged
from boldcast.parallel.reduce import gather_rows, sum_rows
from boldcast.parallel.strategy import gradient_source
from boldcast.parallel.world import World, share
from boldcast.train.loader import MicroBatches, Window
from boldcast.train.objective import Objective
from boldcast.train.optim import learning_rate, set_learning_rate
from boldcast.train.seeding import seed_micro_batch


@dataclass(frozen=True)
class Done:
    """What one step computed, the same on every rank."""

    loss: float
    """Mean loss of the global batch, before the step."""

    grad_norm: float
    """L2 norm of the global gradient, before clipping."""

    lr: float
    """Learning rate used."""

    stop: bool
    """Whether any rank was asked to stop."""


class GlobalStep:
    """Takes optimizer steps.

    Parameters
    ----------
    model : nn.Module
        Wrapped for its ranks.
    optimizer : torch.optim.Optimizer
        Over the model's trainable parameters.
    config : Config
    objective : Objective
    world : World

    Attributes
    ----------
    n_micro : int
        Micro-batches of a global batch.
    gradient : GradientSource
        Says which of them are this rank's, and adds up their gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: Config,
        objective: Objective,
        world: World,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.objective = objective
        self.world = world
        self.n_micro = config.train.global_batch_size // config.train.micro_batch_size
        self.gradient = gradient_source(config.numerics.level, model, self.n_micro, world)
        self._full = objective.cells(config.train.micro_batch_size)

    def take(self, batches: Iterator[Window], step: int, stop: bool, sampler: Any = None) -> Done:
        """Make optimizer step ``step`` (from 0).

        Parameters
        ----------
        batches : iterator
            This rank's micro-batches, in order.
        step : int
            Decides the learning rate and the dropout.
        stop : bool
            Whether this rank was asked to stop; the ranks learn of it here.
        sampler : Sampler, optional
            Names the windows of a loss that is not finite.

        Raises
        ------
        Diverged
            On every rank, before the optimizer moves, if a loss or the gradient is not finite.
        """
        sums, losses, stops = self.accumulate(batches, step, stop)
        norm = self._clip()
        # the step's one wait for the device
        loss, norm_value, n_stops, *each = torch.cat(
            [sums[:1] / sums[1:], norm.double().view(1), stops.view(1), losses]
        ).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm_value)):
            raise Diverged(self._cause(step, norm_value, each, sampler))
        train = self.config.train
        lr = learning_rate(
            self.config.optim,
            step,
            steps=train.steps,
            global_batch_size=train.global_batch_size,
        )
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Done(loss, norm_value, lr, n_stops > 0)

    def accumulate(
        self, batches: Iterator[Window], step: int, stop: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradient of one global batch and leave it in every ``grad``.

        Returns
        -------
        sums : Tensor, shape (2,), float64
            Loss and weight added over all micro-batches; their quotient is the mean loss.
        losses : Tensor, shape (n_micro,), float64
            Loss of each micro-batch.
        stops : Tensor, shape (), float64
            How many ranks were asked to stop.
        """
        rows = self._backward(batches, step, stop)
        counts = [
            len(share(self.n_micro, self.world.world_size, rank)) + 1
            for rank in range(self.world.world_size)
        ]
        everyone = gather_rows(rows, counts, self.world)
        ends = list(itertools.accumulate(counts))
        flags = torch.stack([everyone[end - 1, 0] for end in ends])
        parts = [everyone[end - n : end - 1] for n, end in zip(counts, ends, strict=True)]
        leaves = torch.cat(parts)
        sums = sum_rows(leaves)
        self.gradient.finish(sums[1])
        return sums, leaves[:, 0], flags.sum()

    def _backward(self, batches: Iterator[Window], step: int, stop: bool) -> Tensor:
        """Run this rank's micro-batches; a row each of loss and weight, and one of the flag."""
        device = self.objective.region_mask.device
        leaves = self.gradient.leaves
        rows = torch.zeros((len(leaves) + 1, 2), dtype=torch.float64, device=device)
        rows[-1, 0] = float(stop)
        for row, leaf in enumerate(leaves):
            span, observed = (part.to(device, non_blocking=True) for part in next(batches))
            seed_micro_batch(self.config.seed, step, leaf)
            with self.gradient.around(leaf):
                squared, cells = self.objective.errors(self.model, span, observed)
                loss = squared.sum() / self._full
                torch.autograd.backward(loss)
            self.gradient.add(leaf)
            rows[row, 0], rows[row, 1] = loss.detach(), cells.sum() / self._full
        return rows

    def _clip(self) -> Tensor:
        limit = self.config.optim.clip_norm or math.inf
        return self.gradient.clip(limit)

    def _cause(self, step: int, norm: float, losses: list[float], sampler: Any) -> str:
        """Say which micro-batch, rank and windows made step ``step`` not finite."""
        bad = [leaf for leaf, value in enumerate(losses) if not math.isfinite(value)]
        if not bad:
            return (
                f"The gradient of step {step + 1} is not finite (norm {norm}), though its losses "
                "are. The weights were not changed. Lower `optim.lr`."
            )
        owner = next(
            rank
            for rank in range(self.world.world_size)
            if bad[0] in share(self.n_micro, self.world.world_size, rank)
        )
        windows = (
            f", windows {sampler.windows(step, bad[0])}"
            if isinstance(sampler, MicroBatches)
            else ""
        )
        return (
            f"The loss of step {step + 1} is not finite: micro-batch {bad[0]} on rank "
            f"{owner}{windows} gave {losses[bad[0]]}. The weights were not changed. Lower "
            "`optim.lr` or look at these windows."
        )
