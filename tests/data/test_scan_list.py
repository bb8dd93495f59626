"""The scan list: known columns, strings as they are, every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from boldcast.data.scan_list import is_scan_list, read_scan_list
from boldcast.errors import DataRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "scans.tsv"
    path.write_text(text)
    return path


def test_identifiers_are_strings_and_empty_cells_say_nothing(folder: Path) -> None:
    path = write(
        folder,
        "path\tsubject\tsession\tfamily\tt_r\tsplit\n"
        "a.npy\t0042\t1e5\t007\t0.72\ttrain\nb.npy\t42\tn/a\t\t\n",
    )
    a, b = read_scan_list(path)
    assert (a.subject, a.session, a.family, a.t_r, a.split) == ("0042", "1e5", "007", 0.72, "train")
    assert (b.subject, b.session, b.family, b.t_r, b.split) == ("42", "", None, None, None)
    assert a.path == folder / "a.npy"


def test_absolute_paths_are_not_recorded(folder: Path) -> None:
    path = write(folder, f"path\tsubject\n{folder}/a.npy\t1\n")
    assert read_scan_list(path)[0].label == "a.npy"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path\tsubject\tsesion\na.npy\t1\t2\n", "has `sesion`. Did you mean `session`"),
        ("path\tsubject\tage\na.npy\t1\t2\n", "has `age`. Known are path"),
        ("path\tpath\tsubject\na.npy\ta.npy\t1\n", "column `path` once"),
        ("path\na.npy\n", "must have a column `subject`"),
        ("path,subject\na.npy,1\n", "must have a column `path`"),
        ("path\tsubject\n", "at least one scan"),
        ("", "must have a column `path`"),
        ("path\tsubject\na.npy\t\n", "line 2 must fill in subject"),
        ("path\tsubject\nc.npy\t1\n", "line 2 must name a file"),
        ("path\tsubject\na.npy\t1\nb.npy\t1\n", "scan - twice .`a.npy` and `b.npy`"),
        ("path\tsubject\na.npy\t1\n./a.npy\t2\n", "the file `./a.npy` twice"),
        ("path\tsubject\tsplit\na.npy\t1\ttest\n", "`split` must be train or held_out"),
        ("path\tsubject\tt_r\na.npy\t1\tfast\n", "`t_r` must be a number, but is fast"),
        ("path\tsubject\tn_regions\na.npy\t1\t-3\n", "`n_regions` must be a count"),
        ("path\tsubject\na.npy\t1\t5\n", "at most 2 cells, but has 3"),
    ],
)
def test_what_is_wrong_is_refused(folder: Path, text: str, said: str) -> None:
    with pytest.raises(DataRefused, match=said):
        read_scan_list(write(folder, text))


def test_all_problems_come_at_once(folder: Path) -> None:
    text = "path\tsubject\tt_r\tsplit\nc.npy\t1\tx\ttest\nd.npy\t2\t0.72\t\n"
    with pytest.raises(DataRefused) as refusal:
        read_scan_list(write(folder, text))
    assert len(str(refusal.value).splitlines()) == 4


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="is not there"):
        read_scan_list(tmp_path / "scans.tsv")


def test_lists_and_series_are_told_apart(folder: Path) -> None:
    assert is_scan_list(write(folder, "subject\tpath\n"))
    assert not is_scan_list(write(folder, "left\tright\n1\t2\n"))
    assert not is_scan_list(folder / "a.npy")
