"""The training loop.

::

    for each optimizer step
        forward and backward, one micro-batch at a time
        the micro-batches' gradients, added over all ranks
        one small collective: losses and stop requests, the same on every rank
        finite?  (agreed before the optimizer moves)
        clip, AdamW step, trace line
        now and then: validate, compare the ranks' weights, checkpoint, stop

Example
-------
With torch's own sampler::

    trainer = Trainer(model, config, objective, world, run_dir, log)
    trainer.fit(loader, sampler=DistributedSampler(windows), val_loader=held_out, val_every=50)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from boldcast.config.schema import Config
from boldcast.errors import Diverged
from boldcast.files import canonical_json, write_bytes
from boldcast.model.forecaster import check_horizons
from boldcast.parallel.agree import any_rank, from_rank_zero
from boldcast.parallel.drift import refuse_drift
from boldcast.parallel.fsdp import gathered, is_sharded, whole_tensors
from boldcast.parallel.strategy import chosen, unwrap, wrap
from boldcast.parallel.world import World
from boldcast.record.trace import TraceWriter
from boldcast.train.checkpoint import Checkpoints, state_tensors
from boldcast.train.kept import newest
from boldcast.train.loader import Window, refuse_padding, stream
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.optim import build_optimizer
from boldcast.train.state import Outcome, TrainState, change_in_words, place, promises_same_bits
from boldcast.train.step import GlobalStep
from boldcast.train.stop import StopRequest
from boldcast.train.validate import Interrupted, heldout_errors


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

    Attributes
    ----------
    whole : tuple of Module and dict of Tensor
        Once trained to the end: the plain model and the optimizer's tensors ``name/quantity``,
        put together from all ranks.
    resumed_from : dict or None
        The ``place`` that wrote the checkpoint continued from (``state.place``), and whether the
        level promises the bits of an undisturbed run here (``same_bits``).
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
        device = next(model.parameters()).device
        self.place = place(world, chosen(config.parallel, world), device)
        self.resumed_from: dict[str, Any] | None = None
        # sharding changes the model itself; its copy waits where memory is not scarce
        self._plain = model if self.place["strategy"] != "fsdp2" else deepcopy(model).cpu()
        self.model = wrap(model, config.parallel, world)
        self.optimizer = build_optimizer(unwrap(self.model), config.optim)
        self.checkpoints = Checkpoints(
            run_dir,
            self.model,
            self.optimizer,
            world,
            keep=config.train.keep_checkpoints,
            written_by=self.place,
            background=config.train.async_checkpoint,
            timeout_s=config.parallel.timeout_s,
        )
        self.global_step = GlobalStep(self.model, self.optimizer, config, objective, world)
        self._drift_every = config.parallel.drift_check_every
        self._trace: TraceWriter | None = None

    def resume(self) -> bool:
        """Continue from the newest whole checkpoint, if there is one; tell whether there was."""
        path = from_rank_zero(self.world, lambda: newest(self.run_dir, self.log.say))
        if path is None:
            return False
        state = self.checkpoints.load(path)
        before = state.pop("written_by")
        self.state = TrainState(**state)
        self.log.say(f"Continuing from {path.name}.")
        level = self.config.numerics.level
        same_bits = promises_same_bits(level, before, self.place)
        self.resumed_from = {**before, "same_bits": same_bits}
        if not same_bits:
            self.log.say(change_in_words(level, before, self.place))
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
        batches = self._batches(train_loader, sampler, val_loader)
        with ExitStack() as stack:
            if self.world.is_rank_zero:
                path = self.run_dir / "trace.jsonl"
                self._trace = stack.enter_context(TraceWriter.resume(path, self.state.step))
            stack.callback(self.checkpoints.settle, self.log.say)
            outcome = self._loop(batches, sampler, val_loader, val_every)
            self.checkpoints.wait()
        if outcome.status == "completed":
            self.whole = self._whole_state()
        return outcome

    def _batches(
        self, train_loader: Iterable[Window], sampler: Any, val_loader: Iterable[Window] | None
    ) -> Iterator[Window]:
        """Refuse what does not fit, and return the micro-batches from the current step on."""
        check_horizons(self.model, self.objective.horizons)
        if val_loader is not None:
            refuse_padding(val_loader)
        n_own = len(self.global_step.gradient.leaves)
        return stream(train_loader, sampler, self.state.step, n_own)

    def _whole_state(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the plain model and, on the CPU, the optimizer's tensors of all ranks."""
        tensors = whole_tensors(state_tensors(self.model, self.optimizer))
        if is_sharded(self.model):
            self._plain.load_state_dict({n: t for n, t in tensors.items() if "/" not in n})
            self._plain.to(self.objective.region_mask.device)
        return self._plain, {name: t for name, t in tensors.items() if "/" in name}

    def _loop(
        self,
        batches: Iterator[Window],
        sampler: Any,
        val_loader: Iterable[Window] | None,
        val_every: int | None,
    ) -> Outcome:
        steps = self.config.train.steps
        val_every = val_every or steps
        self.model.train()
        self.log.begin(self.state.step, steps)
        self._compare_ranks()
        if self._agree_to_stop():
            return Outcome("stopped", self.state)
        try:
            # also one that a stop request interrupted
            if self._validate_if_due(val_loader, val_every):
                self._save()
        except Interrupted:
            return Outcome("stopped", self.state)
        while self.state.step < steps:
            # a save that failed stops all ranks at the next boundary, where it is raised
            stop = self.stop.requested or self.checkpoints.failed
            done = self.global_step.take(batches, self.state.step, stop, sampler)
            self.state.step = step = self.state.step + 1
            self._report({"loss": done.loss, "grad_norm": done.grad_norm, "lr": done.lr})
            try:
                improved = self._validate_if_due(val_loader, val_every)
            except Interrupted:
                self._save()
                return Outcome("stopped", self.state)
            stop = done.stop
            if improved or stop or step == steps or step % self.config.train.checkpoint_every == 0:
                self._save()
                stop = stop or self._agree_to_stop()
            elif self._drift_every and step % self._drift_every == 0:
                self._compare_ranks()
            if stop and step < steps:
                return Outcome("stopped", self.state)
        return Outcome("completed", self.state)

    def _agree_to_stop(self) -> bool:
        return any_rank(self.world, self.stop.requested, self.objective.region_mask.device)

    def _compare_ranks(self) -> None:
        if self._drift_every:
            refuse_drift(unwrap(self.model), self.optimizer, self.world, self.state.step)

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

    def _validate_if_due(self, val_loader: Iterable[Window] | None, every: int) -> bool:
        """Validate at the steps where it is due, once; return whether the loss is the best."""
        step = self.state.step
        due = step % every == 0 or step == self.config.train.steps
        if val_loader is None or not due or step in self.state.history["step"]:
            return False
        return self._validate(val_loader)

    def _validate(self, val_loader: Iterable[Window]) -> bool:
        """Add the held-out loss to the history; return whether it is the best so far."""
        with gathered(self.model):
            per_horizon = heldout_errors(
                unwrap(self.model),
                val_loader,
                self.objective,
                self.world,
                lambda: self.stop.requested,
            )
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
        self._compare_ranks()
        if self._trace is not None:
            self._trace.flush()
        self.checkpoints.save(self.state.step, asdict(self.state), self.state.best_step)
