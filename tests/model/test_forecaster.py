from dataclasses import replace

import pytest
import torch
from torch import nn

from boldcast.config.schema import ModelConfig
from boldcast.errors import UsageRefused
from boldcast.model.forecaster import build_forecaster, check_horizons, describe

R, T = 5, 19
TABLE = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 4], [4, 3]])
FRAME = ModelConfig(d_model=16, headdim=8, d_state=8, chunk_size=8, n_layer=2)
REGION = replace(FRAME, layout="region", spatial_k=2)
LAYOUTS = pytest.mark.parametrize("cfg", [FRAME, REGION], ids=["frame", "region"])


def built(cfg, seed=0, horizons=(1, 3), live_head=True):
    model = build_forecaster(
        cfg, n_regions=R, horizons=horizons, neighbours=TABLE, seed=seed, device="cpu"
    )
    if live_head:  # it starts at zero, which would make every comparison empty
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            model.body.head.weight.normal_(generator=generator)
            if model.skip is not None:
                model.skip.ar.normal_(generator=generator)
                model.skip.var_out.normal_(generator=generator)
    return model


def window(cfg, n_volumes=T, dtype=torch.float32):
    x = torch.randn(2, n_volumes, R, generator=torch.Generator().manual_seed(2), dtype=dtype)
    return x if cfg.layout == "frame" else x.unsqueeze(-1)


def loss_and_gradients(model, x):
    torch.manual_seed(7)
    loss = (model(x) - 1).square().mean()
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def all_equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@LAYOUTS
@pytest.mark.parametrize("n_volumes", [1, T])
def test_shapes_and_zero_start(cfg, n_volumes):
    model = built(replace(cfg, skip="trained"), live_head=False)
    y = model(window(cfg, n_volumes))
    tail = (R, 2) if cfg.layout == "frame" else (R, 2, 1)
    assert y.shape == (2, n_volumes, *tail)
    assert not y.any()
    assert model.horizons == (1, 3)


@LAYOUTS
@pytest.mark.parametrize("skip", ["none", "trained"])
def test_causal_bitwise(cfg, skip):
    model = built(replace(cfg, skip=skip))
    x = window(cfg)
    before = model(x)
    x[:, 11] += 100.0
    after = model(x)
    assert torch.equal(after[:, :11], before[:, :11])
    assert all((after[:, t] != before[:, t]).any() for t in range(11, T))


@LAYOUTS
def test_causal_gradients_are_exactly_zero(cfg):
    model = built(replace(cfg, skip="trained"))
    x = window(cfg).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 10].sum(), x)
    assert not gradient[:, 11:].any()
    assert gradient[:, 10].all()


@LAYOUTS
def test_weights_depend_on_the_seed_alone(cfg):
    first, again, other = (built(cfg, seed, live_head=False).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [n for n in first if "in_proj" in n or "embed" in n or "region" in n or "query" in n]
    assert len(drawn) > 3
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_building_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    built(REGION)
    assert torch.equal(torch.get_rng_state(), before)


@LAYOUTS
def test_same_bits_in_repeated_calls_and_under_two_threads(cfg):
    model = built(replace(cfg, skip="trained", dropout=0.2))
    x = window(cfg)
    threads = torch.get_num_threads()
    results = []
    # Small on purpose: how long matrix products are split over threads is the BLAS's affair
    # (MKL_CBWR); everything that this package adds must not depend on it.
    for n_threads in (1, 1, 2):
        torch.set_num_threads(n_threads)
        results.append(loss_and_gradients(model, x))
    torch.set_num_threads(threads)
    assert all_equal(results[0], results[1])
    assert all_equal(results[0], results[2])


@LAYOUTS
def test_activation_checkpointing_changes_no_bit(cfg):
    cfg = replace(cfg, dropout=0.3)
    plain, recomputed = built(cfg), built(replace(cfg, activation_checkpointing=True))
    assert recomputed.body.recompute
    x = window(cfg)
    assert all_equal(loss_and_gradients(plain, x), loss_and_gradients(recomputed, x))


def test_activation_checkpointing_runs_layers_again_only_in_training():
    model = built(replace(FRAME, activation_checkpointing=True))
    calls = []
    model.body.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(window(FRAME)).sum().backward()
    assert len(calls) == 2
    model.eval()
    model(window(FRAME)).sum().backward()
    assert len(calls) == 3


@LAYOUTS
def test_chunk_size_does_not_alter_the_function(cfg):
    truth = built(cfg).double()
    other = built(replace(cfg, chunk_size=3)).double()
    x = window(cfg, dtype=torch.float64)
    torch.testing.assert_close(other(x), truth(x), rtol=1e-10, atol=1e-12)


def test_regions_without_attention_are_independent():
    model = built(replace(REGION, spatial_k=0))
    x = window(REGION)
    before = model(x)
    x[:, :, 2] += 1.0
    changed = (model(x) != before).flatten(3).any(3).any(1).any(0)
    assert changed.tolist() == [False, False, True, False, False]


def test_gradcheck():
    cfg = ModelConfig(
        d_model=4, headdim=4, d_state=2, n_layer=1, chunk_size=2, skip="trained", skip_lags=2
    )
    for layout in ("frame", "region"):
        model = built(replace(cfg, layout=layout, spatial_k=2)).double()
        x = window(replace(cfg, layout=layout), 3, torch.float64)[:1].requires_grad_()
        assert torch.autograd.gradcheck(model, (x,))


def test_no_layers_is_the_skip_path_alone():
    model = built(replace(FRAME, n_layer=0, skip="trained"), live_head=False)
    assert model.body is None
    assert model(window(FRAME)).shape == (2, T, R, 2)


@LAYOUTS
def test_weight_decay_spares_norms_biases_embeddings_and_per_head_scalars(cfg):
    model = built(cfg)
    decayed = {
        name.rsplit(".", 2)[-2]
        for name, p in model.named_parameters()
        if not getattr(p, "_no_weight_decay", False)
    }
    layout = {"frame": set(), "region": {"query_key_value"}}[cfg.layout]
    assert decayed == {"embed", "in_proj", "conv1d", "out_proj", "head"} | layout
    spared = [n for n, p in model.named_parameters() if getattr(p, "_no_weight_decay", False)]
    for ending in ("A_log", "D", "dt_bias", "norm.weight", "conv1d.bias", "embed.bias"):
        assert any(name.endswith(ending) for name in spared)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_check_horizons_looks_through_wrappers():
    model = built(FRAME)
    for candidate in (model, Wrapper(model), Wrapper(Wrapper(model))):
        check_horizons(candidate, [1, 3])
        with pytest.raises(ValueError, match=r"data's \(1, 4\) volumes, but is \(1, 3\)"):
            check_horizons(candidate, (1, 4))
    with pytest.raises(ValueError, match="Linear has none"):
        check_horizons(Wrapper(nn.Linear(1, 1)), (1,))


def test_describe_counts_every_parameter_once():
    model = built(replace(REGION, skip="trained"))
    model.skip.requires_grad_(False)
    counts = describe(model)
    d, inner, channels, heads = 16, 32, 32 + 16, 4
    mixer = d * (inner + channels + heads) + channels * 5 + 3 * heads + inner + inner * d
    assert counts["time"] == 2 * (mixer + d)
    assert counts["space"] == 2 * (4 * d * d + d)
    assert counts["embedding"] == 2 * d + R * d
    assert counts["head"] == d + 2 * d + 2
    assert counts["skip"] == 2 * R * 8 + 5 * R + 2 * R * 5
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["trainable"] == counts["total"] - counts["skip"]


@pytest.mark.parametrize(
    ("settings", "sentences"),
    [
        ({"n_layer": 0}, ["`model.n_layer` must be at least 1"]),
        ({"n_layer": 0, "skip": "fitted"}, ["`model.n_layer` must be at least 1"]),
        ({"layout": "region", "spatial_k": 6}, ["at most the 5 regions of the data, but is 6"]),
        (
            {"layout": "region", "spatial_k": 6, "headdim": 7},
            ["`model.spatial_k` must be", "`model.headdim` must divide"],
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_once(settings, sentences):
    with pytest.raises(UsageRefused) as refusal:
        built(replace(FRAME, **settings))
    assert len(refusal.value.problems) == len(sentences)
    for problem, sentence in zip(refusal.value.problems, sentences, strict=True):
        assert sentence in problem


def test_region_layout_needs_a_table():
    with pytest.raises(ValueError, match="`neighbours` must be given"):
        build_forecaster(REGION, n_regions=R, horizons=(1,), seed=0)
