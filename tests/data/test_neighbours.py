"""Neighbours: by correlation over the training side alone, or by distance; self first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boldcast.data.neighbours import coordinate_neighbours, correlation_neighbours
from boldcast.errors import DataRefused, UsageRefused


def chain(seed: int, order: list[int]) -> np.ndarray:
    """Regions along a chain: each is the one before plus noise, laid out in ``order``."""
    rng = np.random.default_rng(seed)
    x = np.empty((400, len(order)))
    x[:, order[0]] = rng.standard_normal(400)
    for before, after in zip(order, order[1:], strict=False):
        x[:, after] = 0.9 * x[:, before] + 0.4 * rng.standard_normal(400)
    return x + 100


def test_correlation_is_numpys_over_the_training_side(study) -> None:
    arrays = [chain(1, [0, 1, 2, 3]), chain(2, [0, 1, 2, 3])]
    study.add("a.npy", arrays[0], "1")
    study.add("b.npy", arrays[1], "2")
    study.add("c.npy", chain(3, [2, 0, 3, 1]), "3", split="held_out")
    found = correlation_neighbours(study.pack(), 4)
    z = [(x - x.mean(0)) / x.std(0) for x in arrays]
    corr = np.corrcoef(np.concatenate(z).T)
    assert found.dtype == np.int64
    assert found.tolist() == [np.argsort(-row, kind="stable").tolist() for row in corr]


def test_the_held_out_side_has_no_say(study) -> None:
    study.add("a.npy", chain(1, [0, 1, 2, 3]), "1")
    study.add("c.npy", chain(3, [2, 0, 3, 1]), "3", split="held_out")
    before = correlation_neighbours(study.pack(), 3)
    study.add("d.npy", chain(4, [3, 0, 2, 1]), "4", split="held_out")
    assert np.array_equal(correlation_neighbours(study.pack(), 3), before)


def test_masked_regions_are_the_last_choice(study) -> None:
    x = chain(1, [0, 1, 2, 3])
    x[:, 1] = 7
    # Against a region without signal even an opposite one is preferred.
    x[:, 2] = 200 - x[:, 2]
    study.add("a.npy", x, "1")
    study.add("b.npy", chain(2, [0, 1, 2, 3]), "2", split="held_out")
    found = correlation_neighbours(study.pack(), 4)
    assert found[:, 0].tolist() == [0, 1, 2, 3]
    assert found[[0, 2, 3], 3].tolist() == [1, 1, 1]


def test_coordinates_are_matched_by_name(tmp_path: Path) -> None:
    path = tmp_path / "places.tsv"
    path.write_text(
        "region\tx\ty\tz\nfar\t90\t0\t0\nb\t1\t0\t0\nunused\t0\t0\t0\na\t0\t0\t0\nc\t-3\t0\t0\n"
    )
    found = coordinate_neighbours(path, ("a", "b", "c", "far"), 3)
    # Distances: a-b 1, a-c 3, b-c 4, far to b 89, to a 90.
    assert found.tolist() == [[0, 1, 2], [1, 0, 2], [2, 0, 1], [3, 1, 0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("region\tx\ty\tz\na\t0\t0\t0\n", "lacks 1, the first `b`"),
        ("region\tx\ty\na\t0\t0\n", "columns region, x, y, z"),
        ("region\tx\ty\tz\na\t0\t0\tup\n", "line 2 must hold three numbers"),
        ("region\tx\ty\tz\na\t0\t0\tnan\n", "line 2 must hold three numbers"),
        ("region\tx\ty\tz\na\t0\t0\t1\na\t0\t0\t2\n", "must place `a` once"),
    ],
)
def test_bad_coordinates_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "places.tsv"
    path.write_text(text)
    with pytest.raises(DataRefused, match=said):
        coordinate_neighbours(path, ("a", "b"), 1)


def test_more_neighbours_than_regions_are_refused(two_subjects, tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="`model.spatial_k` must be from 1 to .* 4, but is 5"):
        correlation_neighbours(two_subjects.pack(), 5)
    with pytest.raises(DataRefused, match="is not there"):
        coordinate_neighbours(tmp_path / "none.tsv", ("a",), 1)
