import numpy as np

from boldcast.score.baselines import ar_forecast, fit_ar
from boldcast.score.linear import MOST_VAR_REGIONS, LinearForecasts


def scans(n_regions, n=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((80, n_regions)).astype(np.float32) for _ in range(n)]


def test_a_masked_region_is_forecast_as_zero_and_changes_no_other():
    train = scans(4)
    mask = np.array([True, False, True, True])
    made = LinearForecasts.fit(train, (1, 2), mask)
    spoilt = [np.where(mask, scan, 1e6).astype(np.float32) for scan in train]
    again = LinearForecasts.fit(spoilt, (1, 2), mask)
    for name, forecasts in made.forecast(train[0]).items():
        assert forecasts.shape == (80, 4, 2)
        assert not forecasts[:, 1].any()
        assert np.array_equal(forecasts, again.forecast(spoilt[0])[name])


def test_the_autoregression_is_that_of_the_baselines():
    train = scans(3)
    made = LinearForecasts.fit(train, (1,), np.ones(3, bool)).forecast(train[1])
    assert np.array_equal(made["ar8"], ar_forecast(fit_ar(train, (1,), 8), train[1]))


def test_no_var_where_its_fit_would_take_minutes():
    train = scans(MOST_VAR_REGIONS + 1, n=2)
    made = LinearForecasts.fit(train, (1,), np.ones(MOST_VAR_REGIONS + 1, bool))
    assert sorted(made.forecast(train[0])) == ["ar8"]
