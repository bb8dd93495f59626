"""The training loop.

::

    for each optimizer step
        forward and backward, one micro-batch at a time
        the micro-batches' gradients, added over all ranks
        one small collective: losses and stop requests, the same on every rank
        finite?  (agreed before the optimizer moves)
        clip, AdamW step, trace line
        now and then: validate, checkpoint, stop

Example
-------
With torch's own sampler::

    trainer = Trainer(model, config, objective, world, run_dir, log)
    trainer.fit(loader, sampler=DistributedSampler(windows), val_loader=held_out, val_every=50)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from boldcast.config.schema import Config
from boldcast.errors import Diverged
from boldcast.files import canonical_json, write_bytes
from boldcast.model.forecaster import check_horizons
from boldcast.parallel.agree import from_rank_zero
from boldcast.parallel.reduce import gather_rows, sum_rows
from boldcast.parallel.strategy import gradient_source, trainable, unwrap, wrap
from boldcast.parallel.world import World, share
from boldcast.record.trace import TraceWriter
from boldcast.train import checkpoint
from boldcast.train.loader import MicroBatches, Window, refuse_padding, stream
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.optim import build_optimizer, learning_rate, set_learning_rate
from boldcast.train.seeding import seed_micro_batch
from boldcast.train.stop import StopRequest
from boldcast.train.validate import heldout_errors


@dataclass
class TrainState:
    """All that a run is, beside its weights and the optimizer's tensors."""

    step: int = 0
    """Optimizer steps done; the place in the data follows from it."""

    history: dict[str, list[Any]] = field(
        default_factory=lambda: {"step": [], "val_loss": [], "per_horizon": []}
    )
    """Held-out losses so far."""

    best_step: int | None = None
    """The step with the lowest held-out loss."""


@dataclass(frozen=True)
class Outcome:
    """How ``fit`` ended."""

    status: Literal["completed", "stopped"]
    state: TrainState


class Trainer:
    """Trains one model on the ranks of ``world``.

    Parameters
    ----------
    model : Forecaster
        Unwrapped, on this rank's device, with the same weights on every rank.
    config : Config
    objective : Objective
        What is forecast.
    world : World
    run_dir : Path
        Where rank 0 writes the trace and the checkpoints.
    log : RunLog
    stop : StopRequest, optional
        Checked at every step boundary.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        objective: Objective,
        world: World,
        run_dir: Path,
        log: RunLog,
        stop: StopRequest | None = None,
    ) -> None:
        self.config = config
        self.objective = objective
        self.world = world
        self.run_dir = run_dir
        self.log = log
        self.stop = stop or StopRequest()
        self.state = TrainState()
        self.n_micro = config.train.global_batch_size // config.train.micro_batch_size
        self.optimizer = build_optimizer(model, config.optim)
        self.model = wrap(model, config.parallel, world)
        self.gradient = gradient_source(config.numerics.level, self.model, self.n_micro, world)
        self._full = objective.cells(config.train.micro_batch_size)
        self._trace: TraceWriter | None = None

    def resume(self) -> bool:
        """Continue from the newest whole checkpoint, if there is one; tell whether there was."""
        path = from_rank_zero(self.world, lambda: checkpoint.newest(self.run_dir, self.log.say))
        if path is None:
            return False
        self.state = TrainState(**checkpoint.load(path, unwrap(self.model), self.optimizer))
        self.log.say(f"Continuing from {path.name}.")
        return True

    def fit(
        self,
        train_loader: Iterable[Window],
        *,
        sampler: Any = None,
        val_loader: Iterable[Window] | None = None,
        val_every: int | None = None,
    ) -> Outcome:
        """Train up to ``train.steps`` and return how it ended.

        Parameters
        ----------
        train_loader : iterable of (span, observed)
            This rank's micro-batches.
        sampler : Sampler, optional
            The loader's; a ``MicroBatches`` is sought to the current step, any other has
            ``set_epoch`` called once per cycle.
        val_loader : iterable of (span, observed), optional
            This rank's part of the held-out windows.
        val_every : int, optional
            Steps between validations; the first is before any step, the last after all.

        Raises
        ------
        Diverged
            If a loss or the gradient is not finite, on every rank alike.
        ValueError
            If the model's horizons are not those of the data.
        """
        steps = self.config.train.steps
        check_horizons(self.model, self.objective.horizons)
        if val_loader is not None:
            refuse_padding(val_loader)
        batches = stream(train_loader, sampler, self.state.step, len(self.gradient.leaves))
        if not self.world.is_rank_zero:
            return self._loop(batches, sampler, val_loader, val_every or steps)
        with TraceWriter.resume(self.run_dir / "trace.jsonl", self.state.step) as self._trace:
            return self._loop(batches, sampler, val_loader, val_every or steps)

    def _loop(
        self,
        batches: Iterator[Window],
        sampler: Any,
        val_loader: Iterable[Window] | None,
        val_every: int,
    ) -> Outcome:
        steps = self.config.train.steps
        self.model.train()
        if val_loader is not None and not self.state.history["step"]:
            self._validate(val_loader)
        self.log.begin(self.state.step, steps)
        while self.state.step < steps:
            stop = self._step(batches, sampler)
            step = self.state.step
            improved = False
            if val_loader is not None and (step == steps or step % val_every == 0):
                improved = self._validate(val_loader)
            if improved or stop or step == steps or step % self.config.train.checkpoint_every == 0:
                self._save()
            if stop and step < steps:
                return Outcome("stopped", self.state)
        return Outcome("completed", self.state)

    def _step(self, batches: Iterator[Window], sampler: Any) -> bool:
        """Make one optimizer step; return whether any rank was asked to stop."""
        config, step = self.config, self.state.step
        sums, losses, stop = self.accumulate(batches)
        norm = self._clip()
        # the step's one wait for the device
        loss, norm_value, stop_value, *each = torch.cat(
            [(sums[:1] / sums[1:]), norm.double().view(1), stop.view(1), losses]
        ).tolist()
        self._refuse_nonfinite(loss, norm_value, each, sampler)
        lr = learning_rate(
            config.optim,
            step,
            steps=config.train.steps,
            global_batch_size=config.train.global_batch_size,
        )
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step = step + 1
        self._report({"loss": loss, "grad_norm": norm_value, "lr": lr})
        return bool(stop_value > 0)

    def accumulate(self, batches: Iterator[Window]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradient of one global batch and leave it in every ``grad``.

        Returns
        -------
        sums : Tensor, shape (2,), float64
            Loss and weight added over all micro-batches; their quotient is the mean loss.
        losses : Tensor, shape (n_micro,), float64
            Loss of each micro-batch.
        stop : Tensor, shape (), float64
            How many ranks were asked to stop.
        """
        rows = self._backward(batches)
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

    def _backward(self, batches: Iterator[Window]) -> Tensor:
        """Run this rank's micro-batches; a row each of loss and weight, and one of the flag."""
        device = self.objective.region_mask.device
        leaves = self.gradient.leaves
        rows = torch.zeros((len(leaves) + 1, 2), dtype=torch.float64, device=device)
        rows[-1, 0] = float(self.stop.requested)
        for row, leaf in enumerate(leaves):
            span, observed = (part.to(device, non_blocking=True) for part in next(batches))
            seed_micro_batch(self.config.seed, self.state.step, leaf)
            with self.gradient.around(leaf):
                squared, cells = self.objective.errors(self.model, span, observed)
                loss = squared.sum() / self._full
                torch.autograd.backward(loss)
            self.gradient.add(leaf)
            rows[row, 0], rows[row, 1] = loss.detach(), cells.sum() / self._full
        return rows

    def _clip(self) -> Tensor:
        parameters = trainable(self.model)
        limit = self.config.optim.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)

    def _refuse_nonfinite(
        self, loss: float, norm: float, losses: list[float], sampler: Any
    ) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        step = self.state.step + 1
        bad = [leaf for leaf, value in enumerate(losses) if not math.isfinite(value)]
        if not bad:
            raise Diverged(f"The gradient of step {step} is not finite ({norm}); its losses are.")
        owner = next(
            rank
            for rank in range(self.world.world_size)
            if bad[0] in share(self.n_micro, self.world.world_size, rank)
        )
        windows = (
            f", windows {sampler.windows(self.state.step, bad[0])}"
            if isinstance(sampler, MicroBatches)
            else ""
        )
        raise Diverged(
            f"The loss of step {step} is not finite: micro-batch {bad[0]} on rank {owner}{windows} "
            f"gave {losses[bad[0]]}. The weights were not changed. Lower `optim.lr` or look at "
            "these windows."
        )

    def _report(self, values: dict[str, float]) -> None:
        step, objective = self.state.step, self.objective
        if self._trace is not None:
            self._trace.append(step, values["loss"], values["grad_norm"], values["lr"])
        tokens = (
            self.config.train.global_batch_size
            * objective.context_length
            * len(objective.region_mask)
        )
        self.log.step(step, self.config.train.steps, values, tokens)

    def _validate(self, val_loader: Iterable[Window]) -> bool:
        """Add the held-out loss to the history; return whether it is the best so far."""
        per_horizon = heldout_errors(unwrap(self.model), val_loader, self.objective, self.world)
        mse = math.fsum(per_horizon) / len(per_horizon)
        step, history = self.state.step, self.state.history
        if not math.isfinite(mse):
            raise Diverged(f"The held-out loss after step {step} is not finite ({mse}).")
        improved = step > 0 and mse < min(history["val_loss"])
        history["step"].append(step)
        history["val_loss"].append(mse)
        history["per_horizon"].append(per_horizon)
        if improved:
            self.state.best_step = step
        if self.world.is_rank_zero:
            write_bytes(self.run_dir / "history.json", canonical_json(history))
        self.log.validation(step, mse, dict(zip(self.objective.horizons, per_horizon, strict=True)))
        return improved

    def _save(self) -> None:
        if self._trace is None:
            return
        self._trace.flush()
        checkpoint.save(
            self.run_dir, self.state.step, unwrap(self.model), self.optimizer, asdict(self.state)
        )
        checkpoint.prune(self.run_dir, self.config.train.keep_checkpoints, self.state.best_step)
