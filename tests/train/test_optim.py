import math

import pytest
import torch
from torch import nn

from boldcast.config.schema import ModelConfig, OptimConfig
from boldcast.model.forecaster import build_forecaster
from boldcast.train.optim import build_optimizer, learning_rate


def test_the_schedule_at_its_corners_by_hand():
    config = OptimConfig(lr=2.0, warmup_steps=4, min_lr_ratio=0.5)
    rates = [learning_rate(config, s, steps=12, global_batch_size=16) for s in (0, 3, 4, 8, 12)]
    assert rates == pytest.approx([0.5, 2.0, 2.0, 1.5, 1.0], abs=1e-12)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_peak_follows_the_global_batch(scaling, factor):
    config = OptimConfig(lr=1.0, lr_scaling=scaling, lr_reference_batch=16, warmup_steps=0)
    assert learning_rate(config, 0, steps=9, global_batch_size=64) == pytest.approx(factor)


def test_without_warmup_the_first_step_is_at_the_peak():
    assert learning_rate(OptimConfig(lr=1.0, warmup_steps=0), 0, steps=1, global_batch_size=1) == 1


def test_mambas_marked_parameters_are_not_decayed():
    model = build_forecaster(
        ModelConfig(d_model=16, headdim=8, d_state=4, skip="trained"),
        n_regions=5,
        horizons=(1,),
        seed=0,
    )
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.05))
    decayed, exempt = (set(map(id, group["params"])) for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]
    for name, parameter in model.named_parameters():
        marked = name.endswith(("A_log", ".D", "dt_bias", "bias", "norm.weight"))
        assert (id(parameter) in exempt) >= marked, name
        if name.endswith(("in_proj.weight", "out_proj.weight")):
            assert id(parameter) in decayed, name


def test_a_decayed_matrix_shrinks_and_an_exempt_one_does_not():
    model = nn.ParameterDict({"w": torch.ones(2, 2), "A_log": torch.ones(2, 2)})
    model["A_log"]._no_weight_decay = True
    optimizer = build_optimizer(model, OptimConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(model["w"], torch.full((2, 2), 1 - 0.1 * 0.5))
    assert torch.equal(model["A_log"], torch.ones(2, 2))


def test_one_step_of_adamw_by_hand():
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    module = nn.Module()
    module.weight = weight
    optimizer = build_optimizer(module, OptimConfig(lr=0.1, weight_decay=0.0, eps=1e-8))
    weight.grad = torch.tensor([[3.0, -4.0]])
    optimizer.step()
    # bias-corrected first step: lr * g / (|g| + eps)
    expected = [1.0 - 0.1 * 3 / (3 + 1e-8), -2.0 + 0.1 * 4 / (4 + 1e-8)]
    assert weight.detach()[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert math.isclose(optimizer.param_groups[0]["betas"][1], 0.95)
