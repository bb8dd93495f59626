"""Initial weights that depend on the seed and the parameter's name, and on nothing else.

Numbers come from raw Philox words and float64 arithmetic that every CPU rounds alike, not from
torch's generators: the same seed gives the same bits on CPU and CUDA, for either Mamba kernel, for
any instruction set, and adding a parameter leaves all others as they were.

Example
-------
>>> import torch
>>> bias = torch.nn.Parameter(torch.empty(2))
>>> Draw(seed=0).uniform("head.bias", bias, bound=0.5)
>>> bool((bias.abs() <= 0.5).all())
True
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Draw:
    """A source of numbers keyed by seed and name."""

    seed: int
    prefix: str = ""

    def within(self, name: str) -> Draw:
        """Return the source for the parameters of the submodule ``name``."""
        return Draw(self.seed, f"{self.prefix}{name}.")

    def unit(self, name: str, n: int) -> NDArray[np.float64]:
        """Return ``n`` numbers in [0, 1), multiples of 2**-53."""
        key = hashlib.sha256(f"{self.seed}/{self.prefix}{name}".encode()).digest()[:16]
        words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(n)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(self, name: str, parameter: Tensor, bound: float) -> None:
        """Fill ``parameter`` with numbers in [-bound, bound)."""
        values = (2.0 * self.unit(name, parameter.numel()) - 1.0) * bound
        assign(parameter, values)

    def linear(self, name: str, layer: nn.Linear, scale: float = 1.0) -> None:
        """Fill weight and bias with numbers within ``scale`` / sqrt(inputs), as torch does."""
        bound = scale / math.sqrt(layer.in_features)
        self.uniform(f"{name}.weight", layer.weight, bound)
        if layer.bias is not None:
            self.uniform(f"{name}.bias", layer.bias, bound)


def assign(parameter: Tensor, values: NDArray[np.float64]) -> None:
    """Copy float64 ``values`` (any shape of the same size) into ``parameter``."""
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))
