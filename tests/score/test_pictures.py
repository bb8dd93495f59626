import re
from importlib import resources

import numpy as np
import pytest

from boldcast.score.pictures import PALETTE, smooth, spread, thin


def test_every_colour_of_the_pictures_has_a_light_and_a_dark_value():
    style = resources.files("boldcast.score").joinpath("report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert len(set(PALETTE.values())) == len(PALETTE)
    for name, value in PALETTE.items():
        assert f"--{name}: {value};" in light
        assert re.search(rf"--{name}: #[0-9a-f]{{6}};", dark)


def test_labels_are_pushed_apart_and_stay_centred():
    assert spread([0.1, 0.9], 0.2) == pytest.approx([0.1, 0.9])
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    placed = spread([0.3, 0.45, 0.5, 0.9], 0.2)
    assert np.diff(placed).min() >= 0.2 - 1e-12
    assert np.mean(placed[:3]) == pytest.approx(np.mean([0.3, 0.45, 0.5]))


def test_smoothing_is_the_mean_of_its_window():
    values = list(np.random.default_rng(0).standard_normal(200))
    got = smooth(values)
    assert got[0] == values[0]
    assert got[100] == pytest.approx(np.mean(values[95:106]))
    assert got[2] == pytest.approx(np.mean(values[0:5]))
    assert got[-1] == pytest.approx(np.mean(values[-6:]))


def test_long_curves_are_thinned_to_means_of_groups():
    steps, values = thin(list(range(1, 3001)), [float(v) for v in range(3000)])
    assert len(steps) == 1500
    assert (steps[0], values[0]) == (1.5, 0.5)
