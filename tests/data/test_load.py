"""Loading: orientation, repetition time, confounds, missing values; nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from boldcast.data.load import load, orient
from boldcast.data.quality import (
    confound_columns,
    confounds,
    lag1_autocorrelation,
    masked_regions,
)
from boldcast.data.scan_list import Entry
from boldcast.errors import DataRefused


def entry(path: Path, **cells: object) -> Entry:
    return Entry(**({"path": path, "label": path.name, "subject": "1"} | cells))  # type: ignore[arg-type]


def loaded(path: Path, *, t_r: float | None = 0.72, exclude: bool = False, **cells: object):
    return load(entry(path, **cells), t_r=t_r, exclude_confounds=exclude)


def test_mat_is_oriented_by_the_number_of_regions(tmp_path: Path, scans) -> None:
    x = scans(0)
    for array in (x, x.T):
        scipy.io.savemat(tmp_path / "a.mat", {"tc": array})
        assert np.array_equal(loaded(tmp_path / "a.mat", n_regions=4).series, x)
    with pytest.raises(DataRefused, match=r"a\.mat.*which axis is time.*4 x 60"):
        loaded(tmp_path / "a.mat")
    with pytest.raises(DataRefused, match="must have 5 regions"):
        loaded(tmp_path / "a.mat", n_regions=5)


def test_a_regions_file_orients_and_names(tmp_path: Path, scans) -> None:
    scipy.io.savemat(tmp_path / "a.mat", {"tc": scans(0).T})
    names = tmp_path / "regions.txt"
    names.write_text("a\nb\nc\nd\n")
    assert loaded(tmp_path / "a.mat", regions_path=names).regions == ("a", "b", "c", "d")
    names.write_text("a\nb\na\nd\n")
    with pytest.raises(DataRefused, match=r"regions\.txt.*`a` is the name"):
        loaded(tmp_path / "a.mat", regions_path=names)


def test_a_square_array_is_not_guessed() -> None:
    square = np.arange(9.0).reshape(3, 3)
    with pytest.raises(DataRefused, match="which axis is time"):
        orient(Path("a.mat"), square, axes="unknown", n_regions=3)
    assert orient(Path("a.npy"), square, axes="volumes_first", n_regions=3)[0, 1] == 1


def test_what_names_its_axes_is_not_turned() -> None:
    with pytest.raises(DataRefused, match="must have 60 regions"):
        orient(Path("a.csv"), np.zeros((60, 4)), axes="named", n_regions=60)


def test_the_order_of_t_r_sources(tmp_path: Path, scans) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"tc": scans(0), "TR": 4.0})
    assert loaded(path, t_r=None, n_regions=4).t_r == 4.0
    (tmp_path / "a.json").write_text(json.dumps({"RepetitionTime": 3.0}))
    assert loaded(path, t_r=None, n_regions=4).t_r == 3.0
    assert load(entry(path, n_regions=4, t_r=2.0), t_r=None, exclude_confounds=False).t_r == 2.0
    assert load(entry(path, n_regions=4, t_r=2.0), t_r=1.0, exclude_confounds=False).t_r == 1.0


@pytest.mark.parametrize(
    ("sidecar", "said"),
    [
        ("{", "must be JSON"),
        ("[1]", "JSON object"),
        ('{"RepetitionTime": "0.72"}', "as a number of seconds, but says '0.72'"),
        ('{"t_r": true}', "as a number"),
        ('{"t_r": 0.72, "RepetitionTime": 2.0}', "says 2.0 and 0.72"),
        ('{"t_r": 720}', r"from 0.1 to 10 s, but is 720 s .sidecar.*milliseconds: write 0.72"),
        ('{"t_r": 0.05}', r"but is 0.05 s .sidecar.\. Give it in seconds"),
        ("{}", "must have a repetition time"),
    ],
)
def test_a_bad_sidecar_is_refused(tmp_path: Path, scans, sidecar: str, said: str) -> None:
    np.save(tmp_path / "a.npy", scans(0))
    (tmp_path / "a.json").write_text(sidecar)
    with pytest.raises(DataRefused, match=said):
        loaded(tmp_path / "a.npy", t_r=None)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinite")])
def test_missing_values_are_named(tmp_path: Path, scans, value: float, word: str) -> None:
    x = scans(0)
    x[7, 2] = x[9, 2] = x[9, 3] = value
    path = tmp_path / "a.csv"
    lines = ["w,x,y,z"] + [",".join(repr(float(v)) for v in row) for row in x]
    path.write_text("\n".join(lines))
    said = rf"a\.csv.*`y` .column 2. is {word} at volume 7, the first of 3 such values in 2 regions"
    with pytest.raises(DataRefused, match=said):
        loaded(path)


def test_constant_and_missing_regions_are_masked(tmp_path: Path, scans) -> None:
    x = scans(0, n_regions=5)
    x[:, 1] = 9500.1
    x[:, 3] = np.nan
    # The rounding of a sum that should be constant.
    x[:, 4] = 9500 + 1e-12 * np.arange(60)
    np.save(tmp_path / "a.npy", x)
    assert loaded(tmp_path / "a.npy").masked.tolist() == [False, True, False, True, True]
    x[:, 3] = np.inf
    assert not masked_regions(x)[3]


CONFOUNDS = (
    *("WM", "CSF", "Vent", "global_signal", "trans_x", "rot_z", "framewise_displacement"),
    *("cosine00", "a_comp_cor_05", "csf_derivative1_power2", "std_dvars", "white_matter"),
)


def test_confounds_by_name() -> None:
    assert confounds(CONFOUNDS) == tuple(CONFOUNDS)
    regions = [
        "Precuneus_L",
        "Ventral_DC",
        "Rotunda",
        "Transverse",
        "wm_like",
        "7Networks_LH_Vis_1",
    ]
    assert confounds(regions) == ()


def test_confounds_by_scale(scans) -> None:
    raw = 9500 + 30 * scans(0, n_regions=6)
    raw[:, 4] = 1e6 + scans(1)[:, 0]
    assert confound_columns(raw, None) == (4,)
    # Demeaned regions have ratios near zero, among which 50 times the median is noise.
    demeaned = scans(0, n_regions=6) - scans(0, n_regions=6).mean(0)
    demeaned[:, 2] += 0.01
    assert confound_columns(demeaned, None) == ()


def test_confounds_are_refused_or_left_out(tmp_path: Path, scans) -> None:
    x = scans(0)
    path = tmp_path / "a.csv"
    lines = ["l,trans_x,r,CSF"] + [",".join(repr(float(v)) for v in row) for row in x]
    path.write_text("\n".join(lines))
    with pytest.raises(DataRefused, match=r"a\.csv.*`trans_x` .column 1., `CSF` .column 3."):
        loaded(path)
    kept = loaded(path, exclude=True)
    assert kept.regions == ("l", "r")
    assert np.array_equal(kept.series, x[:, [0, 2]])
    path.write_text("\n".join(["CSF,WM", *(f"{a},{b}" for a, b in x[:, :2])]))
    with pytest.raises(DataRefused, match="every column looks like a confound"):
        loaded(path, exclude=True)


def test_lag1_is_that_of_an_ar1_process() -> None:
    rng = np.random.default_rng(1)
    x = np.zeros((20_000, 2))
    for t in range(1, len(x)):
        x[t] = 0.7 * x[t - 1] + rng.standard_normal(2)
    # Standard error of an AR(1) coefficient: sqrt((1 - 0.49) / 20000), over two regions.
    assert lag1_autocorrelation(x + 50) == pytest.approx(0.7, abs=4 * 0.0036)
    assert np.isnan(lag1_autocorrelation(np.ones((5, 2))))


def test_a_table_wider_than_long_is_refused_until_the_atlas_size_is_given():  # xcp_d#790
    series = np.arange(24.0).reshape(4, 6)
    with pytest.raises(DataRefused, match="4 rows are fewer than its 6 columns"):
        orient(Path("a.npy"), series, axes="volumes_first", n_regions=None)
    given = orient(Path("a.npy"), series, axes="volumes_first", n_regions=6)
    assert np.array_equal(given, series)
    turned = orient(Path("a.npy"), series, axes="volumes_first", n_regions=4)
    assert np.array_equal(turned, series.T)
