import itertools

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from boldcast.data.order import Order
from boldcast.parallel.world import World
from boldcast.train.loader import (
    MicroBatches,
    ValidationBatches,
    infinite_loader,
    refuse_padding,
    stream,
)


class Spy(DistributedSampler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)
        super().set_epoch(epoch)


def windows(n):
    return TensorDataset(torch.arange(n))


def test_set_epoch_is_called_exactly_once_per_cycle_and_changes_the_order():  # pytorch#31771
    sampler = Spy(windows(10), num_replicas=2, rank=0)
    batches = infinite_loader(DataLoader(windows(10), sampler=sampler), sampler)
    cycles = [[int(b[0]) for b in itertools.islice(batches, 5)] for _ in range(3)]
    assert sampler.epochs == [0, 1, 2]
    assert len({tuple(cycle) for cycle in cycles}) == 3


def test_one_seed_gives_ranks_disjoint_and_complete_parts():  # mlcommons/training#625
    n = 12
    samplers = [DistributedSampler(windows(n), num_replicas=3, rank=r, seed=5) for r in range(3)]
    loaders = [
        infinite_loader(DataLoader(windows(n), sampler=sampler), sampler) for sampler in samplers
    ]
    for _ in range(2):
        seen = [int(b[0]) for part in loaders for b in itertools.islice(part, n // 3)]
        assert sorted(seen) == list(range(n))


def test_a_loader_without_a_sampler_cycles_as_it_is():
    batches = infinite_loader(DataLoader(windows(3)))
    assert [int(b[0]) for b in itertools.islice(batches, 7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_resumed_cycle_goes_on_in_its_own_epoch():  # transformers#11284
    def values(start):
        sampler = Spy(windows(10), num_replicas=2, rank=1)
        batches = infinite_loader(DataLoader(windows(10), sampler=sampler), sampler, start)
        return [int(b[0]) for b in itertools.islice(batches, 20 - start)]

    assert values(8) == values(0)[8:]


def test_an_empty_loader_is_refused():
    with pytest.raises(ValueError, match="yields no batch"):
        next(infinite_loader([]))


def test_micro_batches_partition_the_stream_for_any_number_of_ranks():
    order = Order(23, seed=3)
    n_micro, size, steps = 6, 2, 9
    expected = order.indices(0, n_micro * size * steps).reshape(steps, n_micro, size).tolist()
    for world_size in (1, 2, 3, 4, 5):
        found = [[None] * n_micro for _ in range(steps)]
        for rank in range(world_size):
            leaves = World(rank, rank, world_size, world_size).share(n_micro)
            batches = MicroBatches(order, leaves, n_micro=n_micro, micro_batch_size=size)
            parts = itertools.islice(batches, steps * len(leaves))
            for index, part in enumerate(parts):
                found[index // len(leaves)][leaves[index % len(leaves)]] = part
        assert found == expected


def test_seeking_gives_what_running_there_gives():
    batches = MicroBatches(Order(11, seed=1), range(1, 3), n_micro=4, micro_batch_size=3)
    whole = list(itertools.islice(batches, 12))
    batches.seek(4)
    assert list(itertools.islice(batches, 4)) == whole[8:]
    assert next(stream(list(whole), batches, 5, 2)) == whole[0]
    assert batches.step == 5


def test_any_sampler_is_streamed_from_the_step_on():
    batches = stream(DataLoader(windows(4)), None, step=1, n_leaves=3)
    assert [int(b[0]) for b in itertools.islice(batches, 3)] == [3, 0, 1]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_validation_covers_every_window_once_in_the_same_groups(world_size):  # pytorch#25162
    groups = [
        group
        for rank in range(world_size)
        for group in ValidationBatches(10, 4, World(rank, rank, world_size, world_size), "sharded")
    ]
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_rank0_mode_leaves_the_other_ranks_nothing():
    sizes = [len(ValidationBatches(10, 4, World(r, r, 2, 2), "rank0")) for r in range(2)]
    assert sizes == [3, 0]


def test_a_padding_validation_sampler_is_refused():  # Lightning#2398
    def padded(n):
        sampler = DistributedSampler(windows(n), num_replicas=4, rank=0, shuffle=False)
        return DataLoader(windows(n), sampler=sampler)

    with pytest.raises(ValueError, match="pads 10 windows for 4 ranks"):
        refuse_padding(padded(10))
    refuse_padding(padded(12))
    refuse_padding(DataLoader(windows(10)))
