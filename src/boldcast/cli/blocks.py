"""The blocks of a run's record: what was asked, and what was found on this machine.

Nothing here is ever read back into a run.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from boldcast.config.resolve import as_dict, digest
from boldcast.config.schema import Config
from boldcast.data.store import Store
from boldcast.files import canonical_json, sha256_bytes
from boldcast.parallel.agree import everyones
from boldcast.parallel.world import World, share
from boldcast.record import provenance, topology
from boldcast.record.privacy import hashed_subject, subject_salt
from boldcast.record.requested import recorded_argv, recorded_config
from boldcast.train.run import Job
from boldcast.train.seeding import derive, tensors_digest


def build(
    config: Config,
    argv: Sequence[str],
    store: Store,
    world: World,
    device: torch.device,
    job: Job,
) -> dict[str, Any]:
    """Return all blocks but the results; every rank calls this, rank 0's is complete."""
    nodes = everyones(world, topology.node() if world.local_rank == 0 else None)
    devices = everyones(world, str(device))
    if not world.is_rank_zero:
        return {}
    # the record names no byte of the signals, so nobody can try out identifiers with it
    salt = subject_salt(np.ascontiguousarray(store.series[:4096]).tobytes())
    subjects = {scan.subject for scan in store.scans}
    return {
        "requested": {
            "argv": recorded_argv(argv, salt, subjects),
            "config": recorded_config(as_dict(config), salt, subjects),
            "config_digest": digest(config),
        },
        "code": provenance.code(),
        "image": provenance.image(),
        "data": _data(store, job, salt),
        "seeds": {
            "seed": config.seed,
            "derived": {p: str(derive(config.seed, p)) for p in ("weights", "order")},
        },
        "numerics": _numerics(config, device, world),
        "parallel": _parallel(config, world, devices, job),
        "hardware": {"nodes": [node for node in nodes if node is not None]},
        "software": provenance.software(),
    }


def final_digests(job: Job) -> dict[str, str]:
    """Return the digests of the final weights and of the optimizer's state."""
    model, moments = job.trainer.whole
    return {"weights": tensors_digest(model.state_dict()), "optimizer": tensors_digest(moments)}


def _data(store: Store, job: Job, salt: str) -> dict[str, Any]:
    files = [
        {
            "sha256": scan.sha256,
            "shape": [scan.n_volumes, len(store.regions)],
            "t_r": store.t_r,
            "subject": hashed_subject(scan.subject, salt),
            "split": scan.split,
        }
        for scan in store.scans
    ]
    sides = {}
    for split, windows in (("train", job.batches.order.n), ("held_out", len(job.held_out))):
        members = [file for file in files if file["split"] == split]
        sides[split] = {
            "scans": len(members),
            "subjects": len({file["subject"] for file in members}),
            "windows": windows,
            "digest": sha256_bytes(canonical_json(members)),
        }
    return {"digest": store.digest, "files": files, "splits": sides, "notes": list(store.notes)}


def _numerics(config: Config, device: torch.device, world: World) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "level": config.numerics.level,
        "dtype": config.train.dtype,
        "flags": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "optimizer": "foreach",
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cuda_matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        },
        "environment": provenance.environment(),
        "kernels": _kernels(device),
        "autotune": _autotune() if on_gpu else None,
        "nccl": _nccl() if on_gpu and world.world_size > 1 else None,
    }


def _autotune() -> dict[str, Any]:
    return {
        "deterministic": provenance.attempt(_mamba_deterministic),
        "configurations": {"error": "Triton does not tell which ones it chose"},
    }


def _mamba_deterministic() -> bool:
    """Return the switch of mamba_ssm: on, it takes one configuration instead of timing several."""
    module = importlib.import_module("mamba_ssm.utils.determinism")
    return bool(module.use_deterministic_mode())


def _nccl() -> dict[str, Any]:
    version: Any = torch.cuda.nccl.version
    return {
        "version": provenance.attempt(lambda: ".".join(map(str, version()))),
        "environment": provenance.set_variables("NCCL_"),
        "algorithm": {"error": "NCCL does not tell which one it chose for a sum"},
    }


def _kernels(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {"scan": "boldcast chunked", "convolution": "boldcast shifted sums"}
    compiled = importlib.util.find_spec("causal_conv1d") is not None
    return {"scan": "mamba_ssm Triton", "convolution": "causal_conv1d" if compiled else "torch"}


def _parallel(config: Config, world: World, devices: Sequence[str], job: Job) -> dict[str, Any]:
    n_micro = job.trainer.global_step.n_micro
    return {
        "strategy": job.trainer.place["strategy"],
        "world_size": world.world_size,
        "global_batch_size": config.train.global_batch_size,
        "micro_batch_size": config.train.micro_batch_size,
        "grad_accum_steps": [
            {"rank": rank, "steps": len(share(n_micro, world.world_size, rank))}
            for rank in range(world.world_size)
        ],
        "ranks": [{"rank": rank, "device": name} for rank, name in enumerate(devices)],
    }
