"""Each rule of `lint` is broken once, alone, in a record that keeps all others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boldcast.cli import run as boldcast
from boldcast.errors import DataRefused
from boldcast.files import canonical_json
from boldcast.record.lint import RULES, lint
from boldcast.record.manifest import build, config_digest, manifest_id


@pytest.fixture(scope="module")
def good(blocks: dict[str, Any]) -> dict[str, Any]:
    own = copy.deepcopy(blocks)
    steps = own["requested"]["config"]["train"]["steps"]
    own["numerics"]["flags"] = {"threads": 1, "deterministic_algorithms": True}
    own["numerics"]["environment"] = {"OMP_NUM_THREADS": {"state": "set", "value": "1"}}
    own["parallel"] |= {
        "global_batch_size": 16,
        "micro_batch_size": 4,
        "grad_accum_steps": [{"rank": 0, "steps": 4}],
    }
    results = {
        "status": "completed",
        "steps": steps,
        "digests": dict.fromkeys(("trace.jsonl", "config.toml", "model.safetensors"), "a" * 64),
        "trace": "b" * 64,
        "weights": "c" * 64,
        "first_cause": None,
    }
    attempts = [
        {"first_step": 0, "last_step": 40, "world_size": 2, "end": "killed"},
        {"first_step": 30, "last_step": steps, "world_size": 1, "end": "completed"},
    ]
    return build(own, results, attempts)


def rewritten(manifest: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> bytes:
    other = copy.deepcopy(manifest)
    change(other)
    other["requested"]["config_digest"] = config_digest(other["requested"]["config"])
    other["id"] = manifest_id(other)
    return canonical_json(other)


@pytest.fixture
def check(good, tmp_path: Path) -> Callable[..., list[str]]:
    def check(change: Callable[[dict[str, Any]], Any] = lambda m: None) -> list[str]:
        path = tmp_path / "manifest.json"
        path.write_bytes(rewritten(good, change))
        return [finding.name for finding in lint(path) if not finding.ok]

    return check


def test_a_record_that_keeps_every_rule(check) -> None:
    assert check() == []


BREAKS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("digests", lambda m: m["results"].update(weights="xyz")),
    ("digests", lambda m: m["data"]["files"][0].update(sha256="A" * 64)),
    ("digests", lambda m: m["code"].update(commit="main", dirty=True)),
    ("changes", lambda m: m["code"].update(dirty=False, diff_digest="0" * 64)),
    ("attempts", lambda m: m["attempts"][0].update(first_step=50)),
    ("attempts", lambda m: m["attempts"][1].update(first_step=41)),
    ("attempts", lambda m: m["attempts"][0].pop("last_step")),
    ("attempts", lambda m: m["attempts"][0].update(world_size=0)),
    ("steps", lambda m: (m["results"].update(steps=9), m["attempts"].clear())),
    ("steps", lambda m: m["attempts"].pop()),
    ("results", lambda m: m["results"]["digests"].pop("trace.jsonl")),
    ("results", lambda m: m["results"].update(first_cause="it broke")),
    ("results", lambda m: m["results"].update(trace={"error": "lost"})),
    ("results", lambda m: m["results"].update(status="open")),
    ("level", lambda m: m["numerics"]["flags"].update(deterministic_algorithms=False)),
    ("level", lambda m: m["numerics"]["flags"].update(cudnn_benchmark=True)),
    ("level", lambda m: m["numerics"]["flags"].update(threads=4)),
    ("level", lambda m: m["numerics"]["flags"].update(cudnn_allow_tf32=True)),
    ("level", lambda m: m["numerics"].update(level="fast")),
    ("batch arithmetic", lambda m: m["parallel"].update(micro_batch_size=5)),
    ("batch arithmetic", lambda m: m["parallel"].update(micro_batch_size=0)),
    ("batch arithmetic", lambda m: m["parallel"].update(global_batch_size=8)),
    ("batch arithmetic", lambda m: m["parallel"]["grad_accum_steps"][0].update(steps=3)),
    ("batch arithmetic", lambda m: m["parallel"].update(world_size=2)),
    ("seeds", lambda m: m["seeds"].update(seed=4)),
    ("no times", lambda m: m["software"].update(built="2026-03-04T10:00:00Z")),
    ("no times", lambda m: m["software"].update(start_time=7)),
    ("no hosts or users", lambda m: m["hardware"]["nodes"][0].update(hostname="n1")),
    ("no secrets", lambda m: m["software"].update(api_key="x")),
    ("no secrets", lambda m: m["requested"].update(argv=["train", "hf_" + "a" * 20])),
    ("no absolute paths", lambda m: m["software"].update(place="/home/someone/x")),
    ("no absolute paths", lambda m: m["requested"].update(argv=["train", "/home/x/y.toml"])),
    (
        "no absolute paths",
        lambda m: m["requested"]["config"]["data"].update(source="/home/x/scans.tsv"),
    ),
    (
        "no absolute paths",
        lambda m: m["requested"]["config"]["model"].update(coordinates="/my data/xyz.tsv"),
    ),
    ("no board identifiers", lambda m: m["software"].update(b="GPU-0123abcd-0123-0123")),
    ("plain texts", lambda m: m["software"].update(b="\x1b[2J")),
    ("plain texts", lambda m: m["software"].update(b="x" * (2**14 + 1))),
    ("plain texts", lambda m: m["software"].update({"\x07": "b"})),
]


@pytest.mark.parametrize(("rule", "change"), BREAKS)
def test_a_broken_rule_is_named_and_no_other(check, rule, change) -> None:
    assert check(change) == [rule]


def test_every_rule_is_broken_somewhere() -> None:
    names = {rule for rule, _ in BREAKS} | {"id", "configuration digest"}
    assert names == {rule.name for rule in RULES}


def test_changed_digests_are_found(good, tmp_path: Path) -> None:
    for change, name in [
        (lambda m: m["requested"].update(config_digest="0" * 64), "configuration digest"),
        (lambda m: m["software"].update(libc="other"), "id"),
    ]:
        other = copy.deepcopy(good)
        change(other)
        if name != "id":
            other["id"] = manifest_id(other)
        (tmp_path / "m.json").write_bytes(canonical_json(other))
        assert [f.name for f in lint(tmp_path / "m.json") if not f.ok] == [name]


def test_the_form_comes_first(good, tmp_path: Path) -> None:
    other = copy.deepcopy(good)
    del other["results"]["status"]
    other["results"]["digests"]["../../etc/passwd"] = "0" * 64
    (tmp_path / "m.json").write_bytes(canonical_json(other))
    (finding,) = lint(tmp_path / "m.json")
    assert (finding.name, finding.ok) == ("schema", False)
    assert "`results.status` must be there, but is missing" in finding.detail
    assert "`results.digests` must be digest by path" in finding.detail


def test_a_failed_run_need_not_have_reached_its_steps(check) -> None:
    def fail(m: dict[str, Any]) -> None:
        m["results"].update(status="failed", steps=40, first_cause="a board was lost")
        m["attempts"].pop()

    assert check(fail) == []


def test_the_command(good, tmp_path: Path, capsys) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(canonical_json(good))
    assert boldcast(["manifest", "lint", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "name", "detail"]
    assert len(lines) == len(RULES) + 2
    assert all(line.startswith("ok ") for line in lines)
    path.write_bytes(rewritten(good, lambda m: m["seeds"].update(seed=4)))
    assert boldcast(["manifest", "lint", str(path), "--json"]) == 5
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [f["name"] for f in document["findings"] if not f["ok"]] == ["seeds"]
    path.write_bytes(b"{}")
    assert boldcast(["manifest", "lint", str(path)]) == 3
    with pytest.raises(DataRefused, match="canonical JSON"):
        lint(path)
