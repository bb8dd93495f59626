import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from boldcast.config.schema import ModelConfig
from boldcast.errors import UsageRefused
from boldcast.model import mixer as mixer_module
from boldcast.model.initial import Draw
from boldcast.model.mixer import (
    GatedRMSNorm,
    Mamba2Mixer,
    causal_conv,
    initialize_mixer,
    make_mixer,
    package_mixer,
)
from boldcast.model.scan import ssd_sequential

SMALL = ModelConfig(d_model=16, headdim=8, d_state=8, chunk_size=8, ngroups=2)


def built(cfg=SMALL, seed=0):
    mixer = Mamba2Mixer(cfg)
    initialize_mixer(mixer, Draw(seed), 1.0)
    return mixer


@pytest.mark.parametrize("n_volumes", [1, 2, 3, 4, 9])
def test_causal_conv_equals_conv1d_in_float64(n_volumes):
    torch.manual_seed(0)
    conv = torch.nn.Conv1d(6, 6, 4, groups=6, padding=3).double()
    x = torch.randn(2, n_volumes, 6, dtype=torch.float64, requires_grad=True)
    truth = conv(x.transpose(1, 2))[..., :n_volumes].transpose(1, 2)
    found = causal_conv(x, conv.weight, conv.bias)
    torch.testing.assert_close(found, truth, rtol=1e-13, atol=1e-13)
    weights = torch.randn_like(truth)
    inputs = [x, conv.weight, conv.bias]
    for mine, reference in zip(
        torch.autograd.grad(found, inputs, weights),
        torch.autograd.grad(truth, inputs, weights),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-13)


def test_gated_norm_equals_the_package_reference():
    mixer_module._import_mamba2()
    from mamba_ssm.ops.triton.layernorm_gated import rms_norm_ref

    torch.manual_seed(0)
    norm = GatedRMSNorm(12, n_groups=3).double()
    torch.nn.init.uniform_(norm.weight)
    norm.weight.data = norm.weight.data.float().double()  # the reference rounds it to float32
    x, z = torch.randn(2, 5, 12).double(), torch.randn(2, 5, 12).double()
    truth = rms_norm_ref(
        x, norm.weight, None, z, eps=1e-5, group_size=4, norm_before_gate=False, upcast=False
    )
    torch.testing.assert_close(norm(x, z), truth, rtol=1e-14, atol=1e-14)


def test_block_equals_its_definition_with_the_sequential_recurrence():
    """Written out from the paper's block: project, convolve, scan, gate, normalize, project."""
    mixer = built().double()
    torch.manual_seed(0)
    u = torch.randn(2, 19, 16, dtype=torch.float64, requires_grad=True)
    z, xbc, dt = mixer.in_proj(u).split([32, 64, 4], dim=-1)
    xbc = F.conv1d(xbc.mT, mixer.conv1d.weight, mixer.conv1d.bias, padding=3, groups=64)
    x, b, c = F.silu(xbc[..., :19].mT).split([32, 16, 16], dim=-1)
    dt = F.softplus(dt + mixer.dt_bias)
    heads = (x.unflatten(2, (4, 8)), b.unflatten(2, (2, 8)), c.unflatten(2, (2, 8)))
    y = ssd_sequential(heads[0], dt, -mixer.A_log.exp(), *heads[1:], mixer.D).flatten(2)
    gated = (y * F.silu(z)).unflatten(2, (2, 16))
    normal = F.rms_norm(gated, (16,), eps=1e-5).flatten(2) * mixer.norm.weight
    truth, found = mixer.out_proj(normal), mixer(u)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-14)
    inputs = [u, *mixer.parameters()]
    for mine, reference in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(truth.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-13)


def test_gradcheck():
    cfg = ModelConfig(d_model=4, headdim=4, d_state=3, chunk_size=2, ngroups=2)
    mixer = built(cfg).double()
    u = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]

    def block(u, *parameters):
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (u,))

    assert torch.autograd.gradcheck(block, (u, *values))


@pytest.mark.parametrize("n_groups", [1, 2])
def test_checkpoints_move_strictly_both_ways(n_groups):
    cfg = replace(SMALL, ngroups=n_groups)
    ours, theirs = built(cfg), package_mixer(cfg)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    back = Mamba2Mixer(cfg)
    back.load_state_dict(theirs.state_dict(), strict=True)
    for name, value in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], value)


def test_both_mixers_start_from_the_same_bits():
    ours, theirs = built(seed=5), package_mixer(SMALL)
    initialize_mixer(theirs, Draw(5), 1.0)
    for name, value in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name


def test_initial_steps_and_decay_rates_are_in_the_package_ranges():
    mixer = built(ModelConfig(d_model=256, headdim=1))
    steps, rates = F.softplus(mixer.dt_bias), mixer.A_log.exp()
    assert 1e-3 * 0.999 < steps.min() < 1.5e-3
    assert 0.07 < steps.max() < 0.1001
    assert 0.999 < rates.min() < 1.5
    assert 15.5 < rates.max() < 16.001
    # Log-uniform steps: their median is the geometric mean of the limits.
    assert steps.median().log10().item() == pytest.approx(-2, abs=0.2)


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    package_mixer(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_weight_decay_marks_are_those_of_the_package():
    marked = {
        kind: {n for n, p in mixer.named_parameters() if getattr(p, "_no_weight_decay", False)}
        for kind, mixer in {"ours": built(), "theirs": package_mixer(SMALL)}.items()
    }
    assert marked["ours"] == marked["theirs"] == {"dt_bias", "A_log", "D"}


def test_make_mixer_chooses_by_device():
    assert isinstance(make_mixer(SMALL, torch.device("cpu")), Mamba2Mixer)
    theirs = make_mixer(SMALL, torch.device("cuda"))
    assert type(theirs).__module__ == "mamba_ssm.modules.mamba2"
    assert theirs.chunk_size == SMALL.chunk_size
    assert theirs.use_mem_eff_path == mixer_module._has_causal_conv1d()


def test_cuda_without_mamba_ssm_is_refused_with_the_first_cause(monkeypatch):
    def missing(name):
        if name.startswith("mamba_ssm"):
            try:
                raise ModuleNotFoundError("No module named 'einops'")
            except ModuleNotFoundError as error:
                raise RuntimeError("could not start") from error
        raise ImportError(name)

    monkeypatch.setattr(mixer_module.importlib, "import_module", missing)
    with pytest.raises(UsageRefused) as refusal:
        make_mixer(SMALL, torch.device("cuda"))
    message = str(refusal.value)
    assert "`train.device`" in message
    assert "ModuleNotFoundError: No module named 'einops'" in message
    assert "--train.device cpu" in message


def test_fused_path_refuses_channels_that_are_no_multiple_of_eight(monkeypatch):
    monkeypatch.setattr(mixer_module, "_has_causal_conv1d", lambda: True)
    with pytest.raises(UsageRefused, match="multiple of 8 on CUDA, but is 44 channels"):
        package_mixer(ModelConfig(d_model=16, headdim=8, d_state=6))
    assert package_mixer(SMALL).use_mem_eff_path is True


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"headdim": 12}, "`model.headdim` must divide .* = 32 channels, but is 12. Try 4."),
        ({"ngroups": 3}, "`model.ngroups` must divide the 4 heads .*, but is 3. Try 1."),
    ],
)
def test_sizes_that_do_not_divide_are_refused(settings, sentence):
    with pytest.raises(UsageRefused, match=sentence):
        make_mixer(replace(SMALL, **settings), torch.device("cpu"))


def test_package_kernels_agree_in_values_and_all_gradients():
    script = Path(__file__).with_name("interpreted_kernels.py")
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    cases = json.loads(result.stdout)
    assert len(cases) == 2
    for case, differences in cases.items():
        assert len(differences) == 2 + 8 + 6, case  # y, x; mixer; embed, head, two norms
        for name, difference in differences.items():
            assert difference < 1e-5, (case, name, difference)
