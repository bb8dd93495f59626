"""Windows: item by arithmetic, no scan end or gap crossed, memory independent of their number."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from boldcast.data.store import ScanInfo, Store
from boldcast.data.windows import Windows


def store_of(observed: list[list[bool]], splits: list[str]) -> Store:
    """A store in memory whose value at (row, region) tells the row."""
    lengths = [len(each) for each in observed]
    offsets = np.cumsum([0, *lengths])
    total = int(offsets[-1])
    return Store(
        folder=None,  # type: ignore[arg-type]
        regions=("a", "b"),
        region_mask=np.ones(2, bool),
        t_r=0.72,
        scans=tuple(
            ScanInfo(str(i), "", "", None, split, lengths[i], int(offsets[i]), "", "")  # type: ignore[arg-type]
            for i, split in enumerate(splits)
        ),
        series=np.arange(total, dtype=np.float32)[:, None] + np.array([0, 0.5], np.float32),
        observed=np.concatenate([np.array(each, bool) for each in observed]),
        notes=(),
        digest="",
        series_sha256="",
        observed_sha256="",
    )


def listed(observed: list[list[bool]], splits: list[str], side: str, span: int, stride: int):
    """Every window by trying each start of each stretch: the definition, not the arithmetic."""
    found = []
    for scan, seen in enumerate(observed):
        if splits[scan] != side:
            continue
        origin = None
        for start in range(len(seen)):
            if not seen[start]:
                origin = None
                continue
            origin = start if origin is None else origin
            inside = start + span <= len(seen) and all(seen[start : start + span])
            if inside and (start - origin) % stride == 0:
                found.append((scan, start))
    return found


@given(
    observed=st.lists(st.lists(st.booleans() | st.just(True), min_size=1, max_size=40), min_size=1),
    context=st.integers(1, 6),
    horizon=st.integers(1, 4),
    stride=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_locate_is_the_list_of_all_windows(observed, context, horizon, stride, data) -> None:
    sides = st.sampled_from(["train", "held_out"])
    splits = [data.draw(sides) for _ in observed]
    for side in ("train", "held_out"):
        windows = Windows(store_of(observed, splits), side, context, (1, horizon), stride)
        expected = listed(observed, splits, side, context + horizon, stride)
        assert [windows.locate(i) for i in range(len(windows))] == expected


def test_item_is_the_piece_of_the_scan() -> None:
    store = store_of([[True] * 20, [True] * 30], ["train", "train"])
    windows = Windows(store, "train", 8, (1, 3), 4)
    # Scan 0: starts 0, 4, 8; so window 4 is the second of scan 1, volume 4, row 24 of the store.
    assert len(windows) == 3 + 5
    assert windows.locate(4) == (1, 4)
    span, observed = windows[4]
    assert (span.shape, span.dtype) == ((11, 2), torch.float32)
    assert span[:, 0].tolist() == list(range(24, 35))
    assert (observed.shape, observed.dtype, bool(observed.all())) == ((11,), torch.bool, True)


def test_item_is_a_copy() -> None:
    store = store_of([[True] * 20], ["train"])
    Windows(store, "train", 4, (1,), 1)[0][0].zero_()
    assert store.series[3, 0] == 3


def test_outside_is_an_index_error() -> None:
    windows = Windows(store_of([[True] * 20], ["train"]), "train", 8, (1,), 4)
    for index in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[index]
    assert len(list(windows)) == len(windows) == 3


def test_too_short_scans_have_no_windows() -> None:
    assert len(Windows(store_of([[True] * 8], ["train"]), "train", 8, (1,), 4)) == 0


def test_memory_does_not_grow_with_the_number_of_windows() -> None:
    def cost(stride: int) -> tuple[int, int]:
        store = store_of([[True] * 200_000], ["train"])
        tracemalloc.start()
        windows = Windows(store, "train", 8, (1,), stride)
        windows[len(windows) - 1]
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return held, len(windows)

    (few_bytes, few), (many_bytes, many) = cost(1000), cost(1)
    assert many > 900 * few
    # A list of indices would need at least 8 bytes a window, 1.6 MB here.
    assert many_bytes - few_bytes < 20_000


def test_works_under_torchs_distributed_sampler() -> None:
    windows = Windows(store_of([[True] * 67], ["train"]), "train", 8, (1,), 1)
    seen: list[float] = []
    for rank in range(2):
        sampler = DistributedSampler(windows, num_replicas=2, rank=rank, seed=4, drop_last=True)
        sampler.set_epoch(3)
        for span, _ in DataLoader(windows, batch_size=3, sampler=sampler):
            seen += span[:, 0, 0].tolist()
    # 59 windows over two ranks: 58 of them, each once.
    assert len(windows) == 59
    assert len(seen) == len(set(seen)) == 58


def test_loader_processes_get_a_path_and_not_the_data(two_subjects) -> None:
    store = two_subjects.pack()
    big = replace(store, series=np.zeros((10**6, 4), np.float32))
    windows = Windows(store, "train", 8, (1, 2), 4)
    assert len(pickle.dumps(big)) < 1000
    again = pickle.loads(pickle.dumps(windows))
    assert torch.equal(again[2][0], windows[2][0])
