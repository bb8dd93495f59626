import numpy as np
import pytest
import torch
from torch import nn

from boldcast.train.evaluate import forecast_scan, window_starts
from boldcast.train.objective import Objective


class WindowMean(nn.Module):
    """Forecasts the mean of the window so far, for one horizon."""

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return (x.cumsum(1) / count).unsqueeze(-1)


@pytest.mark.parametrize(("n", "length"), [(10, 4), (11, 4), (4, 4), (13, 5), (9, 2), (50, 7)])
def test_every_origin_is_forecast_once_with_half_a_context_at_least(n, length):
    series = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    objective = Objective(length, (1,), torch.ones(3))
    for batch_size in (1, 3):
        forecasts, first = forecast_scan(WindowMean(), series, objective, batch_size)
        assert first == length // 2
        assert forecasts.shape == (n - first, 3, 1)
        for origin in range(first, n):
            # of the windows that hold the origin in their second half, the last one counts
            start = max(s for s in window_starts(n, length) if s + first <= origin)
            expected = series[start : origin + 1].mean(0)
            assert np.allclose(forecasts[origin - first, :, 0], expected, atol=1e-5)
            assert length // 2 < origin + 1 - start <= length
