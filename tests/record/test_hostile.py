"""Records made to do harm: refused in a sentence, with nothing run, written or read elsewhere."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boldcast.cli import run as boldcast
from boldcast.errors import DataRefused, NotTheSame, UsageRefused
from boldcast.files import canonical_json
from boldcast.record import fields
from boldcast.record.compare import compare
from boldcast.record.export.datalad import commit_message
from boldcast.record.export.in_toto import statement
from boldcast.record.export.ro_crate import write_crate
from boldcast.record.lint import lint
from boldcast.record.manifest import config_digest, load, manifest_id
from boldcast.record.verify import verify

SOURCE = str(Path(__file__).parents[2] / "src")
CHILD = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
MEMORY = 2**30
SECONDS, SECONDS_PER_CASE = 200, 30
Attack = Callable[[Path], Any]


def forged(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and make its digests hold again."""
    manifest = load(run)
    change(manifest)
    manifest["requested"]["config_digest"] = config_digest(manifest["requested"]["config"])
    manifest["id"] = manifest_id(manifest)
    (run / "manifest.json").write_bytes(canonical_json(manifest))


def raw(text: bytes) -> Attack:
    return lambda run: (run / "manifest.json").write_bytes(text)


def manifest_of(run: Path) -> bytes:
    return (run / "manifest.json").read_bytes()


def inserted(text: str) -> Attack:
    """Put raw JSON text in front of the first key of the manifest."""

    def attack(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text("{" + text + "," + path.read_text()[1:])

    return attack


def replaced(name: str, make: Callable[[Path], Any]) -> Attack:
    def attack(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return attack


def sparse(path: Path, size: int = 2**30) -> None:
    with path.open("wb") as stream:
        stream.truncate(size)


def header(path: Path) -> None:
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")


def huge_shape(path: Path) -> None:
    table = b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    path.write_bytes(len(table).to_bytes(8, "little") + table + b"\0" * 8)


def set_config(value: Any) -> Attack:
    return lambda run: forged(run, lambda m: m["requested"]["config"].update(x=value))


REFUSED: dict[str, Attack] = {
    "empty": raw(b""),
    "not text": raw(b"\xff\xfe\x00"),
    "not an object": raw(b"[]\n"),
    "a byte order mark": lambda run: raw(b"\xef\xbb\xbf" + manifest_of(run))(run),
    "deep nesting": raw(b"[" * 200_000 + b"]" * 200_000 + b"\n"),
    "deep objects": raw(b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"\n"),
    "8 MiB of lists": raw(b"[" + b"[]," * 2_790_000 + b"[]]\n"),
    "8 MiB of keys": raw(b"{" + b",".join(b'"%07d":0' % n for n in range(690_000)) + b"}\n"),
    "a number of 4 million digits": inserted('"a":' + "9" * 4_000_000),
    "a float of 4 million digits": inserted('"a":0.' + "9" * 4_000_000),
    "an infinite float": inserted('"a":1e999'),
    "NaN": inserted('"a":NaN'),
    "-Infinity": inserted('"a":-Infinity'),
    "a duplicate key": inserted('"id":"' + "0" * 64 + '"'),
    "a lone surrogate": inserted('"a":"\\ud800"'),
    "an unknown block with an escape sequence": inserted('"\\u001b[2J\\u202e":{}'),
    "a gigabyte": replaced("manifest.json", sparse),
    "a FIFO": replaced("manifest.json", os.mkfifo),
    "a folder": replaced("manifest.json", Path.mkdir),
    "a link": replaced("manifest.json", lambda p: p.symlink_to(p.parents[1] / "outside/secret")),
    "an endless device": replaced("manifest.json", lambda p: p.symlink_to("/dev/zero")),
    **{
        f"an artifact at {name!r}": lambda run, name=name: forged(
            run, lambda m: m["results"]["digests"].update({name: "0" * 64})
        )
        for name in (
            "../outside/secret", "/etc/passwd", "a/../../outside/secret", "..", "./x", ".hidden",
            "a//b", "a\\b", "a\nb", "a\x00b", "\x1b[2J", "",
        )
    },
    "a digest that is none": lambda run: forged(
        run, lambda m: m["results"]["digests"].update({"x": "$(id)"})
    ),
}  # fmt: skip
"""What no command may accept."""

INJECTED = (
    "$(touch owned); `touch owned` | touch owned\n\x1b[2J\x9b31m\u202e'\"{pwd}%s{0.x}<script>"
)


def injected(run: Path) -> None:
    """Put a hostile text into every place that takes any text."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict) and list(value) == ["error"]:
            return {"error": INJECTED}
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()} | {INJECTED: INJECTED}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        return INJECTED if isinstance(value, str) else value

    def change(manifest: dict[str, Any]) -> None:
        for field in fields.FIELDS:
            place = manifest[field.block] if field.block else manifest
            if {"text", "object", "list of text", "list of objects"} & set(field.kinds):
                place[field.name] = spoil(place[field.name])
        manifest["attempts"] = spoil([{"first_step": 0, "last_step": 2}])

    forged(run, change)


ENDURED: dict[str, Attack] = {
    "injection into every text": injected,
    "a slow text for the search of tokens": set_config("-eyJ" * 1_900_000),
    "slow paths": lambda run: forged(run, lambda m: m["software"].update(x="/a" * 3_900_000)),
    "slow times": lambda run: forged(run, lambda m: m["software"].update(x="2026-" * 1_500_000)),
    "many short tokens": lambda run: forged(
        run, lambda m: m["data"].update(notes=["-eyJ" * 3_900] * 500)
    ),
    "a hundred thousand settings": set_config({str(n): n for n in range(100_000)}),
    "a trace that is a FIFO": replaced("trace.jsonl", os.mkfifo),
    "a trace that never ends": replaced("trace.jsonl", lambda p: p.symlink_to("/dev/zero")),
    "a trace without lines": replaced("trace.jsonl", lambda p: sparse(p, 2**26)),
    "a trace that is nested": replaced(
        "trace.jsonl", lambda p: p.write_bytes(b'{"chain":"","step":' + b"[" * 500_000 + b"\n")
    ),
    "a trace elsewhere": replaced(
        "trace.jsonl", lambda p: p.symlink_to(p.parents[1] / "outside/secret")
    ),
    "a config that is nested": replaced(
        "config.toml", lambda p: p.write_bytes(b"a = " + b"[" * 500_000)
    ),
    "a config that is a FIFO": replaced("config.toml", os.mkfifo),
    "weights that are a FIFO": replaced("model.safetensors", os.mkfifo),
    "weights elsewhere": replaced(
        "model.safetensors", lambda p: p.symlink_to(p.parents[1] / "outside/secret")
    ),
    "weights with an endless header": replaced("model.safetensors", header),
    "weights larger than the file": replaced("model.safetensors", huge_shape),
    "events that are a FIFO": lambda run: os.mkfifo(run / "events.jsonl"),
    "events of a gigabyte": lambda run: sparse(run / "events.jsonl"),
    "a checkpoint elsewhere": lambda run: (run / "checkpoints/step_00000009").symlink_to(
        run.parent / "outside"
    ),
    "a nested list of digests": lambda run: (
        run / "checkpoints/step_00000002/digests.json"
    ).write_bytes(b"[" * 500_000),
}
"""What some command may answer about, if only to say what is wrong with it."""


LINKED = ("a link", "an endless device")
"""A link that somebody names is followed; one that lies in a run folder is not."""

HARMLESS = (
    "slow paths", "slow times", "many short tokens",
    "events that are a FIFO", "events of a gigabyte",
)  # fmt: skip
"""Where the digests hold all the same."""


def commands(run: Path, out: Path, other: Path, linked: bool) -> list[list[str]]:
    export = ["manifest", "export", str(run), "--format"]
    by_folder = [
        ["verify", str(run)],
        ["diff", str(run), str(other)],
        [*export, "in-toto", "--out", str(out / "statement.json")],
        [*export, "datalad"],
        [*export, "ro-crate", "--out", str(out / "crate")],
        [*export, "ro-crate", "--out", str(out / "timed"), "--with_times"],
    ]
    by_file = [
        ["verify", str(run / "manifest.json")],
        ["diff", str(other), str(run / "manifest.json"), "--json"],
        ["manifest", "lint", str(run / "manifest.json")],
    ]
    return by_folder if linked else by_folder + by_file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def answers(place: Path, fabricate: Callable[[Path], Path]) -> dict[str, dict[str, Any]]:
    """Attack one run per case and put all commands to each, in one process under limits."""
    other = fabricate(place / "other")
    cases = {}
    for number, (name, attack) in enumerate({**REFUSED, **ENDURED}.items()):
        top = place / str(number)
        run = top / "run"
        shutil.copytree(other, run)
        for folder in ("outside", "out"):
            (top / folder).mkdir()
        (top / "outside/secret").write_text("secret")
        attack(run)
        cases[name] = {
            "commands": commands(run, top / "out", other, name in LINKED),
            "allowed": str(top / "out"),
            "forbidden": str(top / "outside"),
        }
    before = seen(place)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hostile_child.py"))],
        input=json.dumps({"cases": cases, "memory": MEMORY, "seconds": SECONDS}),
        capture_output=True,
        text=True,
        env=CHILD,
        cwd=place,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert seen(place) == before
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    for name, case in cases.items():
        assert len(found[name]["codes"]) == len(case["commands"])
        found[name]["written"] = sorted(p.name for p in Path(case["allowed"]).iterdir())
    return found


def seen(place: Path) -> list[Path]:
    """Return what there is, but what the commands were told to write."""
    return sorted(p for p in place.rglob("*") if "out" not in p.parts)


def check(answer: dict[str, Any], codes: set[int]) -> None:
    said = answer["said"]
    assert set(answer["codes"]) <= codes, (answer["codes"], said[-3000:])
    assert "Traceback" not in said
    assert not set(said) & set("\x1b\x9b\u202e\x07")
    assert answer["cpu_s"] < SECONDS_PER_CASE


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_record_is_refused_by_every_command(answers, name) -> None:
    check(answers[name], {2, 3, 5})
    assert answers[name]["written"] == []
    assert len(answers[name]["said"]) < 20_000


@pytest.mark.parametrize("name", ENDURED)
def test_what_lies_around_a_record_does_no_harm(answers, name) -> None:
    check(answers[name], {0, 2, 3, 5})
    assert answers[name]["codes"][0] == (0 if name in HARMLESS else 5)


def test_injected_texts_reach_every_form_and_stay_texts(answers, place: Path) -> None:
    answer = answers["injection into every text"]
    assert answer["codes"] == [5, 0, 0, 0, 0, 3, 5, 0, 5]
    assert answer["written"] == ["crate", "statement.json"]
    assert not list(place.rglob("owned*"))
    assert "touch owned" in answer["said"]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, blocks: dict[str, Any]) -> dict[str, Any]:
    from boldcast.record.manifest import build

    return build(blocks, {"status": "completed", "steps": 300, "digests": {"x": "a" * 64}})


WRONG = [None, True, -1, 2**53 - 1, 1.5, "", "x", [], [1], [{}], {}, {"error": 1}, {"a": "b"}]


def ask_all(path: Path, other: Path) -> Iterator[str]:
    """Ask every reader of a manifest; only a refusal may come out beside an answer."""
    out = path.parent / "crate"
    readers: list[Callable[[], Any]] = [
        lambda: verify(path),
        lambda: lint(path),
        lambda: compare(path, other),
        lambda: compare(other, path),
        lambda: statement(path),
        lambda: commit_message(path),
        lambda: write_crate(path, out),
    ]
    for reader in readers:
        try:
            reader()
            yield "answered"
        except (UsageRefused, DataRefused, NotTheSame):
            yield "refused"


def ask(manifest: Any) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "a/manifest.json", Path(folder) / "other.json"
        path.parent.mkdir()
        path.write_bytes(canonical_json(manifest))
        other.write_bytes(canonical_json(ORIGINAL[0]))
        found = list(ask_all(path, other))
        present = {p.name for p in path.parent.iterdir()}
        assert present <= {"manifest.json", "crate"}
        return found


ORIGINAL: list[Any] = []


@pytest.fixture(autouse=True)
def _original(sealed) -> None:
    ORIGINAL[:] = [sealed]


@pytest.mark.parametrize("field", fields.FIELDS, ids=lambda field: field.path)
def test_a_wrong_type_in_any_field_is_refused_or_harmless(sealed, field) -> None:
    for value in WRONG:
        manifest = copy.deepcopy(sealed)
        place = manifest[field.block] if field.block else manifest
        place[field.name] = value
        if field.path != "id":
            manifest["id"] = manifest_id(manifest)
        found = ask(manifest)
        if fields.problems(manifest):
            assert found[2:] == ["refused"] * 5, (field.path, value)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
PLACES = [field for field in fields.FIELDS if field.path not in ("schema", "id")]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PLACES), JSON, st.booleans())
def test_any_value_anywhere_is_refused_or_harmless(field, value, inner) -> None:
    manifest = copy.deepcopy(ORIGINAL[0])
    place = manifest[field.block] if field.block else manifest
    if inner and isinstance(place[field.name], dict):
        place[field.name]["new"] = value
    else:
        place[field.name] = value
    manifest["id"] = manifest_id(manifest)
    ask(manifest)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_changed_bytes_are_refused_or_harmless(data) -> None:
    whole = bytearray(canonical_json(ORIGINAL[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(whole) - 1))
        end = data.draw(st.integers(start, min(len(whole), start + 30)))
        whole[start:end] = data.draw(st.binary(max_size=8))
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "manifest.json", Path(folder) / "other.json"
        path.write_bytes(whole)
        other.write_bytes(canonical_json(ORIGINAL[0]))
        list(ask_all(path, other))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200) | JSON.map(lambda v: canonical_json(v)))
def test_any_trace_is_refused_or_harmless(text) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "manifest.json").write_bytes(canonical_json(ORIGINAL[0]))
            (Path(folder) / name / "trace.jsonl").write_bytes(text)
        list(ask_all(Path(folder) / "a", Path(folder) / "b"))


def test_a_name_too_long_for_any_file_is_refused(capsys) -> None:
    long = "x" * 5000
    for words in (["verify", long], ["diff", long, long], ["manifest", "lint", long]):
        assert boldcast(words) == 3
    assert boldcast(["manifest", "export", long]) == 3
    assert "Traceback" not in capsys.readouterr().err
