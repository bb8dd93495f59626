"""The environment that a run's processes are started with.

Some settings count only if they stand before torch, Triton or mamba_ssm is imported, so the
launching process exports them; a value the user has set is kept. Which ones, and why:

``OMP_NUM_THREADS``, ``MKL_NUM_THREADS``
    ``numerics.threads``: the bits of some reductions depend on the number of threads.
``OMP_WAIT_POLICY``
    ``PASSIVE``: waiting threads that spin starve other ranks where there are fewer cores.
``CUBLAS_WORKSPACE_CONFIG``, ``MAMBA_DETERMINISTIC``, ``CAUSAL_CONV1D_DETERMINISTIC``
    Deterministic CUDA kernels, at every level but ``fast``.
``TRITON_F32_DEFAULT``
    ``ieee``: without it Triton's float32 products round their inputs to TF32.
``TRITON_DEFAULT_FP_FUSION``
    ``1``, pinned at every level but ``fast``: whether Triton multiplies and adds in one rounding.
``NCCL_NVLS_ENABLE``
    ``0`` at ``deterministic``: sums in the NVLink switch may change their order between calls.
``GLOO_SOCKET_IFNAME``
    ``lo``: hosts that cannot resolve their own name fail or hang otherwise.
``TORCH_NCCL_BLOCKING_WAIT``
    ``1``, at every level but ``fast``; counts on GPUs alone. By default NCCL's watchdog ends the
    process that waited in vain, without a word, so that it would be taken for the lost one. With
    it the wait raises where it stands, and the rank can note for whom it waited. The price is that
    a rank's program waits out each collective, so that less of it hides behind the computation.
``TORCH_DISABLE_SHARE_RDZV_TCP_STORE``
    ``1``: each restart of the ranks meets in a store of its own, without what the last one left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from boldcast.config.schema import Config


def exports(config: Config) -> dict[str, str]:
    """Return what the processes of a run on this machine need in their environment."""
    settings = {
        "OMP_NUM_THREADS": str(config.numerics.threads),
        "MKL_NUM_THREADS": str(config.numerics.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if config.numerics.level != "fast":
        settings |= {
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "MAMBA_DETERMINISTIC": "1",
            "CAUSAL_CONV1D_DETERMINISTIC": "1",
            "TRITON_DEFAULT_FP_FUSION": "1",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        }
    if config.numerics.level == "deterministic":
        settings["NCCL_NVLS_ENABLE"] = "0"
    if not config.numerics.allow_tf32:
        settings["TRITON_F32_DEFAULT"] = "ieee"
    return settings


def merged(config: Config, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``env`` with the exports that it does not set itself."""
    return exports(config) | dict(env)


def visible_gpus(
    env: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    torch_version: str | None = None,
) -> int:
    """Count the GPUs that a process started with ``env`` would see, without torch or a driver.

    Parameters
    ----------
    env : mapping
        Its ``CUDA_VISIBLE_DEVICES`` counts.
    devices : Path
        Folder of the device files.
    torch_version : str, optional
        That of the installed torch if None; a build for CPUs alone sees no GPU.
    """
    if (torch_version or metadata.version("torch")).endswith("+cpu"):
        return 0
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() and name.strip() != "-1"])
    return len(list(devices.glob("nvidia[0-9]*")))
