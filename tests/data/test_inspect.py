"""Inspect: facts and would-be refusals, for files and for lists, without ever refusing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from boldcast.data.inspect import inspect


def test_facts_of_a_good_file(tmp_path: Path, scans) -> None:
    np.save(tmp_path / "a.npy", scans(1))
    (tmp_path / "a.json").write_text('{"RepetitionTime": 1.5}')
    (facts,) = inspect([tmp_path / "a.npy"])
    assert facts["problems"] == facts["warnings"] == facts["masked"] == facts["confounds"] == []
    assert (facts["shape"], facts["n_volumes"], facts["n_regions"]) == ([60, 4], 60, 4)
    assert (facts["t_r"], facts["t_r_source"], facts["n_nan"]) == (1.5, "sidecar", 0)
    x = scans(1) - scans(1).mean(0)
    expected = ((x[1:] * x[:-1]).sum(0) / (x * x).sum(0)).mean()
    assert facts["lag1"] == pytest.approx(expected)
    json.dumps(facts, allow_nan=False)


def test_every_problem_is_listed(tmp_path: Path, scans) -> None:
    x = np.cumsum(scans(1, 500) - 100, axis=0)
    x[3, 0] = np.nan
    x[:, 2] = 1.0
    lines = ["l,CSF,flat,r"] + [",".join(repr(float(v)) for v in row) for row in x]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (facts,) = inspect([tmp_path / "a.csv"])
    problems = "\n".join(facts["problems"])
    assert len(facts["problems"]) == 3
    assert "must have a repetition time" in problems
    assert "`CSF` (column 1)" in problems
    assert "`l` (column 0) is NaN at volume 3" in problems
    assert facts["masked"] == ["`flat` (column 2)"]
    assert facts["n_nan"] == 1
    assert any("band-passed" in warning for warning in facts["warnings"])
    json.dumps(facts, allow_nan=False)


def test_a_list_stands_for_its_scans(study, scans) -> None:
    study.add("a.npy", scans(1), "1")
    scipy.io.savemat(study.root / "b.mat", {"tc": scans(2).T})
    study.rows.append({"path": "b.mat", "subject": "2", "t_r": "0.72", "n_regions": "4"})
    a, b = inspect([study.write_list()])
    assert (a["t_r"], a["t_r_source"], a["problems"]) == (0.72, "scan list", [])
    assert (b["n_volumes"], b["problems"]) == (60, [])
    study.rows.append({"path": "c.npy", "subject": "3"})
    (facts,) = inspect([study.write_list()])
    assert "line 4 must name a file" in facts["problems"][0]


def test_orientation_is_asked_for(tmp_path: Path, scans) -> None:
    path = tmp_path / "b.mat"
    scipy.io.savemat(path, {"tc": scans(2).T})
    (facts,) = inspect([path], t_r=0.72)
    assert "which axis is time" in facts["problems"][0]
    assert facts["shape"] == [4, 60]
    assert inspect([path], t_r=0.72, n_regions=4)[0]["problems"] == []
