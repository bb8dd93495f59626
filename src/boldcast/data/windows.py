"""Windows of the packed store, found by arithmetic: item ``i`` is cut out when it is asked for.

A window is ``context_length + max(horizons)`` volumes: what the model reads and, shifted by each
horizon, what every position of it forecasts. Windows start every ``stride`` volumes of each
unbroken observed stretch; one that would cross the end of a scan or hold a censored volume does
not exist, so the ``observed`` of an item is true throughout here.

It is a map-style dataset: torch's ``DataLoader`` and ``DistributedSampler`` take it as it is.

Example
-------
>>> windows = Windows(store, "train", 64, horizons=(1, 4), stride=16)  # doctest: +SKIP
>>> span, observed = windows[0]  # doctest: +SKIP
>>> span.shape  # doctest: +SKIP
torch.Size([68, 94])
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from boldcast.data.segments import observed_stretches
from boldcast.data.split import Split
from boldcast.data.store import Store


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """The windows of one side of the split.

    Memory is proportional to the number of scans and censored gaps, not of windows.

    Parameters
    ----------
    store : Store
        The packed scans.
    split : str
        ``train`` or ``held_out``.
    context_length : int
        Volumes the model reads.
    horizons : sequence of int
        Volumes ahead that each position forecasts.
    stride : int
        Volumes between the starts of neighbouring windows.
    """

    def __init__(
        self, store: Store, split: Split, context_length: int, horizons: Sequence[int], stride: int
    ) -> None:
        if context_length < 1 or stride < 1 or not horizons or min(horizons) < 1:
            raise ValueError("context_length, stride and horizons must be at least 1")
        self.store = store
        self.split = split
        self.context_length = context_length
        self.horizons = tuple(horizons)
        self.stride = stride
        self.span = context_length + max(horizons)
        scans, firsts, counts = self._pieces()
        self._scans = np.array(scans, dtype=np.int64)
        self._firsts = np.array(firsts, dtype=np.int64)
        self._ends = np.cumsum(np.array(counts, dtype=np.int64))

    def _pieces(self) -> tuple[list[int], list[int], list[int]]:
        scans, firsts, counts = [], [], []
        for index, scan in enumerate(self.store.scans):
            if scan.split != self.split:
                continue
            for first, length in observed_stretches(self.store.observed[self.store.volumes(index)]):
                if length >= self.span:
                    scans.append(index)
                    firsts.append(first)
                    counts.append((length - self.span) // self.stride + 1)
        return scans, firsts, counts

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self._ends[-1]) if self._ends.size else 0

    def locate(self, index: int) -> tuple[int, int]:
        """Return the scan (an index of ``store.scans``) and the first volume in it of a window.

        Raises
        ------
        IndexError
            If there is no such window.
        """
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        piece = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[piece - 1]) if piece else 0
        start = int(self._firsts[piece]) + (index - before) * self.stride
        return int(self._scans[piece]), start

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one window, copied out of the store.

        Returns
        -------
        span : float32 tensor, shape (context_length + max(horizons), n_regions)
        observed : bool tensor, shape (context_length + max(horizons),)
        """
        scan, start = self.locate(index)
        first = self.store.scans[scan].offset + start
        rows = slice(first, first + self.span)
        return (
            torch.from_numpy(np.array(self.store.series[rows], dtype=np.float32)),
            torch.from_numpy(np.array(self.store.observed[rows], dtype=np.bool_)),
        )
