"""One planted cause at a time: the diff must name it first, or say that it cannot have done it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from boldcast.config.identity import INDIFFERENT
from boldcast.errors import DataRefused
from boldcast.record.causes import ranked
from boldcast.record.differences import MAX_DIFFERENCES, differences
from boldcast.record.manifest import build
from boldcast.record.rules import RULES

BOARD = {"name": "NVIDIA H200", "uuid_hash": "aa", "compute_capability": "9.0", "mig": False}


@pytest.fixture(scope="module")
def four_ranks(blocks: dict[str, Any]) -> dict[str, Any]:
    """The record of a run on four boards, two of them described, at the level deterministic."""
    own = copy.deepcopy(blocks)
    own["numerics"] |= {
        "level": "deterministic",
        "dtype": "float32",
        "flags": {
            "threads": 1,
            "cpu_capability": "AVX2",
            "optimizer": "foreach",
            "cuda_matmul_allow_tf32": False,
            "deterministic_algorithms": True,
            "matmul_precision": "highest",
        },
        "kernels": {"scan": "mamba_ssm Triton", "convolution": "torch"},
        "autotune": {"_chunk_scan_fwd": "BLOCK_M: 64"},
        "nccl": {"algo": "Ring", "channels": 4, "nvls": False},
    }
    own["requested"]["config"]["numerics"]["level"] = "deterministic"
    own["parallel"] = {
        "strategy": "ddp",
        "world_size": 4,
        "ranks": [{"rank": rank, "device": f"cuda:{rank}"} for rank in range(4)],
        "grad_accum_steps": [{"rank": rank, "steps": 1} for rank in range(4)],
    }
    own["code"] |= {"source_digest": "1" * 64, "commit": "a" * 40, "dirty": False}
    own["hardware"] = {
        "nodes": [
            {
                "cpu": {"model": "EPYC", "flags": ["avx2"], "cores": 8, "usable_threads": 8},
                "memory_gib": 64.0,
                "gpu": {
                    "driver": "570.1",
                    "devices": [BOARD, BOARD | {"uuid_hash": "bb"}],
                    "matrix": [["X", "NV18"], ["NV18", "X"]],
                },
            }
        ]
    }
    own["software"]["packages"] |= {
        "torch": "2.13.0", "numpy": "2.4", "rich": "15", "nvidia-nccl-cu13": "2.28", "nibabel": "5",
    }  # fmt: skip
    own["software"]["libc"] = "glibc 2.36"
    own["numerics"]["environment"] = {
        name: {"state": "unset"}
        for name in (
            "NCCL_NVLS_ENABLE", "OMP_NUM_THREADS", "MKL_CBWR", "TRITON_F32_DEFAULT", "LD_PRELOAD",
            "MAMBA_DETERMINISTIC", "TRITON_DEFAULT_FP_FUSION", "NCCL_ALGO", "TRITON_CACHE_DIR",
            "MKL_DYNAMIC",
        )
    }  # fmt: skip
    return build(own, {"status": "completed", "digests": {}})


def planted(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    other = copy.deepcopy(manifest)
    *names, last = path.split("/")
    place = other
    for name in names:
        place = place[int(name) if isinstance(place, list) else name]
    place[int(last) if isinstance(place, list) else last] = value
    return other


SET = {"state": "set", "value": "1"}
PLANTED = [
    ("requested/config/seed", 9, "seed"),
    ("seeds/seed", 9, "seed"),
    ("requested/config/optim/lr", 0.5, "numeric setting"),
    ("requested/config/model/d_model", 7, "numeric setting"),
    ("requested/config/train/steps", 7, "numeric setting"),
    ("requested/config/numerics/level", "fast", "level"),
    ("requested/config/numerics/threads", 2, "threads asked"),
    ("requested/config/parallel/strategy", "fsdp2", "number of ranks"),
    ("requested/config/parallel/bucket_cap_mb", 3, "NCCL"),
    ("requested/config/parallel/gradient_as_bucket_view", False, "buckets"),
    ("data/digest", "2" * 64, "data"),
    ("code/source_digest", "2" * 64, "code"),
    ("parallel/world_size", 8, "number of ranks"),
    ("parallel/strategy", "fsdp2", "number of ranks"),
    ("parallel/ranks/0/device", "cpu", "device"),
    ("numerics/level", "exact", "level"),
    ("numerics/dtype", "bfloat16", "type"),
    ("numerics/flags/cpu_capability", "AVX512", "instruction set"),
    ("numerics/environment/MKL_CBWR", SET, "instruction set"),
    ("numerics/flags/threads", 2, "threads asked"),
    ("numerics/flags/optimizer", "fused", "fused optimizer"),
    ("numerics/flags/cuda_matmul_allow_tf32", True, "TF32"),
    ("numerics/environment/TRITON_F32_DEFAULT", SET, "TF32"),
    ("numerics/flags/deterministic_algorithms", False, "deterministic kernels"),
    ("numerics/environment/MAMBA_DETERMINISTIC", SET, "deterministic kernels"),
    ("numerics/environment/TRITON_DEFAULT_FP_FUSION", SET, "Triton"),
    ("numerics/flags/matmul_precision", "high", "flag"),
    ("numerics/environment/LD_PRELOAD", SET, "preloaded library"),
    ("numerics/environment/MKL_DYNAMIC", SET, "environment"),
    ("numerics/kernels/convolution", "causal_conv1d", "kernels"),
    ("numerics/autotune/_chunk_scan_fwd", "BLOCK_M: 128", "kernel winners"),
    ("numerics/nccl/algo", "Tree", "NCCL"),
    ("numerics/nccl/nvls", True, "NVLS"),
    ("numerics/environment/NCCL_NVLS_ENABLE", SET, "NVLS"),
    ("numerics/environment/NCCL_ALGO", SET, "NCCL"),
    ("hardware/nodes/0/gpu/matrix", [["X", "SYS"], ["SYS", "X"]], "NCCL"),
    ("software/packages/nvidia-nccl-cu13", "2.29", "kernel library"),
    ("hardware/nodes/0/gpu/driver", "580.2", "driver"),
    ("hardware/nodes/0/gpu/devices/0/name", "NVIDIA A100", "GPU"),
    ("hardware/nodes/0/gpu/devices/1/mig", True, "GPU"),
    ("hardware/nodes/0/cpu/model", "Xeon", "processor"),
    ("software/packages/torch", "2.14.0", "kernel library"),
    ("software/packages/numpy", "2.5", "numpy and scipy"),
    ("software/libc", "glibc 2.40", "C library"),
    ("software/platform/machine", "aarch64", "architecture"),
    ("software/python/version", "3.12.1", "interpreter"),
    ("image/kind", "podman", "image"),
]


@pytest.mark.parametrize(("path", "value", "rule"), PLANTED, ids=[p[0] for p in PLANTED])
def test_a_planted_cause_comes_first(four_ranks, path, value, rule) -> None:
    other = planted(four_ranks, path, value)
    # what cannot have done it differs, too
    other["hardware"]["nodes"][0]["memory_gib"] = 1.0
    other["software"]["packages"]["rich"] = "16"
    found = ranked(four_ranks, other)
    first = found[0]
    assert (first.rank, first.rule, first.can_change_bits) == (1, rule, True)
    assert first.field.replace(".*", "").replace(".", "/") == "/".join(
        part for part in path.split("/") if not part.isdecimal()
    )
    assert [cause.can_change_bits for cause in found] == [True, False, False]
    assert first.why.endswith(".")


INNOCENT = [
    ("requested/config/name", "x", "does not train"),
    ("requested/config/train/log_every", 3, "does not train"),
    ("requested/config/validation/every", 3, "does not train"),
    ("requested/config/data/num_workers", 3, "workers"),
    ("requested/config/data/source", "elsewhere.tsv", "acts through the data"),
    ("requested/config/train/device", "cuda", "acts through the device"),
    ("data/files/0/sha256", "5" * 64, "same data"),
    ("code/commit", "b" * 40, "same source"),
    ("parallel/ranks/0/device", "cuda:7", "same devices"),
    ("numerics/flags/optimizer", "forloop", "optimizer without fusing"),
    ("numerics/environment/OMP_NUM_THREADS", SET, "threads in use"),
    ("numerics/environment/TRITON_CACHE_DIR", SET, "where things lie"),
    ("numerics/environment/TORCH_NCCL_BLOCKING_WAIT", SET, "where things lie"),
    ("hardware/nodes/0/cpu/cores", 3, "hardware around"),
    ("hardware/nodes/0/gpu/devices/0/uuid_hash", "zz", "hardware around"),
    ("software/packages/rich", "16", "no arithmetic"),
    ("software/packages/nibabel", "6", "reading data"),
    ("data/notes", ["other"], "remark"),
]


@pytest.mark.parametrize(("path", "value", "rule"), INNOCENT, ids=[p[0] for p in INNOCENT])
def test_what_cannot_change_bits_is_said_to_be_innocent(four_ranks, path, value, rule) -> None:
    (cause,) = ranked(four_ranks, planted(four_ranks, path, value))
    assert (cause.rule, cause.can_change_bits) == (rule, False)


def test_a_setting_that_may_change_between_starts_is_innocent(four_ranks) -> None:
    for section, names in INDIFFERENT.items():
        for name in names:
            other = planted(four_ranks, f"requested/config/{section}/{name}", 77)
            (cause,) = ranked(four_ranks, other)
            assert not cause.can_change_bits, (section, name)


def at(manifest: dict[str, Any], level: str, world_size: int) -> dict[str, Any]:
    other = planted(manifest, "numerics/level", level)
    other["requested"]["config"]["numerics"]["level"] = level
    return planted(other, "parallel/world_size", world_size)


SUMS = [
    ("numerics/nccl/nvls", True),
    ("numerics/nccl/algo", "Tree"),
    ("numerics/environment/NCCL_NVLS_ENABLE", SET),
    ("hardware/nodes/0/gpu/matrix", [["X", "SYS"], ["SYS", "X"]]),
    ("requested/config/parallel/bucket_cap_mb", 3),
]


@pytest.mark.parametrize(("path", "value"), SUMS)
def test_the_order_of_a_sum_matters_with_more_than_two_ranks_alone(four_ranks, path, value) -> None:
    for level, world_size, able in [
        ("deterministic", 4, True),
        ("deterministic", 2, False),
        ("deterministic", 1, False),
        ("exact", 4, False),
    ]:
        base = at(four_ranks, level, world_size)
        (cause,) = ranked(base, planted(base, path, value))
        assert cause.can_change_bits is able, (level, world_size)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parallel/world_size", 2),
        ("parallel/strategy", "fsdp2"),
        ("requested/config/parallel/strategy", "fsdp2"),
        ("parallel/grad_accum_steps/0/steps", 2),
    ],
)
def test_at_the_level_exact_world_size_and_strategy_are_no_cause(four_ranks, path, value) -> None:
    base = at(four_ranks, "exact", 4)
    (cause,) = ranked(base, planted(base, path, value))
    assert (cause.rule, cause.can_change_bits) == ("exact level: carriers", False)
    (cause,) = ranked(four_ranks, planted(four_ranks, path, value))
    assert (cause.rule, cause.can_change_bits) == ("number of ranks", True)


def test_fewer_boards_of_one_kind_are_no_difference(four_ranks) -> None:
    other = copy.deepcopy(four_ranks)
    del other["hardware"]["nodes"][0]["gpu"]["devices"][1]
    assert [d.path for d in differences(four_ranks, other)] == [
        "hardware.nodes.*.gpu.devices.*.uuid_hash"
    ]


def test_thread_counts_matter_where_they_are_not_pinned(four_ranks) -> None:
    base = at(four_ranks, "fast", 4)
    found = ranked(base, planted(base, "numerics/environment/OMP_NUM_THREADS", SET))
    assert [cause.rule for cause in found] == ["threads in use", "fast level"]
    assert all(cause.can_change_bits for cause in found)


def test_a_fast_run_may_part_without_any_difference(four_ranks) -> None:
    base = at(four_ranks, "fast", 4)
    assert [cause.rule for cause in ranked(base, base)] == ["fast level"]
    assert ranked(four_ranks, four_ranks) == []


def test_what_only_one_record_knows_comes_behind_what_surely_differs(four_ranks) -> None:
    other = planted(four_ranks, "code/source_digest", {"error": "not recorded"})
    other = planted(other, "hardware/nodes/0/gpu/driver", "580.3")
    assert [(c.field, c.weight) for c in ranked(four_ranks, other)] == [
        ("code.source_digest", 62),
        ("hardware.nodes.*.gpu.driver", 62),
    ]
    both = planted(four_ranks, "code/source_digest", {"error": "other text"})
    assert ranked(planted(four_ranks, "code/source_digest", {"error": "text"}), both) == []


def test_an_unknown_source_clears_no_code(four_ranks) -> None:
    base = planted(four_ranks, "code/source_digest", {"error": "not recorded"})
    (cause,) = ranked(base, planted(base, "code/commit", "c" * 40))
    assert (cause.rule, cause.can_change_bits) == ("code identity", True)


def test_results_attempts_and_the_command_line_are_no_causes(four_ranks) -> None:
    other = planted(four_ranks, "results/weights", "f" * 64)
    other = planted(other, "requested/argv", ["boldcast", "rerun"])
    other["attempts"] = [{"first_step": 0}]
    other["id"] = "0" * 64
    assert ranked(four_ranks, other) == []


def test_a_setting_is_named_before_what_follows_from_it(four_ranks) -> None:
    other = planted(four_ranks, "requested/config/data/source", "synthetic")
    other = planted(other, "data/digest", "3" * 64)
    other = planted(other, "hardware/nodes/0/gpu/driver", "580.3")
    assert [cause.field for cause in ranked(four_ranks, other)] == [
        "requested.config.data.source", "data.digest", "hardware.nodes.*.gpu.driver",
    ]  # fmt: skip


def test_an_unset_an_empty_and_a_set_variable_are_one_fact_each(four_ranks) -> None:
    path = "numerics/environment/MKL_CBWR"
    for value in ({"state": "empty"}, SET):
        (cause,) = ranked(four_ranks, planted(four_ranks, path, value))
        assert (cause.a, cause.b) == ({"state": "unset"}, value)


def test_a_field_that_no_rule_knows_is_said_to_be_unknown(four_ranks) -> None:
    (cause,) = ranked(
        four_ranks, planted(four_ranks, "seeds/seed", four_ranks["seeds"]["seed"] + 1)
    )
    assert cause.rule == "seed"
    (cause,) = ranked(four_ranks, planted(four_ranks, "numerics/moon", "full"))
    assert (cause.rule, cause.can_change_bits) == ("unknown field", True)


def test_records_that_differ_everywhere_are_refused(four_ranks) -> None:
    many = {str(n): n for n in range(MAX_DIFFERENCES + 1)}
    with pytest.raises(DataRefused, match="at most 2000 fields"):
        ranked(four_ranks, planted(four_ranks, "image/labels", many))


def test_every_rule_has_a_planted_cause() -> None:
    covered = {rule for _, _, rule in (*PLANTED, *INNOCENT)}
    elsewhere = {
        "two ranks commute", "exact level: carriers", "code identity", "numbering",
        "follows from the configuration", "threads in use",
    }  # fmt: skip
    assert {rule.name for rule in RULES} - covered - elsewhere == set()


def test_numbering_and_derived_sizes(four_ranks) -> None:
    (cause,) = ranked(four_ranks, planted(four_ranks, "parallel/ranks/0/rank", 9))
    assert (cause.rule, cause.can_change_bits) == ("numbering", False)
    other = planted(four_ranks, "parallel/global_batch_size", 64)
    assert ranked(four_ranks, other)[0].rule == "follows from the configuration"
