import hashlib
import math

import numpy as np
import torch
from torch import nn

from boldcast.model.initial import Draw


def test_unit_is_philox_keyed_by_seed_and_name():
    key = int.from_bytes(hashlib.sha256(b"7/body.head.weight").digest()[:16], "little")
    # numpy's own double conversion takes the upper 53 bits, as documented.
    expected = np.random.Generator(np.random.Philox(key=key)).random(1000)
    np.testing.assert_array_equal(Draw(7).within("body").unit("head.weight", 1000), expected)


def test_uniform_has_the_moments_of_its_interval():
    weight = torch.empty(300, 100)
    Draw(0).uniform("w", weight, bound=0.5)
    assert abs(weight.mean()) < 4 * 0.5 / math.sqrt(3 * weight.numel())
    assert abs(weight.var() - 0.25 / 3) < 2e-3
    assert weight.abs().max() <= 0.5


def test_names_and_seeds_give_unrelated_numbers():
    draws = [Draw(0).unit("a", 4000), Draw(0).unit("b", 4000), Draw(1).unit("a", 4000)]
    correlation = np.corrcoef(draws) - np.eye(3)
    assert np.abs(correlation).max() < 4 / math.sqrt(4000)


def test_linear_is_within_one_over_root_inputs():
    layer = nn.Linear(25, 400)
    Draw(0).linear("layer", layer, scale=0.5)
    for parameter in (layer.weight, layer.bias):
        assert 0.095 < parameter.abs().max() <= 0.1
