import pytest

from boldcast.errors import UsageRefused
from boldcast.parallel.world import World, is_rank_zero, share

PLACE = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def test_the_place_is_read_from_torchruns_variables():
    world = World.from_env(PLACE)
    assert (world.rank, world.local_rank, world.world_size, world.local_world_size) == (3, 1, 4, 2)
    assert not world.is_rank_zero


def test_without_torchrun_there_is_one_rank_even_where_slurm_sets_a_size():
    assert World.from_env({"WORLD_SIZE": "8", "MASTER_ADDR": "node1"}) == World()


@pytest.mark.parametrize("missing", ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"])
def test_a_half_set_environment_is_refused_with_the_list(missing):
    env = {name: value for name, value in PLACE.items() if name != missing}
    with pytest.raises(UsageRefused, match=f"half set.*{missing} are not"):
        World.from_env(env)


@pytest.mark.parametrize(("name", "value"), [("RANK", "4"), ("RANK", "-1"), ("WORLD_SIZE", "x")])
def test_a_place_outside_the_world_is_refused(name, value):
    with pytest.raises(UsageRefused):
        World.from_env(PLACE | {name: value})


def test_shares_are_contiguous_complete_and_differ_by_at_most_one():
    for n in range(20):
        for parts in range(1, 9):
            shares = [share(n, parts, part) for part in range(parts)]
            assert [i for piece in shares for i in piece] == list(range(n))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    world = World(rank=1, local_rank=1, world_size=2, local_world_size=2)
    with pytest.raises(UsageRefused, match="this node has 1 for 2 ranks"):
        world.device("auto")
    assert World().device("auto").type == "cuda"
    assert world.device("cpu").type == "cpu"


@pytest.mark.parametrize(
    ("joined", "rank", "first"), [(False, 1, True), (True, 0, True), (True, 1, False)]
)
def test_rank_zero_without_a_world_is_the_groups_or_the_only_process(
    monkeypatch, joined, rank, first
):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: joined)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    assert is_rank_zero() is first
