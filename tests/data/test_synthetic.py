"""The generator: the statistics it promises, and the same numbers whatever the machine does."""

from __future__ import annotations

import numpy as np
import pytest

from boldcast.config.schema import SyntheticConfig
from boldcast.data.synthetic import generate, generate_scan, splits

BIG = SyntheticConfig(n_subjects=6, n_volumes=1200, n_regions=64)


@pytest.mark.parametrize("seed", [0, 1])
def test_statistics_are_those_of_resting_bold(seed: int) -> None:
    lag1, fast, mean_r, between = [], [], [], []
    for scan in generate(BIG, seed):
        z = scan.series.astype(np.float64)
        z = (z - z.mean(0)) / z.std(0)
        each = (z[1:] * z[:-1]).mean(0)
        lag1.append(each.mean())
        between.append(each.std())
        power = np.abs(np.fft.rfft(z, axis=0)) ** 2
        high = np.fft.rfftfreq(len(z), scan.t_r) > 0.2
        fast.append((power[high].sum(0) / power[1:].sum(0)).mean())
        mean_r.append(np.corrcoef(z.T)[np.triu_indices(64, 1)].mean())
    assert np.mean(lag1) == pytest.approx(0.58, abs=0.02)
    assert np.mean(fast) == pytest.approx(0.28, abs=0.02)
    assert np.mean(mean_r) == pytest.approx(0.28, abs=0.03)
    # Unequal signal-to-noise: shares spread evenly from .30 to .92 have a deviation of .18.
    assert np.mean(between) == pytest.approx(0.18, abs=0.03)


def test_a_scan_does_not_depend_on_its_company() -> None:
    few = SyntheticConfig(n_subjects=2, n_volumes=50, n_regions=5)
    many = SyntheticConfig(n_subjects=9, n_volumes=50, n_regions=5)
    assert np.array_equal(generate(many, 3)[1].series, generate(few, 3)[1].series)
    assert np.array_equal(generate_scan(few, 3, 1).series, generate(few, 3)[1].series)


def test_subjects_and_seeds_differ() -> None:
    cfg = SyntheticConfig(n_subjects=4, n_volumes=50, n_regions=5)
    digests = {scan.sha256 for seed in range(4) for scan in generate(cfg, seed)}
    assert len(digests) == 16


def test_the_process_is_stable() -> None:
    cfg = SyntheticConfig(n_subjects=2, n_volumes=5000, n_regions=8)
    for seed in range(10):
        assert np.abs(generate_scan(cfg, seed, 0).series).max() < 8


@pytest.mark.parametrize(("n", "held_out"), [(2, 1), (4, 1), (7, 1), (8, 2), (12, 3)])
def test_the_last_quarter_is_held_out(n: int, held_out: int) -> None:
    sides = splits(SyntheticConfig(n_subjects=n))
    assert sides == ("train",) * (n - held_out) + ("held_out",) * held_out


def test_one_region_is_enough() -> None:
    assert generate(SyntheticConfig(n_regions=1), 0)[0].series.shape == (300, 1)
