"""The rules of the levels, over what was found in a process; whole runs are in test_trouble."""

import dataclasses

import pytest
import torch
from torch import nn

from boldcast.config.schema import Config, NumericsConfig
from boldcast.errors import UsageRefused
from boldcast.launch.environment import merged
from boldcast.parallel.world import World
from boldcast.train import numerics
from boldcast.train.numerics import Found, parted, problems
from boldcast.train.seeding import fix_numerics

ON_CUDA = Found("cuda", merged(Config(), {}))


@pytest.mark.parametrize("level", ["exact", "deterministic"])
def test_what_the_launching_process_exports_is_enough(level):
    config = Config(numerics=NumericsConfig(level=level))
    assert problems(config.numerics, Found("cuda", merged(config, {}))) == []
    assert problems(config.numerics, Found("cpu", merged(config, {}))) == []
    assert problems(config.numerics, Found("cpu", {})) == []


@pytest.mark.parametrize("level", ["exact", "deterministic"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAMBA_DETERMINISTIC", None),
        ("MAMBA_DETERMINISTIC", "0"),
        ("MAMBA_DETERMINISTIC", ""),
        ("CAUSAL_CONV1D_DETERMINISTIC", None),
        ("CAUSAL_CONV1D_DETERMINISTIC", "0"),
        ("CUBLAS_WORKSPACE_CONFIG", None),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0"),
        ("TRITON_F32_DEFAULT", None),
        ("TRITON_F32_DEFAULT", "tf32"),
        ("TRITON_CACHE_AUTOTUNING", "1"),
        ("OMP_NUM_THREADS", "7"),
        ("MKL_NUM_THREADS", "2"),
        ("OPENBLAS_NUM_THREADS", "2"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"),
    ],
)
def test_each_wrong_value_is_named_with_its_remedy(level, name, value):
    env = {k: v for k, v in ON_CUDA.env.items() if k != name}
    env |= {} if value is None else {name: value}
    found = dataclasses.replace(ON_CUDA, env=env)
    (sentence,) = problems(NumericsConfig(level=level), found)
    assert sentence.startswith(f"`{name}` must ")
    assert any(word in sentence for word in ("export ", "Unset it"))
    assert problems(NumericsConfig(level="fast"), found) == []


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_both_workspaces_of_cublas_will_do(value):
    env = dict(ON_CUDA.env) | {"CUBLAS_WORKSPACE_CONFIG": value}
    assert problems(NumericsConfig(), dataclasses.replace(ON_CUDA, env=env)) == []


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("deterministic", False, "deterministic algorithms must be on"),
        ("cudnn_benchmark", True, "cudnn.benchmark` must be False"),
        ("tf32", True, "allow_tf32` must be False"),
        ("threads", 4, "must use 1 threads"),
    ],
)
def test_each_wrong_flag_of_torch_is_named(flag, value, says):
    (sentence,) = problems(NumericsConfig(), dataclasses.replace(ON_CUDA, **{flag: value}))
    assert says in sentence


def test_tf32_may_be_asked_for():
    config = Config(numerics=NumericsConfig(allow_tf32=True))
    env = merged(config, {"NVIDIA_TF32_OVERRIDE": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})
    assert "TRITON_F32_DEFAULT" not in env
    assert problems(config.numerics, Found("cuda", env, tf32=True)) == []


def test_kernels_of_a_gpu_are_no_matter_on_the_cpu():
    found = Found("cpu", {"TRITON_CACHE_AUTOTUNING": "1"}, cudnn_benchmark=True, tf32=True)
    assert problems(NumericsConfig(), found) == []


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm, nn.LazyBatchNorm1d])
def test_a_layer_across_samples_is_refused_at_exact_alone(kind):
    model = nn.Sequential(nn.Linear(3, 3), kind() if kind is nn.LazyBatchNorm1d else kind(3))
    fix_numerics(NumericsConfig())
    cpu = torch.device("cpu")
    found = numerics.found(cpu, {})
    assert (found.threads, found.deterministic) == (1, True)
    with pytest.raises(UsageRefused, match=rf"but 1 \({kind.__name__}\) does"):
        numerics.verify(NumericsConfig(), model, cpu, World())
    numerics.verify(NumericsConfig(level="deterministic"), model, cpu, World())
    plain = nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.Dropout())
    numerics.verify(NumericsConfig(), plain, cpu, World())


def test_found_looks_at_the_process_and_changes_nothing():
    fix_numerics(NumericsConfig())
    torch.backends.cudnn.benchmark = True
    torch.set_deterministic_debug_mode("default")
    try:
        found = numerics.found(torch.device("cuda"), {"A": "b"})
        assert (found.cudnn_benchmark, found.deterministic) == (True, False)
        assert found.env == {"A": "b"}
        assert torch.backends.cudnn.benchmark
    finally:
        fix_numerics(NumericsConfig())


@pytest.mark.parametrize("level", ["exact", "deterministic"])
@pytest.mark.parametrize(
    ("version", "refused"),
    [(None, False), ("1.5.4", True), ("1.5.0.post8", True), ("1.6.0", False), ("2.0", False)],
)
def test_an_old_convolution_is_refused(level, version, refused):
    env = merged(Config(numerics=NumericsConfig(level=level)), {})
    config = NumericsConfig(level=level)
    sentences = problems(config, Found("cuda", env, causal_conv1d=version))
    assert [s[:38] for s in sentences] == ["`causal-conv1d` must be at least 1.6 a"] * refused
    assert problems(config, Found("cpu", env, causal_conv1d=version)) == []


@pytest.mark.parametrize(
    ("level", "world_size", "value", "refused"),
    [
        ("deterministic", 2, None, True),
        ("deterministic", 2, "1", True),
        ("deterministic", 2, "0", False),
        ("deterministic", 1, None, False),
        ("exact", 2, None, False),
        ("fast", 2, None, False),
    ],
)
def test_no_sum_in_the_switch_where_torch_adds_up(level, world_size, value, refused):
    env = {k: v for k, v in ON_CUDA.env.items() if k != "NCCL_NVLS_ENABLE"}
    env |= {} if value is None else {"NCCL_NVLS_ENABLE": value}
    found = Found("cuda", env, world_size=world_size)
    sentences = problems(NumericsConfig(level=level), found)
    assert [s[:25] for s in sentences] == ["`NCCL_NVLS_ENABLE` must be"[:25]] * refused


def test_ranks_must_run_the_same_kernels(monkeypatch):
    assert numerics.chosen_kernels(torch.device("cpu")) == {}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    here = numerics.chosen_kernels(torch.device("cuda", 0))
    assert here["compute capability"] == "9.0"
    assert here["torch"] == torch.__version__
    assert set(here) == {
        "GPU", "compute capability", "torch", "triton", "mamba-ssm", "causal-conv1d",
    }  # fmt: skip
    assert parted([here, dict(here)]) == []
    for name, value in [("GPU", "NVIDIA A100"), ("causal-conv1d", "1.6.0"), ("triton", "0")]:
        (sentence,) = parted([here, here | {name: value}])
        assert sentence.startswith(f"`{name}` must be the same on all ranks, but is '{value}' on")
    assert len(parted([here, {}])) == len(here)


def test_ranks_must_choose_the_same_instructions():
    here = numerics.chosen_instructions({"MKL_CBWR": "AVX2"})
    assert parted([here, dict(here)]) == []
    (sentence,) = parted([here, here, here | {"MKL_CBWR": "not set"}])
    assert sentence.startswith("`MKL_CBWR` must be the same on all ranks, but is 'not set' on rank")
    assert "on rank 2 and 'AVX2' on rank 0" in sentence
