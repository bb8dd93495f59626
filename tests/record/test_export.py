"""Exports, read back by the rules of the formats they claim to be."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from boldcast.cli import run as boldcast
from boldcast.errors import DataRefused, UsageRefused
from boldcast.record.events import EventLog
from boldcast.record.export.datalad import commit_message
from boldcast.record.export.in_toto import statement
from boldcast.record.export.ro_crate import write_crate
from boldcast.record.manifest import load, open_manifest, seal


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# RO-Crate 1.1 and Process Run Crate 0.5, as their specifications put it.


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def graph_of(crate: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((crate / "ro-crate-metadata.json").read_text())
    assert document["@context"] == [
        "https://w3id.org/ro/crate/1.1/context",
        "https://w3id.org/ro/terms/workflow-run/context",
    ]
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(entities) == len(document["@graph"])
    return entities


def check_crate(crate: Path) -> dict[str, dict[str, Any]]:
    """Check what RO-Crate 1.1 requires of the descriptor, the root and every data entity."""
    graph = graph_of(crate)
    descriptor, root = graph["ro-crate-metadata.json"], graph["./"]
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert descriptor["about"] == {"@id": "./"}
    assert root["@type"] == "Dataset"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", root["datePublished"])
    assert {"name", "description", "license"} <= set(root)
    parts = {reference["@id"] for reference in each(root["hasPart"])}
    files = {identifier for identifier, entity in graph.items() if entity["@type"] == "File"}
    assert parts == files
    present = {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}
    assert {unquote(part) for part in parts} == present - {"ro-crate-metadata.json"}
    for identifier in files:
        entity, file = graph[identifier], crate / unquote(identifier)
        assert entity["sha256"] == sha256(file)
        assert entity["contentSize"] == str(file.stat().st_size)
    terms = "https://w3id.org/ro/terms/workflow-run#"
    known = {"https://w3id.org/ro/crate/1.1", f"{terms}DockerImage", f"{terms}SIFImage", *graph}
    for entity in graph.values():
        assert set(references(entity)) <= known
    return graph


def test_a_run_becomes_a_process_run_crate(run: Path, tmp_path: Path) -> None:
    graph = check_crate(write_crate(run, tmp_path / "crate").parent)
    manifest = load(run)
    (profile,) = [e for e in each(graph["./"]["conformsTo"])]
    assert profile["@id"] == "https://w3id.org/ro/wfrun/process/0.5"
    assert graph[profile["@id"]]["@type"] == "CreativeWork"
    (action,) = [e for e in graph.values() if e["@type"] == "CreateAction"]
    assert graph["./"]["mentions"] == {"@id": action["@id"]}
    tool = graph[action["instrument"]["@id"]]
    assert (tool["@type"], tool["name"]) == ("SoftwareApplication", "boldcast")
    assert "agent" not in action
    assert not {"startTime", "endTime"} & set(action)
    assert action["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert {o["@id"] for o in each(action["object"])} == {
        "config.toml",
        f"#scan-{hashlib.sha256(b'scan').hexdigest()[:16]}",
    }
    made = {graph[o["@id"]]["name"] for o in each(action["result"])}
    assert {"boldcast manifest", "model.safetensors", "trace.jsonl"} <= made
    assert "checkpoints/step_00000002/model.safetensors (not here)" in made
    assert action["identifier"] == f"sha256:{manifest['id']}"
    copied = tmp_path / "crate/manifest.json"
    assert copied.read_bytes() == (run / "manifest.json").read_bytes()


def test_times_only_when_asked(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="events.jsonl"):
        write_crate(run, tmp_path / "none", with_times=True)
    assert not (tmp_path / "none").exists()
    log = EventLog(run / "events.jsonl")
    log.write("started")
    log.write("completed")
    times = [json.loads(line)["time"] for line in (run / "events.jsonl").read_text().splitlines()]
    (action,) = [
        e
        for e in check_crate(write_crate(run, tmp_path / "crate", with_times=True).parent).values()
        if e["@type"] == "CreateAction"
    ]
    assert [action["startTime"], action["endTime"]] == times


def test_a_failed_run_says_why_and_a_date_can_be_given(
    run: Path, tmp_path: Path, blocks: Any, monkeypatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    seal(run, blocks, {"status": "diverged", "steps": 2, "first_cause": "step 2: NaN"}, [])
    graph = check_crate(write_crate(run, tmp_path / "crate").parent)
    (action,) = [e for e in graph.values() if e["@type"] == "CreateAction"]
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert action["error"] == "step 2: NaN"
    assert graph["./"]["datePublished"] == "1970-01-02"


def test_a_manifest_alone_becomes_a_crate_that_names_the_rest(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes((run / "manifest.json").read_bytes())
    graph = check_crate(write_crate(kept, tmp_path / "crate").parent)
    assert [e["@id"] for e in graph.values() if e["@type"] == "File"] == ["manifest.json"]
    names = {e.get("name") for e in graph.values()}
    assert "model.safetensors (not here)" in names


def test_an_image_is_named_by_its_digest(run: Path, tmp_path: Path, blocks: Any) -> None:
    own = copy.deepcopy(blocks)
    own["image"] = {**own["image"], "kind": "docker", "oci_digest": "sha256:" + "e" * 64}
    seal(run, own, {"status": "completed", "steps": 2}, [])
    graph = check_crate(write_crate(run, tmp_path / "crate").parent)
    (action,) = [e for e in graph.values() if e["@type"] == "CreateAction"]
    assert graph[action["containerImage"]["@id"]]["sha256"] == "e" * 64
    names = [d["name"] for d in dependencies(statement(run))]
    assert "OCI image" in names


def test_a_changed_file_and_an_existing_folder_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageRefused, match="must be a new folder"):
        write_crate(run, tmp_path / "there")
    with pytest.raises(UsageRefused, match="can be made"):
        write_crate(run, run / "config.toml" / "crate")
    (run / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DataRefused, match="must have its recorded digest"):
        write_crate(run, tmp_path / "crate")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "there"]


# in-toto attestation framework, Statement v1; SLSA Provenance v1.


def dependencies(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["predicate"]["buildDefinition"]["resolvedDependencies"]


def test_a_run_becomes_an_in_toto_statement(run: Path) -> None:
    document = statement(run)
    assert document == json.loads(json.dumps(document))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert set(document) == {"_type", "subject", "predicateType", "predicate"}
    named = {subject["name"]: subject["digest"] for subject in document["subject"]}
    assert len(named) == len(document["subject"])
    assert set(named) == {"manifest.json", *load(run)["results"]["digests"]}
    assert {"model.safetensors", "checkpoints/step_00000002/digests.json"} < set(named)
    for name, digest in named.items():
        assert digest == {"sha256": sha256(run / name)}
    predicate = document["predicate"]
    assert set(predicate) == {"buildDefinition", "runDetails"}
    assert re.match(r"[a-z]+:", predicate["buildDefinition"]["buildType"])
    assert re.match(r"[a-z]+:", predicate["runDetails"]["builder"]["id"])
    assert predicate["buildDefinition"]["externalParameters"]["config"]["seed"] == 3
    for dependency in dependencies(document):
        assert {"uri", "digest"} & set(dependency)
        for algorithm, digest in dependency.get("digest", {}).items():
            assert re.fullmatch(
                {"sha256": "[0-9a-f]{64}", "gitCommit": "[0-9a-f]{40}"}[algorithm], digest
            )
    scan = hashlib.sha256(b"scan").hexdigest()
    assert {"name": "scan file 0", "digest": {"sha256": scan}} in dependencies(document)
    uris = [d["uri"] for d in dependencies(document) if "uri" in d]
    assert any(re.fullmatch(r"pkg:pypi/numpy@[\w.]+", uri) for uri in uris)


def test_a_statement_from_a_kept_manifest_is_the_same(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes((run / "manifest.json").read_bytes())
    assert statement(kept) == statement(run)


# DataLad's own reading of a run record.


def read_record(message: str) -> tuple[str, dict[str, Any]]:
    found = re.match(
        r"\[DATALAD RUNCMD\] (.*)\n\n=== Do not change lines below ===\n(.*)\n"
        r"\^\^\^ Do not change lines above \^\^\^\n\Z",
        message,
        re.DOTALL,
    )
    assert found
    return found[1], json.loads(found[2])


@pytest.fixture
def ended(run: Path, blocks: Any) -> Any:
    """Seal the run with another command line; return its DataLad record."""

    def ended(*argv: str, **results: Any) -> dict[str, Any]:
        own = copy.deepcopy(blocks)
        own["requested"]["argv"] = list(argv)
        seal(run, own, {"status": "completed", "steps": 2, **results}, [])
        return read_record(commit_message(run))[1]

    return ended


def test_a_run_becomes_a_datalad_run_record(run: Path, ended) -> None:
    record = ended("train", "run/tiny.toml", "--run_dir", "runs/t", "--seed", "3")
    subject, _ = read_record(commit_message(run))
    assert subject == "boldcast train run/tiny.toml --run_dir runs/t --seed 3"
    assert record["cmd"] == subject
    assert record["inputs"] == ["run/tiny.toml"]
    assert "runs/t/model.safetensors" in record["outputs"]
    assert "runs/t/manifest.json" in record["outputs"]
    assert (record["pwd"], record["exit"], record["chain"]) == (".", 0, [])
    assert None not in record.values()  # DataLad's rerun takes no null


def test_the_folder_of_outputs(ended) -> None:
    assert all(o.startswith("r 1/") for o in ended("train", "--run_dir=./r 1/")["outputs"])
    default = ended("train")["outputs"]
    assert all(re.match(r"runs/fabricated-[0-9a-f]{8}/", o) for o in default)
    assert ended("train", "--run_dir", "/elsewhere")["outputs"] == []
    assert ended("train", "--run_dir", "../up")["outputs"] == []


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("diverged", 7), ("stopped", 75)]
)
def test_the_exit_code(ended, status: str, code: int) -> None:
    assert ended("train", status=status)["exit"] == code


def test_a_run_that_goes_on_is_refused(run: Path, blocks: Any) -> None:
    open_manifest(run, blocks)
    with pytest.raises(DataRefused, match="when the run is over"):
        commit_message(run)


def test_words_of_the_command_line_reach_no_shell_and_no_placeholder(run: Path, ended) -> None:
    evil = ["train", "x; touch p", "$(id)", "`id`", "{inputs}", "a'b", "\n=== x", "{pwd}.toml"]
    record = ended(*evil)
    words = shlex.split(record["cmd"].format())  # DataLad formats, then a shell splits
    assert words == ["boldcast", *evil]
    assert [i.format() for i in ended("train", "{pwd}.toml")["inputs"]] == ["{pwd}.toml"]
    assert read_record(commit_message(run))[1]["cmd"].startswith("boldcast train ")


def test_the_command(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert boldcast(["manifest", "export", str(run)]) == 0
    assert json.loads(capsys.readouterr().out) == statement(run)
    assert boldcast(["manifest", "export", str(run), "--format", "datalad"]) == 0
    assert capsys.readouterr().out == commit_message(run)
    assert boldcast(["manifest", "export", str(run), "--format", "in-toto", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == statement(run)
    assert capsys.readouterr().out == f"{out}\n"
    crate = tmp_path / "crate"
    words = ["manifest", "export", str(run), "--format", "ro-crate"]
    assert boldcast([*words, "--out", str(crate)]) == 0
    check_crate(crate)
    assert boldcast(words) == 2
    assert boldcast(["manifest", "export", str(run), "--format", "xml"]) == 2
    assert boldcast(["manifest", "export", str(run), "--with_times"]) == 2
    assert boldcast(["manifest", "export", str(run), "--out", str(tmp_path)]) == 2
    assert boldcast(["manifest", "export", str(tmp_path / "none")]) == 3
    assert "Traceback" not in capsys.readouterr().err
