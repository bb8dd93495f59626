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

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from boldcast.config.schema import Config
from boldcast.errors import Diverged
from boldcast.files import canonical_json, write_bytes
from boldcast.model.forecaster import check_horizons
from boldcast.parallel.agree import from_rank_zero
from boldcast.parallel.strategy import unwrap, wrap
from boldcast.parallel.world import World
from boldcast.record.trace import TraceWriter
from boldcast.train import checkpoint
from boldcast.train.loader import Window, refuse_padding, stream
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.optim import build_optimizer
from boldcast.train.step import GlobalStep
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
        self.optimizer = build_optimizer(model, config.optim)
        self.model = wrap(model, config.parallel, world)
        self.global_step = GlobalStep(self.model, self.optimizer, config, objective, world)
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
        batches = stream(
            train_loader, sampler, self.state.step, len(self.global_step.gradient.leaves)
        )
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
        self.log.begin(self.state.step, steps)
        if val_loader is not None and not self.state.history["step"]:
            self._validate(val_loader)
        while self.state.step < steps:
            done = self.global_step.take(batches, self.state.step, self.stop.requested, sampler)
            self.state.step = step = self.state.step + 1
            self._report({"loss": done.loss, "grad_norm": done.grad_norm, "lr": done.lr})
            improved = False
            if val_loader is not None and (step == steps or step % val_every == 0):
                improved = self._validate(val_loader)
            due = step == steps or step % self.config.train.checkpoint_every == 0
            if improved or done.stop or due:
                self._save()
            if done.stop and step < steps:
                return Outcome("stopped", self.state)
        return Outcome("completed", self.state)

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
