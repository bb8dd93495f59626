"""From a configuration and a packed store to a trained model and its scores.

``build`` puts a training job together, the same on every rank; ``Job.fit`` trains it; ``conclude``
scores the trained model on rank 0 and writes what the report shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader

from boldcast.config.schema import Config
from boldcast.data.neighbours import coordinate_neighbours, correlation_neighbours
from boldcast.data.order import Order
from boldcast.data.segments import observed_stretches
from boldcast.data.store import Store
from boldcast.data.windows import Windows
from boldcast.errors import AcceptanceMissed
from boldcast.files import canonical_json, write_bytes
from boldcast.model.forecaster import Forecaster, build_forecaster
from boldcast.model.skip import fit_skip
from boldcast.parallel.world import World, share
from boldcast.score.baselines import trivial_mse
from boldcast.score.gates import beats_trivial, heldout_decreased_by
from boldcast.score.linear import LinearForecasts
from boldcast.score.metrics import evaluate_forecasts
from boldcast.train.evaluate import forecast_scan
from boldcast.train.loader import MicroBatches, ValidationBatches, Window, end_workers, loader
from boldcast.train.log import RunLog
from boldcast.train.objective import Objective
from boldcast.train.seeding import derive, fix_numerics
from boldcast.train.state import Outcome
from boldcast.train.stop import StopRequest
from boldcast.train.trainer import Trainer


@dataclass(frozen=True)
class Job:
    """A run that is ready to train."""

    config: Config
    store: Store
    model: Forecaster
    trainer: Trainer
    train_loader: DataLoader[Window]
    batches: MicroBatches
    val_loader: DataLoader[Window]
    held_out: Windows

    def fit(self) -> Outcome:
        """Train to the end or to a stop request."""
        try:
            return self.trainer.fit(
                self.train_loader,
                sampler=self.batches,
                val_loader=self.val_loader,
                val_every=self.config.validation.every,
            )
        finally:
            end_workers(self.train_loader)


def build(
    config: Config, store: Store, world: World, run_dir: Path, log: RunLog, stop: StopRequest
) -> Job:
    """Put together model, data and trainer for this rank.

    Raises
    ------
    DataRefused
        If a split has no window.
    UsageRefused
        If the configuration does not fit this machine or world size.
    """
    fix_numerics(config.numerics)
    device = world.device(config.train.device)
    data, size = config.data, config.train.micro_batch_size
    windows = Windows(store, "train", data.context_length, data.horizons, data.stride)
    held_out = Windows(store, "held_out", data.context_length, data.horizons, data.val_stride)
    model = build_model(config, store, device)
    trainer = Trainer(model, config, _objective(config, store, device), world, run_dir, log, stop)
    batches = MicroBatches(
        Order(len(windows), derive(config.seed, "order")),
        trainer.global_step.gradient.leaves,
        n_micro=trainer.global_step.n_micro,
        micro_batch_size=size,
    )
    groups = ValidationBatches(len(held_out), size, world, config.validation.mode)
    n_workers = len(share(data.num_workers, world.world_size, world.rank))
    pinned = device.type == "cuda"
    return Job(
        config=config,
        store=store,
        model=model,
        trainer=trainer,
        batches=batches,
        train_loader=loader(windows, batches, n_workers=n_workers, pin_memory=pinned),
        val_loader=loader(held_out, groups, pin_memory=pinned),
        held_out=held_out,
    )


def _objective(config: Config, store: Store, device: torch.device) -> Objective:
    return Objective(
        context_length=config.data.context_length,
        horizons=config.data.horizons,
        region_mask=torch.from_numpy(store.region_mask.astype(np.float32)).to(device),
        region_layout=config.model.layout == "region",
        autocast=torch.bfloat16 if config.train.dtype == "bfloat16" else None,
    )


def build_model(config: Config, store: Store, device: torch.device) -> Forecaster:
    """Return the forecaster with its first weights, which depend on the seed alone."""
    settings = config.model
    neighbours: Tensor | None = None
    if settings.layout == "region" and settings.spatial_k:
        if settings.spatial_neighbours == "coordinates":
            table = coordinate_neighbours(
                Path(str(settings.coordinates)), store.regions, settings.spatial_k
            )
        else:
            table = correlation_neighbours(store, settings.spatial_k)
        neighbours = torch.from_numpy(table)
    model = build_forecaster(
        settings,
        n_regions=len(store.regions),
        horizons=config.data.horizons,
        neighbours=neighbours,
        seed=derive(config.seed, "weights"),
        device=device,
    )
    if settings.skip == "fitted" and model.skip is not None:
        fit_skip(
            model.skip, _series(config, store, "train"), store.region_mask, settings.skip_ridge
        )
    return model


def conclude(job: Job, run_dir: Path) -> dict[str, Any]:
    """Score the trained model and write what the run leaves; rank 0 only.

    Writes ``model.safetensors``, ``history.json`` and ``evaluation.json`` and returns the scores
    for the record, the missed bars in ``missed``.
    """
    model, _ = job.trainer.whole
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_bytes(run_dir / "model.safetensors", save(weights))
    history = job.trainer.state.history
    baselines = _trivial(job)
    evaluation = evaluate_forecasts(
        _forecasts(job),
        job.config.data.horizons,
        job.store.region_mask,
        job.store.regions,
        t_r=job.store.t_r,
        notes=job.store.notes,
    )
    write_bytes(run_dir / "evaluation.json", canonical_json(evaluation))
    missed = _missed(job.config, history, baselines)
    write_bytes(
        run_dir / "history.json",
        canonical_json({**history, "baselines": baselines, "missed": missed}),
    )
    return {
        "held_out_mse": history["val_loss"][-1],
        "held_out_mse_per_horizon": history["per_horizon"][-1],
        "best_step": job.trainer.state.best_step,
        "baselines": baselines,
        "missed": missed,
    }


def _missed(
    config: Config, history: Mapping[str, Any], baselines: Mapping[str, float]
) -> list[str]:
    """Return a sentence for each bar of the configuration that the run did not reach."""
    bars = config.validation
    missed: list[str] = []
    try:
        if bars.heldout_decreased_by:
            heldout_decreased_by(history, bars.heldout_decreased_by)
    except AcceptanceMissed as error:
        missed.append(str(error))
    try:
        if bars.baseline_ratio:
            beats_trivial(history["val_loss"][-1], baselines, bars.baseline_ratio)
    except AcceptanceMissed as error:
        missed.append(str(error))
    return missed


def _trivial(job: Job) -> dict[str, float]:
    """Return the trivial forecasts' mean squared errors on the held-out windows."""
    data = job.config.data
    spans = ((s.numpy()[None], o.numpy()[None]) for s, o in _each(job.held_out))
    errors = trivial_mse(spans, data.context_length, data.horizons, job.store.region_mask)
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _each(windows: Windows) -> Iterator[Window]:
    return (windows[index] for index in range(len(windows)))


def _forecasts(
    job: Job,
) -> Iterator[tuple[NDArray[np.float32], dict[str, NDArray[Any]], int]]:
    """Yield truth, each forecaster's forecasts and the first origin of every held-out scan."""
    scans = _series(job.config, job.store, "train")
    linear = LinearForecasts.fit(scans, job.config.data.horizons, job.store.region_mask)
    batch_size = job.config.train.micro_batch_size
    for series in _series(job.config, job.store, "held_out"):
        forecasts, first = forecast_scan(
            job.trainer.whole[0], series, job.trainer.objective, batch_size
        )
        rivals = {name: made[first:] for name, made in linear.forecast(series).items()}
        yield series, {"model": forecasts, **rivals}, first


def _series(config: Config, store: Store, split: str) -> list[NDArray[np.float32]]:
    """Return the gapless stretches of one side of the split, float32 (n_volumes, n_regions)."""
    return [
        np.array(store.series[store.volumes(index)][first : first + length])
        for index, scan in enumerate(store.scans)
        if scan.split == split
        for first, length in observed_stretches(store.observed[store.volumes(index)])
        if length > config.data.context_length
    ]
