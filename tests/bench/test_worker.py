"""What one rank measures, on a stand-in for the trainer."""

import math
from types import SimpleNamespace

import pytest
import torch

from boldcast.bench import worker
from boldcast.parallel.world import World


class Standin:
    """Counts its steps; its gradient in step k is k."""

    def __init__(self, losses):
        self.losses = iter(losses)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.objective = SimpleNamespace(region_mask=torch.ones(1))
        self.world = World()
        self.state = SimpleNamespace(step=0)
        self.global_step = self
        self.seen = []

    def accumulate(self, batches, step):
        assert all(p.grad is None for p in self.model.parameters())
        self.seen.append((next(batches), step, self.model.training))
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, float(step))
        return torch.tensor([next(self.losses), 1.0]), None, None


@pytest.fixture
def measure(monkeypatch):
    def call(losses, **sizes):
        trainer = Standin(losses)
        barriers = []
        monkeypatch.setattr(worker.dist, "barrier", lambda: barriers.append(len(trainer.seen)))
        return trainer, worker.measure(trainer, iter(range(100)), **sizes), barriers

    return call


def test_all_ranks_begin_together_after_the_warm_up_and_only_then_time(measure):
    trainer, timed, barriers = measure([1.0] * 9, warmup=3, steps=6)
    assert barriers == [3]
    assert len(timed.steps_s) == 6
    assert all(seconds > 0 for seconds in timed.steps_s)
    # every step has its own data and its own place in the run, as in training
    assert trainer.seen == [(step, step, True) for step in range(9)]
    assert timed.finite
    assert (timed.rank, timed.device) == (0, "cpu")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 4, 8])
def test_one_loss_that_is_not_finite_is_reported(measure, bad, where):
    losses = [1.0] * 9
    losses[where] = bad
    assert not measure(losses, warmup=3, steps=6)[1].finite


def test_a_gradient_that_is_not_finite_is_reported(measure, monkeypatch):
    monkeypatch.setattr(torch, "full_like", lambda like, value: torch.full(like.shape, math.nan))
    assert not measure([1.0] * 9, warmup=3, steps=6)[1].finite


def test_a_task_comes_back_from_its_file(tmp_path):
    task = worker.Task(config="c.toml", folder="f", report="r.json", warmup=3, steps=50)
    content = worker.orjson.loads(task.write(tmp_path / "task.json").read_bytes())
    assert worker.Task(**content) == task
