import pytest

from boldcast.cli import nproc
from boldcast.cli.nproc import default_nproc, read_nproc, world_sizes
from boldcast.config.schema import Config, NumericsConfig, ParallelConfig, TrainConfig
from boldcast.errors import UsageRefused

SIX = TrainConfig(global_batch_size=12, micro_batch_size=2)


def config(level):
    return Config(train=SIX, numerics=NumericsConfig(level=level))


def test_a_number_or_a_range_is_read():
    assert read_nproc("4") == 4
    assert read_nproc("2:8") == (2, 8)
    assert read_nproc("3:3") == (3, 3)


@pytest.mark.parametrize("text", ["0", "0:2", "4:2", ":2", "2:", "1:2:3", "1-2", "1:2\n", "1,2"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="MIN:MAX"):
        read_nproc(text)


def test_every_size_with_work_for_each_rank_will_do_at_exact():
    assert world_sizes(config("exact"), (2, 5)) == [5, 4, 3, 2]
    assert world_sizes(config("exact"), (2, 100_000_000)) == [6, 5, 4, 3, 2]
    assert world_sizes(config("exact"), 3) == [3]


def test_below_exact_only_sizes_that_divide_will_do():
    assert world_sizes(config("deterministic"), (1, 6)) == [6, 3, 2, 1]


def test_a_range_without_any_is_refused_like_its_least():
    with pytest.raises(UsageRefused, match="each of 7 ranks"):
        world_sizes(config("exact"), (7, 9))
    with pytest.raises(UsageRefused, match="2 × 4 = 8"):
        world_sizes(config("deterministic"), (4, 5))


@pytest.mark.parametrize(
    ("n_gpus", "level", "ranks"),
    [(0, "exact", 1), (4, "exact", 4), (8, "exact", 6), (4, "deterministic", 3)],
)
def test_without_a_number_every_gpu_that_has_work_gets_a_rank(monkeypatch, n_gpus, level, ranks):
    monkeypatch.setattr(nproc.environment, "visible_gpus", lambda: n_gpus)
    assert default_nproc(config(level)) == ranks


def test_without_a_number_one_rank_is_started_where_no_more_can_be_used(monkeypatch):
    monkeypatch.setattr(nproc.environment, "visible_gpus", lambda: 8)
    assert default_nproc(Config(train=TrainConfig(device="cpu"))) == 1
    assert default_nproc(Config(parallel=ParallelConfig(strategy="single"))) == 1
