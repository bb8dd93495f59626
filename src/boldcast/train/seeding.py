"""One seed for everything, and from it one per purpose.

A random draw is keyed by what it is for, never by who draws it: the weights by the seed alone (so
that every rank begins with the same ones), dropout by step and micro-batch (so that the number of
ranks, a kill or a resume cannot change it).

Example
-------
>>> derive(0, "weights") == derive(0, "weights") != derive(0, "dropout", 3, 1)
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from boldcast.config.schema import NumericsConfig


def derive(seed: int, purpose: str, *keys: int) -> int:
    """Return a 62-bit seed for one purpose, independent of every other purpose's.

    Source: the first eight bytes of SHA-256 over the written-out arguments.
    """
    text = ":".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def seed_micro_batch(seed: int, step: int, leaf: int) -> None:
    """Set torch's generators for one micro-batch's dropout."""
    torch.manual_seed(derive(seed, "dropout", step, leaf))


def fix_numerics(config: NumericsConfig) -> None:
    """Set what decides the bits of torch's arithmetic in this process, once, at its start."""
    torch.set_num_threads(config.threads)
    torch.backends.cuda.matmul.allow_tf32 = config.allow_tf32
    torch.backends.cudnn.allow_tf32 = config.allow_tf32
    torch.backends.cudnn.benchmark = False
    # not use_deterministic_algorithms: that imports torch's compiler, seconds for every process
    torch.set_deterministic_debug_mode("error" if config.level != "fast" else "default")


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of ``tensors``, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
