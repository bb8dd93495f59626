"""What is replaced in the record of what was asked, on its own and in a run on named subjects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from boldcast.config.resolve import as_dict, digest, resolve
from boldcast.config.schema import Config
from boldcast.files import canonical_json
from boldcast.record.lint import lint
from boldcast.record.manifest import config_digest, manifest_id
from boldcast.record.privacy import hashed_subject
from boldcast.record.requested import recorded_argv, recorded_config, stands_for_more
from boldcast.record.verify import verify

TINY = Path(__file__).parents[2] / "run" / "tiny.toml"
SUBJECTS = ("sub-101309", "sub-377451", "sub-555348")


def h(subject: str) -> str:
    return hashed_subject(subject, "salt")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["train", "--data.held_out", "sub-1,sub-2"], ["train", "--data.held_out", "{0},{1}"]),
        (["--data.held_out=['sub-1', 'sub-2']"], ["--data.held_out=['{0}', '{1}']"]),
        (["--data.held-out", '["sub-1"]', "--seed"], ["--data.held-out", '["{0}"]', "--seed"]),
        (["--data.source", "in/sub-1.tsv"], ["--data.source", "in/<subject {0}>.tsv"]),
        (["--data.source", "in/sub-11.tsv"], ["--data.source", "in/sub-11.tsv"]),
        (["--run_dir=/r/sub-2"], ["--run_dir=/r/<subject {1}>"]),
        (["--name", "sub-1", "--json"], ["--name", "sub-1", "--json"]),
    ],
)  # fmt: skip
def test_a_command_line_names_no_subject(given: list[str], kept: list[str]) -> None:
    wanted = [word.replace("{0}", h("sub-1")).replace("{1}", h("sub-2")) for word in kept]
    assert recorded_argv(given, "salt", {"sub-1", "sub-2"}) == wanted


def test_a_plain_configuration_is_recorded_as_it_stands() -> None:
    plain = as_dict(Config())
    assert recorded_config(plain, "salt") == plain
    assert not stands_for_more(plain)
    assert config_digest(plain) == digest(Config())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three named subjects, one held out by name, every path absolute."""
    place = tmp_path_factory.mktemp("named subjects")
    rng = np.random.default_rng(0)
    lines = ["path\tsubject\tt_r"]
    for subject in SUBJECTS:
        series = np.cumsum(rng.standard_normal((90, 4)), axis=0)
        np.save(place / f"{subject}.npy", series.astype(np.float32))
        lines.append(f"{subject}.npy\t{subject}\t0.72")
    (place / "scans.tsv").write_text("\n".join(lines) + "\n")
    words = ["train", str(TINY), "--data.source", str(place / "scans.tsv")]
    words += ["--data.held_out", SUBJECTS[1], "--run_dir", str(place / "run"), "--data", str(place)]
    words += ["--train.steps", "2", "--validation.every", "2", "--optim.warmup_steps", "1"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOLDCAST", "OMP", "MKL"))}
    done = subprocess.run(
        [sys.executable, "-m", "boldcast", *words],
        env=kept | {"BOLDCAST_CACHE": str(place / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return place / "run"


def test_the_record_of_a_run_names_no_subject_and_no_place(run: Path) -> None:
    text = (run / "manifest.json").read_text()
    for subject in SUBJECTS:
        assert subject not in text
        assert subject.removeprefix("sub-") not in text
    assert str(run.parent) not in text
    manifest = json.loads(text)
    assert "autocorrelation" in " ".join(manifest["data"]["notes"])
    held_out = [f["subject"] for f in manifest["data"]["files"] if f["split"] == "held_out"]
    data = manifest["requested"]["config"]["data"]
    assert data["held_out"] == held_out
    assert data["source"] == "<path>/scans.tsv"
    argv = manifest["requested"]["argv"]
    assert argv[argv.index("--data.held_out") + 1] == held_out[0]
    assert argv[argv.index("--run_dir") + 1] == "<path>/run"
    assert [f for f in lint(run / "manifest.json") if not f.ok] == []


def test_its_digest_is_that_of_the_true_configuration(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    true = resolve(run / "config.toml", {})
    assert true.data.held_out == (SUBJECTS[1],)
    assert manifest["requested"]["config_digest"] == digest(true)
    found = {f.name: f for f in verify(run)}
    assert [f for f in found.values() if not f.ok] == []
    assert found["config digest"].detail == digest(true)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (SUBJECTS[1], SUBJECTS[2], {"config.toml", "config digest"}),
        ("scans.tsv", "other.tsv", {"config.toml", "config digest"}),
        (f'"{SUBJECTS[1]}"', "", {"config.toml", "config digest", "config"}),
        ("seed = 0", "seed = 1", {"config.toml", "config digest", "config"}),
    ],
)
def test_another_subject_place_or_setting_is_found(
    run: Path, old: str, new: str, found: set[str]
) -> None:
    path = run / "config.toml"
    whole = path.read_text()
    assert old in whole
    path.write_text(whole.replace(old, new))
    try:
        assert {f.name for f in verify(run) if not f.ok} == found
    finally:
        path.write_text(whole)


def test_a_kept_record_alone_says_that_its_digest_is_not_checked(run: Path, tmp_path: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["requested"]["config"]["train"]["steps"] = 2
    assert manifest["id"] == manifest_id(manifest)
    kept = tmp_path / "kept.json"
    kept.write_bytes(canonical_json(manifest))
    found = {f.name: f for f in verify(kept)}
    assert all(f.ok for f in found.values())
    assert found["config digest"].detail.startswith("not checked")
