import torch
from torch import nn

from boldcast.parallel.world import World
from boldcast.train.objective import Objective
from boldcast.train.validate import heldout_errors


class Repeat(nn.Module):
    """Forecasts what it sees, for every horizon."""

    def __init__(self, n_horizons):
        super().__init__()
        self.n_horizons = n_horizons
        self.shapes = []

    def forward(self, x):
        self.shapes.append(tuple(x.shape))
        if x.ndim == 4:
            return x.unsqueeze(3).expand(-1, -1, -1, self.n_horizons, -1)
        return x.unsqueeze(-1).expand(-1, -1, -1, self.n_horizons)


def objective(mask=(1.0, 1.0, 0.0), **more):
    return Objective(4, (1, 3), torch.tensor(mask), **more)


def by_hand(span, observed, mask, horizons, length):
    """The same sums, one cell at a time."""
    squared, cells = [0.0] * len(horizons), [0] * len(horizons)
    for window in range(span.shape[0]):
        for t in range(length):
            for r in range(span.shape[2]):
                for i, h in enumerate(horizons):
                    if mask[r] and observed[window, t] and observed[window, t + h]:
                        squared[i] += float(span[window, t + h, r] - span[window, t, r]) ** 2
                        cells[i] += 1
    return squared, cells


def test_the_sums_are_those_over_each_counted_cell():
    span = torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(0))
    observed = torch.ones(3, 7, dtype=torch.bool)
    observed[1, 2] = observed[2, 6] = False
    squared, cells = objective().errors(Repeat(2), span, observed)
    expected, counted = by_hand(span, observed, (1, 1, 0), (1, 3), 4)
    assert torch.allclose(squared, torch.tensor(expected), rtol=1e-6)
    assert cells.tolist() == counted
    assert objective().cells(3) == 3 * 4 * 2 * 2


def test_a_masked_region_may_hold_anything():
    span = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    other = span.clone()
    other[..., 2] = 1e6
    seen = torch.ones(2, 7, dtype=torch.bool)
    first, second = (objective().errors(Repeat(2), x, seen)[0] for x in (span, other))
    assert torch.equal(first, second)


def test_the_region_layout_sees_and_gives_a_last_axis():
    model = Repeat(2)
    span = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    seen = torch.ones(2, 7, dtype=torch.bool)
    frame = objective().errors(Repeat(2), span, seen)[0]
    region = objective(region_layout=True).errors(model, span, seen)[0]
    assert model.shapes == [(2, 4, 3, 1)]
    assert torch.equal(frame, region)


def test_validation_weighs_cells_not_batches():
    """A last, smaller group must not count as much as a full one."""
    span = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(1))
    seen = torch.ones(5, 7, dtype=torch.bool)
    loader = [(span[:4], seen[:4]), (span[4:], seen[4:])]
    model = Repeat(2).train()
    found = heldout_errors(model, loader, objective(), World())
    squared, cells = by_hand(span, seen, (1, 1, 0), (1, 3), 4)
    assert torch.allclose(torch.tensor(found), torch.tensor(squared) / torch.tensor(cells))
    assert model.training


def test_validation_runs_in_evaluation_mode_and_gives_the_mode_back():
    class Watch(Repeat):
        def forward(self, x):
            self.was_training = self.training
            return super().forward(x)

    model = Watch(2).eval()
    seen = torch.ones(1, 7, dtype=torch.bool)
    heldout_errors(model, [(torch.zeros(1, 7, 3), seen)], objective(), World())
    assert not model.training
    model.train()
    heldout_errors(model, [(torch.zeros(1, 7, 3), seen)], objective(), World())
    assert model.training
    assert not model.was_training
