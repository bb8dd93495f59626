from __future__ import annotations

import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boldcast.config.resolve import digest
from boldcast.config.schema import Config
from boldcast.errors import DataRefused
from boldcast.files import canonical_json
from boldcast.record import fields
from boldcast.record.manifest import build, config_digest, load, open_manifest, seal
from boldcast.record.trace import trace_digest

MANIFESTS = Path(__file__).parents[2] / "manifests"


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MANIFESTS / "schema.json").read_text())
    return loaded


def test_a_sealed_manifest_validates_against_the_published_schema(run: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    manifest = json.loads((run / "manifest.json").read_bytes())
    jsonschema.Draft202012Validator(schema()).validate(manifest)
    assert load(run) == load(run / "manifest.json") == manifest


def test_the_id_is_the_digest_of_everything_else(run: Path) -> None:
    raw = (run / "manifest.json").read_bytes()
    recorded = json.loads(raw)["id"]
    rest = raw.replace(f'"id":"{recorded}",'.encode(), b"")
    assert len(rest) == len(raw) - 72
    assert hashlib.sha256(rest).hexdigest() == recorded


def test_sealing_digests_every_artifact_and_no_volatile_file(run: Path, blocks: Any) -> None:
    for volatile in ("events.jsonl", "stop", "x.part", ".hidden", "tensorboard/e", "logs/r0.txt"):
        (run / volatile).parent.mkdir(exist_ok=True)
        (run / volatile).write_text("x")
    seal(run, blocks, {"status": "completed", "steps": 2}, [])
    results = load(run)["results"]
    assert sorted(results["digests"]) == [
        "checkpoints/step_00000002/digests.json",
        "checkpoints/step_00000002/model.safetensors",
        "checkpoints/step_00000002/optimizer.safetensors",
        "config.toml",
        "evaluation.json",
        "model.safetensors",
        "trace.jsonl",
    ]
    expected = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    assert results["digests"]["model.safetensors"] == expected
    assert results["trace"] == trace_digest(run / "trace.jsonl")


def test_two_seals_of_equal_runs_have_one_id(make_run: Callable[[], Path], tmp_path: Path) -> None:
    first = load(make_run())["id"]
    (tmp_path / "run").rename(tmp_path / "first")
    assert load(make_run())["id"] == first


def test_an_opened_run_says_open_and_leaves_no_part(tmp_path: Path, blocks: Any) -> None:
    assert open_manifest(tmp_path, blocks) == tmp_path / "manifest.json"
    assert load(tmp_path)["results"]["status"] == "open"
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_no_field_is_ever_missing(tmp_path: Path) -> None:
    manifest = build({"requested": {"argv": [], "config": {}, "config_digest": "0" * 64}},
                     {"status": "failed", "digests": {}})  # fmt: skip
    assert manifest["code"]["commit"] == {"error": "not recorded"}
    assert all(f.name in (manifest[f.block] if f.block else manifest) for f in fields.FIELDS)


def test_numbers_that_json_cannot_hold_survive_as_error_or_text(blocks: Any) -> None:
    results = {"status": "failed", "digests": {}, "scores": {"r": float("nan"), "n": 2**60}}
    scores = build(blocks, results)["results"]["scores"]
    assert scores == {"r": {"error": "not finite: nan"}, "n": str(2**60)}


def test_unknown_blocks_and_wrong_kinds_are_a_programmers_error(blocks: Any) -> None:
    with pytest.raises(ValueError, match="paralel"):
        build({**blocks, "paralel": {}}, {"status": "open", "digests": {}})
    with pytest.raises(ValueError, match="`results.status` must be status, but is 'done'"):
        build(blocks, {"status": "done", "digests": {}})


def test_the_config_digest_is_the_configurations_own(blocks: Any) -> None:
    assert config_digest(blocks["requested"]["config"]) == digest(Config(name="fabricated", seed=3))


def test_a_real_manifest_names_neither_host_nor_home_nor_checkout(blocks: Any) -> None:
    argv = ["/opt/somewhere/bin/boldcast", "train", os.path.expanduser("~/x.toml")]
    requested = {**blocks["requested"], "argv": argv}
    cause = "FileNotFoundError: /opt/somewhere/tests/test_manifest.py"
    manifest = build({**blocks, "requested": requested},
                     {"status": "failed", "digests": {}, "first_cause": cause})  # fmt: skip
    text = canonical_json(manifest).decode()
    assert manifest["requested"]["argv"] == ["boldcast", "train", "<path>/x.toml"]
    assert str(Path(__file__).parents[2]) not in text
    assert f'"{socket.gethostname()}"' not in text
    assert "/somewhere/" not in text
    assert manifest["results"]["first_cause"].endswith("<path>/test_manifest.py")


def test_schema_and_table_on_disk_agree_with_the_fields() -> None:
    assert schema() == fields.json_schema()
    assert (MANIFESTS / "README.md").read_text().endswith("\n\n" + fields.table())


def test_everything_of_the_record_works_without_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, boldcast.record as r\n"
        "for m in pkgutil.iter_modules(r.__path__):\n"
        "    importlib.import_module('boldcast.record.' + m.name)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


HOSTILE = {
    "empty": b"",
    "no JSON": b"\xff\xfe",
    "array": b"[]\n",
    "NaN": b'{"a":NaN}\n',
    "Infinity": b'{"a":-Infinity}\n',
    "overflow": b'{"a":1e400}\n',
    "long integer": b'{"a":' + b"9" * 5000 + b"}\n",
    "54 bits": b'{"a":9007199254740993}\n',
    "duplicate": b'{"a":1,"a":1}\n',
    "deep": b"[" * 200_000 + b"]" * 200_000,
    "33 deep": b"[" * 33 + b"1" + b"]" * 33 + b"\n",
    "surrogate": b'{"a":"\\ud800"}\n',
    "spaces": b'{ "a":1}\n',
    "no line end": b'{"a":1}',
    "large": b'"' + b"x" * (8 * 2**20) + b'"\n',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(raw)
    with pytest.raises(DataRefused, match="`manifest.json` must"):
        load(tmp_path)


def test_a_pipe_a_folder_and_a_link_are_refused(tmp_path: Path, run: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataRefused, match="regular file"):
        load(tmp_path / "pipe")
    (run / "manifest.json").rename(tmp_path / "kept.json")
    (run / "manifest.json").symlink_to(tmp_path / "kept.json")
    with pytest.raises(DataRefused, match="symbolic link"):
        load(run)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a//b", "a\\b", "", ".", "a/.ssh", "a\nb", "x\n"]
)
def test_artifact_paths_that_lead_elsewhere_are_refused(run: Path, path: str) -> None:
    manifest = load(run)
    manifest["results"]["digests"] = {path: "0" * 64}
    (run / "manifest.json").write_bytes(canonical_json(manifest))
    with pytest.raises(DataRefused, match="results.digests"):
        load(run)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else []
    return [at, *(found for key, item in items for found in places(item, (*at, key)))]


@settings(max_examples=60, deadline=None)
@given(
    choice=st.integers(0, 10**6),
    new=st.sampled_from([None, True, -1, 1.5, "x", "$(touch /tmp/x)", [], [1], {}, {"error": 1}]),
    drop=st.booleans(),
)
def test_what_load_accepts_the_schema_accepts(
    blocks: dict[str, Any], choice: int, new: Any, drop: bool
) -> None:
    manifest = copy.deepcopy(build(blocks, {"status": "open", "digests": {}}))
    where = [p for p in places(manifest) if 0 < len(p) <= 2]
    *above, last = where[choice % len(where)]
    inner = manifest
    for key in above:
        inner = inner[key]
    if drop:
        del inner[last]
    else:
        inner[last] = new
    valid = jsonschema.Draft202012Validator(schema()).is_valid(manifest)
    assert (fields.problems(manifest) == []) == valid
