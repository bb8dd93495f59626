"""What is known about which recorded fact can change the bits of a run.

One row each in `RULES`, in the order in which the rows are tried. A row with weight 0 says why its
fields cannot have done it; several hold only under a condition, such as the level of the runs or
that both had at most two ranks. A new fact in the record needs a row here, or stays unexplained.

Example
-------
>>> RULES[0].name, RULES[0].weight
('seed', 100)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from boldcast.record.differences import Difference


@dataclass(frozen=True)
class Setting:
    """What decides, beside a field itself, whether its difference can matter."""

    levels: tuple[str, str]
    world_sizes: tuple[int, int]
    differing: frozenset[str]
    """Paths of all differing fields."""
    known_code: bool
    """Whether both records hold the digest of the package's source."""
    known_data: bool
    """Whether both records hold the digest of the data."""

    @property
    def exact(self) -> bool:
        """Whether both runs sum in boldcast's own order, whatever carries the numbers."""
        return self.levels == ("exact", "exact")

    @property
    def pinned(self) -> bool:
        """Whether neither run was at the level ``fast``."""
        return all(level in ("exact", "deterministic") for level in self.levels)

    @property
    def sums_commute(self) -> bool:
        """Whether both runs had the same number of ranks, one or two: a+b is b+a."""
        return self.world_sizes[0] == self.world_sizes[1] and self.world_sizes[0] in (1, 2)


@dataclass(frozen=True)
class Rule:
    """What is known about some fields: where they are, how likely a cause, and why."""

    name: str
    paths: str
    """Regular expression for the whole path."""
    weight: int
    """100: nothing can agree; 0: cannot change bits."""
    why: str
    when: Callable[[Difference, Setting], bool] = lambda difference, setting: True


def _same_kind_of_device(difference: Difference, setting: Setting) -> bool:
    kinds = [
        {str(name).partition(":")[0] for name in (side if isinstance(side, list) else [side])}
        for side in (difference.a, difference.b)
    ]
    return difference.known and kinds[0] == kinds[1]


def _not_fused(difference: Difference, setting: Setting) -> bool:
    return not any("fused" in str(side) or side is True for side in (difference.a, difference.b))


def _exact(difference: Difference, setting: Setting) -> bool:
    return setting.exact


def _pinned(difference: Difference, setting: Setting) -> bool:
    return setting.pinned


def _commutes(difference: Difference, setting: Setting) -> bool:
    return setting.sums_commute


def _same_source(difference: Difference, setting: Setting) -> bool:
    return setting.known_code and "code.source_digest" not in setting.differing


def _same_data(difference: Difference, setting: Setting) -> bool:
    return setting.known_data and "data.digest" not in setting.differing


def _same_devices(difference: Difference, setting: Setting) -> bool:
    return "parallel.ranks.*.device" not in setting.differing


_CONFIG = r"requested\.config\."
_ENV = r"numerics\.environment\."
_NODE = r"hardware\.nodes\.\*\."
_GPU = _NODE + r"gpu\.devices\.\*\."
_PACKAGE = r"software\.packages\."
_NCCL = rf"numerics\.nccl(\..*)?|{_ENV}(TORCH_)?NCCL_(?!BLOCKING).*|{_PACKAGE}nvidia-nccl.*"
_CARRIES = rf"{_NCCL}|{_NODE}gpu\.matrix|{_CONFIG}parallel\.(bucket_cap_mb|static_graph)"
_RANKS = r"parallel\.(world_size|strategy|grad_accum_steps(\..*)?)"
_STRATEGY = rf"{_CONFIG}parallel\.strategy"

RULES: tuple[Rule, ...] = (
    # What was asked for.
    Rule(
        "seed", rf"{_CONFIG}seed|seeds(\..*)?", 100,
        "Another seed draws other first weights, another order of windows and other dropout.",
    ),
    Rule(
        "does not train",
        rf"{_CONFIG}(name|log\..*|validation\..*|train\.(checkpoint_every|keep_checkpoints|"
        r"time_budget_s|async_checkpoint|log_every)|data\.val_stride|parallel\.(.*_s|drift_.*))", 0,
        "This setting decides what is watched and kept, not what is trained.",
    ),
    Rule(
        "workers", rf"{_CONFIG}data\.num_workers", 0,
        "The order of windows is a function of seed and position alone; no worker is part of it.",
    ),
    Rule(
        "level", rf"{_CONFIG}numerics\.level|numerics\.level", 86,
        "Another level sums gradients in another order and allows other kernels.",
    ),
    Rule(
        "two ranks commute",
        rf"{_CARRIES}|{_CONFIG}parallel\.(?!strategy|wrap_classes|sync_bn).*", 0,
        "On one or two ranks no order of the sum can matter: a+b is b+a.", _commutes,
    ),
    Rule(
        "exact level: carriers", rf"{_CARRIES}|{_CONFIG}parallel\..*|{_RANKS}", 0,
        "At the level exact the sum has its own fixed order; ranks and libraries only carry it.",
        _exact,
    ),
    Rule(
        "number of ranks", rf"{_RANKS}|{_STRATEGY}", 85,
        "Below the level exact the gradients are summed per rank first: another grouping, other "
        "bits.",
    ),
    Rule(
        "threads asked", rf"{_CONFIG}numerics\.threads|numerics\.flags\.threads", 84,
        "A sum on the CPU is cut into as many parts as there are threads.",
    ),
    Rule(
        "acts through the data",
        _CONFIG + r"(data\.(source|held_out|exclude_confounds|t_r)|synthetic\..*)", 0,
        "It chooses data, and the data of both runs are the same bytes.", _same_data,
    ),
    Rule(
        "acts through the device", rf"{_CONFIG}train\.device", 0,
        "It chooses a device, and both runs found the same kind.", _same_devices,
    ),
    Rule(
        "numeric setting", _CONFIG + r"(data|synthetic|model|optim|train|numerics)\..*", 96,
        "The configuration asks for other arithmetic.",
    ),
    # What was read and run.
    Rule(
        "same data", r"data\.(splits\..*|files(\..*)?)", 0,
        "The packed series, regions and splits are the same bytes, whatever file they came from.",
        _same_data,
    ),
    Rule(
        "data", r"data\.(digest|splits\..*|files(\..*)?)", 94,
        "The series, regions or splits are not the same bytes.",
    ),
    Rule("code", r"code\.source_digest", 92, "The package's source is not the same bytes."),
    Rule(
        "same source", r"code\..*", 0,
        "The package's source files are the same bytes, wherever they came from.", _same_source,
    ),
    Rule("code identity", r"code\..*", 60, "The code came from another place or state."),
    # Where and how it was computed.
    Rule(
        "same devices", r"parallel\.ranks\.\*\.device", 0,
        "The ranks ran on the same kind of device.",
        _same_kind_of_device,
    ),
    Rule(
        "device", r"parallel\.ranks\.\*\.device", 90,
        "A CPU and a GPU, or two kinds of device, round differently in every kernel.",
    ),
    Rule("numbering", r"parallel\.ranks(\..*)?", 0, "A rank's number is no part of the result."),
    Rule("type", r"numerics\.dtype", 88, "The forward pass rounds to another type."),
    Rule(
        "instruction set",
        rf"numerics\.flags\.cpu_capability|{_ENV}(ATEN_CPU_CAPABILITY|MKL_CBWR"
        r"|MKL_ENABLE_INSTRUCTIONS|ONEDNN_MAX_CPU_ISA|DNNL_MAX_CPU_ISA|OPENBLAS_CORETYPE)", 82,
        "Kernels for another CPU instruction set add in vectors of another width.",
    ),
    Rule("kernels", r"numerics\.kernels(\..*)?", 81, "Another back end computes the model."),
    Rule(
        "optimizer without fusing", r"numerics\.flags\.(optimizer|.*fused.*|.*foreach.*)", 0,
        "The foreach and the for-loop optimizer round alike.", _not_fused,
    ),
    Rule(
        "fused optimizer", r"numerics\.flags\.(optimizer|.*fused.*|.*foreach.*)", 80,
        "The fused optimizer rounds its update in other places than the foreach and the for-loop.",
    ),
    Rule(
        "TF32",
        rf"numerics\.flags\..*tf32.*|{_ENV}(NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
        r"|TRITON_F32_DEFAULT)", 79,
        "Matrix products round their inputs to TF32 in one run and not in the other.",
    ),
    Rule(
        "deterministic kernels",
        rf"numerics\.flags\.(deterministic.*|cudnn.*)|{_ENV}(MAMBA_DETERMINISTIC"
        r"|CAUSAL_CONV1D_DETERMINISTIC|CUBLAS_WORKSPACE_CONFIG)", 78,
        "One run may use kernels that add in the order in which threads arrive.",
    ),
    Rule("flag", r"numerics\.flags\..*", 70, "A switch of torch that can choose other kernels."),
    Rule(
        "kernel winners", rf"numerics\.autotune(\..*)?|{_ENV}TRITON_CACHE_AUTOTUNING", 77,
        "Autotuning chose other kernel configurations, which add in blocks of another size.",
    ),
    Rule(
        "Triton", rf"{_ENV}(TRITON_DEFAULT_FP_FUSION|TRITON_INTERPRET)", 76,
        "Triton multiplies and adds with one rounding in one run and with two in the other.",
    ),
    Rule(
        "GPU", _GPU + r"(name|compute_capability|mig)", 75,
        "Another GPU, or a slice of one, gets other kernels and cuts sums at other places.",
    ),
    Rule(
        "kernel library", _PACKAGE + r"(torch|triton|mamba-ssm|causal-conv1d|nvidia-(?!ml-py).*)",
        74, "Another version of a library that holds or compiles the kernels.",
    ),
    Rule(
        "architecture", r"software\.platform\..*", 73,
        "Another processor architecture runs other kernels.",
    ),
    Rule(
        "NVLS", rf"{_ENV}NCCL_NVLS_ENABLE|numerics\.nccl\..*(nvls|NVLS).*", 72,
        "With NVLS the switch does the sum, in an order that may change from call to call.",
    ),
    Rule(
        "NCCL", _CARRIES, 66,
        "With more than two ranks the algorithm, protocol and number of channels of NCCL, which "
        "also follow from the topology, decide the order of the sum.",
    ),
    Rule(
        "driver", _NODE + r"gpu\.(driver|cuda_driver)", 62,
        "The driver compiles kernels that come as PTX, and its libraries are its own.",
    ),
    Rule("buckets", rf"{_CONFIG}parallel\..*", 58, "Buckets decide what is summed at once."),
    Rule(
        "processor", _NODE + r"cpu\.(model|flags)", 56,
        "Libraries choose their kernels by the processor they find.",
    ),
    Rule(
        "threads in use", rf"{_ENV}(OMP_NUM_THREADS|MKL_NUM_THREADS|OPENBLAS_NUM_THREADS)", 0,
        "torch's number of threads is pinned to `numerics.threads` at these levels.", _pinned,
    ),
    Rule(
        "threads in use",
        rf"{_ENV}(OMP_NUM_THREADS|MKL_NUM_THREADS|OPENBLAS_NUM_THREADS)"
        rf"|{_NODE}(cpu\.(usable_threads|cores|threads|sockets)|limits\.cpus)", 54,
        "A sum on the CPU is cut into as many parts as there are threads.",
        lambda d, s: not s.pinned,
    ),
    Rule("preloaded library", rf"{_ENV}LD_PRELOAD", 52, "A preloaded library can replace any."),
    Rule(
        "hardware around", rf"({_NODE}|hardware\.nodes).*", 0,
        "Memory, clocks, power, links and counts of cores change the speed, not the bits.",
    ),
    Rule(
        "reading data", _PACKAGE + r"(nibabel|nilearn)", 0,
        "The reader is another, but the data it read are the same bytes.", _same_data,
    ),
    Rule(
        "numpy and scipy", _PACKAGE + r"(numpy|scipy|nibabel|nilearn)", 50,
        "Standardizing and the fitted skip path are computed with it.",
    ),
    Rule("no arithmetic", _PACKAGE + r".*", 0, "This package computes nothing that is trained."),
    Rule("C library", r"software\.libc", 30, "Its elementary functions round the last bit."),
    Rule(
        "image", r"image\..*", 20,
        "An image acts through the code and libraries in it, most of which are recorded apart.",
    ),
    Rule("interpreter", r"software\.python\..*", 10, "Python's own arithmetic is the same."),
    Rule(
        "where things lie",
        _ENV + r"(TRITON_CACHE_DIR|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING"
        r"|GLOO_SOCKET_IFNAME|OMP_WAIT_POLICY|PYTHONNOUSERSITE|PYTHONHASHSEED"
        r"|PYTORCH_CUDA_ALLOC_CONF|KMP_DUPLICATE_LIB_OK|TORCH_NCCL_BLOCKING_WAIT)(\..*)?", 0,
        "Where things lie, which board is first and how threads wait is not part of any sum.",
    ),
    Rule("environment", rf"{_ENV}.*", 40, "A variable that one of the libraries reads."),
    Rule(
        "follows from the configuration", r"parallel\..*", 5,
        "It follows from the configuration and the number of ranks.",
    ),
    Rule("remark", r"data\.notes", 0, "A remark to the reader."),
)  # fmt: skip
"""What is known, tried from the top; the first row that fits a field speaks for it."""
