"""Readers: what each format says by itself, and what is no scan."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import scipy.io
from nibabel.cifti2 import BrainModelAxis, Cifti2Image, ParcelsAxis, ScalarAxis, SeriesAxis

from boldcast.data import readers
from boldcast.errors import DataRefused

SERIES = np.random.default_rng(0).standard_normal((12, 3))


def parcels(names: tuple[str, ...] = ("left", "right", "middle")) -> ParcelsAxis:
    cortex = BrainModelAxis.from_mask(np.ones(len(names), bool), name="CortexLeft")
    return ParcelsAxis.from_brain_models([(name, cortex[[i]]) for i, name in enumerate(names)])


def write_cifti(path: Path, axes: tuple, array: np.ndarray) -> Path:
    nibabel.save(Cifti2Image(array.astype(np.float32), header=axes), path)
    return path


@pytest.mark.parametrize("series_first", [True, False])
def test_cifti_is_oriented_by_its_axes(tmp_path: Path, series_first: bool) -> None:
    series = SeriesAxis(0, 0.8, 12)
    axes = (series, parcels()) if series_first else (parcels(), series)
    path = write_cifti(tmp_path / "a.ptseries.nii", axes, SERIES if series_first else SERIES.T)
    raw = readers.read(path)
    np.testing.assert_allclose(raw.series, SERIES, atol=1e-6)
    assert raw.regions == ("left", "right", "middle")
    assert raw.axes == "named"
    # pixdim of such files says 1.0, whatever the repetition time is.
    assert nibabel.load(path).nifti_header["pixdim"][4:6].max() <= 1.0
    assert raw.t_r == pytest.approx(0.8)


def test_a_square_cifti_is_not_turned(tmp_path: Path) -> None:
    axes = (parcels(), SeriesAxis(0, 2.0, 3))
    path = write_cifti(tmp_path / "a.ptseries.nii", axes, SERIES[:3])
    np.testing.assert_allclose(readers.read(path).series, SERIES[:3].T, atol=1e-6)


def test_cifti_steps_have_an_exponent(tmp_path: Path) -> None:
    image = Cifti2Image(SERIES.astype(np.float32), header=(SeriesAxis(0, 720, 12), parcels()))
    image.header.matrix.get_index_map(0).series_exponent = -3
    nibabel.save(image, tmp_path / "a.ptseries.nii")
    assert readers.read(tmp_path / "a.ptseries.nii").t_r == pytest.approx(0.72)


def test_cifti_in_hertz_is_refused(tmp_path: Path) -> None:
    axes = (SeriesAxis(0, 0.8, 12, unit="HERTZ"), parcels())
    path = write_cifti(tmp_path / "a.ptseries.nii", axes, SERIES)
    with pytest.raises(DataRefused, match=r"a\.ptseries\.nii.*SECOND, but its unit is HERTZ"):
        readers.read(path)


def test_cifti_without_time_is_refused(tmp_path: Path) -> None:
    axes = (ScalarAxis([str(i) for i in range(12)]), parcels())
    path = write_cifti(tmp_path / "a.ptseries.nii", axes, SERIES)
    with pytest.raises(DataRefused, match="series axis was found 0 times in .ScalarAxis, Parcels"):
        readers.read(path)


def test_a_plain_nifti_named_cifti_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ptseries.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 2, 2, 3), np.float32), np.eye(4)), path)
    with pytest.raises(DataRefused, match="must be a CIFTI-2 file"):
        readers.read(path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataRefused, match="cannot be read as one"):
        readers.read(path)


def test_mat_takes_the_only_array(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"tc": SERIES.T, "TR": 0.72, "subject": "s1"})
    raw = readers.read(path)
    assert np.array_equal(raw.series, SERIES.T)
    assert (raw.axes, raw.t_r, raw.regions) == ("unknown", 0.72, None)


def test_mat_takes_the_named_array_or_asks(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"tc": SERIES, "other": SERIES + 1})
    with pytest.raises(DataRefused, match=r"holds 2 .`other` .12, 3., `tc` .12, 3.*column `key`"):
        readers.read(path)
    assert np.array_equal(readers.read(path, key="other").series, SERIES + 1)
    with pytest.raises(DataRefused, match="must hold an array `ts`"):
        readers.read(path, key="ts")


def test_mat_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124, b" ") + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(DataRefused, match="version 7.3"):
        readers.read(path)
    path.write_bytes(b"garbage" * 50)
    with pytest.raises(DataRefused, match="cannot be read as one"):
        readers.read(path)
    cells = np.empty((2, 2), object)
    cells[:] = "x"
    scipy.io.savemat(path, {"tc": cells})
    with pytest.raises(DataRefused, match="holds 0"):
        readers.read(path)
    with pytest.raises(DataRefused, match="real numbers"):
        readers.read(path, key="tc")


def test_npy_rows_are_volumes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", SERIES.astype(np.float32))
    raw = readers.read(tmp_path / "a.npy")
    assert raw.series.dtype == np.float64
    assert np.array_equal(raw.series, SERIES.astype(np.float32))
    assert raw.axes == "volumes_first"


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return (self.mark.touch, ())


def test_npy_never_unpickles(tmp_path: Path) -> None:
    array = np.empty((2, 2), object)
    array[:] = Bomb(tmp_path / "was-run")
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(DataRefused, match=r"a\.npy.*without pickling"):
        readers.read(tmp_path / "a.npy")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(5), r"2-D array .*shape is \(5,\)"),
        (np.zeros((2, 3, 4)), r"shape is \(2, 3, 4\)"),
        (np.zeros((0, 3)), r"at least one volume"),
        (np.zeros((3, 2), complex), r"real numbers"),
        (np.full((3, 2), "x"), r"real numbers"),
    ],
)
def test_what_is_not_one_scan_is_refused(tmp_path: Path, array: np.ndarray, said: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataRefused, match=rf"a\.npy.*{said}"):
        readers.read(tmp_path / "a.npy")


def test_damaged_npy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, SERIES)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataRefused, match=r"a\.npy"):
        readers.read(path)


@pytest.mark.parametrize(("suffix", "tab"), [(".csv", ","), (".tsv", "\t")])
def test_tables_with_and_without_header(tmp_path: Path, suffix: str, tab: str) -> None:
    body = "\n".join(tab.join(repr(float(v)) for v in row) for row in SERIES) + "\n"
    path = tmp_path / f"a{suffix}"
    path.write_text(body)
    raw = readers.read(path)
    assert np.array_equal(raw.series, SERIES)
    assert (raw.regions, raw.axes) == (None, "volumes_first")
    path.write_text("\ufeff" + tab.join(["l", '"r"', "m"]) + "\n" + body)
    raw = readers.read(path)
    assert np.array_equal(raw.series, SERIES)
    assert (raw.regions, raw.axes) == (("l", "r", "m"), "named")


def test_missing_cells_are_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\tn/a\n\t2\nNaN\t3\n")
    expected = [[1, np.nan], [np.nan, 2], [np.nan, 3]]
    np.testing.assert_array_equal(readers.read(path).series, expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n3\n", "2 cells in every line, but row 3 has 1"),
        ("a,b\n1,2\n3,x4\n", "row 3, column 2 is `x4`"),
        ("a,a\n1,2\n", "`a` is the name of columns 0 and 1"),
        (",a,b\n0,1,2\n1,3,4\n", "column 0 has no name.*row index"),
        ("0,1,2\n5,6,7\n5,5,5\n", "counts 0, 1, 2"),
        ("", "at least one volume"),
        ("a,b\n", "at least one volume"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataRefused, match=said):
        readers.read(path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe1,2\n")
    with pytest.raises(DataRefused, match="UTF-8"):
        readers.read(path)


def test_unknown_and_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=r"must end in one of \.mat, \.npy, \.csv"):
        readers.read(tmp_path / "a.nii.gz")
    with pytest.raises(DataRefused, match="is not there"):
        readers.read(tmp_path / "a.npy")
