"""Where two runs part and how far apart they are, on run folders made by hand."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from boldcast.cli import run as boldcast
from boldcast.errors import DataRefused
from boldcast.files import canonical_json
from boldcast.record.compare import compare
from boldcast.record.manifest import open_manifest, seal
from boldcast.record.trace import TraceWriter
from boldcast.record.weights import distance

CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
W = {
    "a.weight": np.float32([[1.0, -2.0], [3.0, 0.5]]),
    "b.bias": np.float32([0.0, 1e-3]),
    "step": np.int64([7]),
}
Lines = list[tuple[float, float, float, dict[str, Any] | None]]


def lines(n: int = 5) -> Lines:
    return [(1 / step, 0.3, 1e-3, None) for step in range(1, n + 1)]


@pytest.fixture
def make(tmp_path: Path, blocks: dict[str, Any]) -> Callable[..., Path]:
    def make(
        name: str,
        trace: Lines | None = None,
        weights: Mapping[str, Any] = W,
        checkpoints: Mapping[int, Mapping[str, Any]] | None = None,
        change: Callable[[dict[str, Any]], None] = lambda blocks: None,
        status: str = "completed",
    ) -> Path:
        run = tmp_path / name
        run.mkdir()
        trace = lines() if trace is None else trace
        with TraceWriter(run / "trace.jsonl") as writer:
            for step, (loss, norm, lr, extra) in enumerate(trace, start=1):
                writer.append(step, loss, norm, lr, extra)
        save_file(dict(weights), run / "model.safetensors")
        for step, tensors in (checkpoints or {}).items():
            folder = run / f"checkpoints/step_{step:08d}"
            folder.mkdir(parents=True)
            save_file(dict(tensors), folder / "model.safetensors")
        own = copy.deepcopy(blocks)
        change(own)
        if status == "open":
            open_manifest(run, own)
        else:
            seal(run, own, {"status": status, "steps": len(trace)}, [])
        return run

    return make


def test_two_equal_runs_are_the_same(make) -> None:
    found = compare(make("a"), make("b"))
    assert found.same
    assert found.verdict == "the same run: 5 steps, every digest equal"
    assert (found.parting, found.tensor, found.weights, found.causes) == (None, None, None, ())
    assert found.notes == ()


@pytest.mark.parametrize(
    ("place", "quantity", "relative"),
    [(0, "loss", 0.5), (1, "grad_norm", 0.5), (2, "lr", 0.5)],
)
def test_the_first_differing_step_and_quantity_are_named(make, place, quantity, relative) -> None:
    other = [list(line) for line in lines()]
    other[2][place] /= 2
    other[3][0] = 9.0
    found = compare(make("a"), make("b", [tuple(line) for line in other]))
    assert not found.same
    assert found.verdict == f"parted at step 3: first quantity {quantity}"
    assert (found.parting.step, found.parting.quantity) == (3, quantity)
    assert found.parting.relative == relative
    assert float.fromhex(found.parting.a) == 2 * float.fromhex(found.parting.b)


def test_a_float32_loss_is_counted_in_float32_ulp(make) -> None:
    other = lines()
    three_on = np.float32(0.5)
    for _ in range(3):
        three_on = np.nextafter(three_on, np.float32(1))
    other[1] = (float(three_on), *other[1][1:])
    found = compare(make("a"), make("b", other)).parting
    assert found.ulp == 3
    assert math.isclose(found.relative, 3 * 2**-23, rel_tol=1e-5)


def test_loss_and_gradient_agree_and_weights_part(make) -> None:
    def traced(weights: str) -> Lines:
        return [(1.0, 0.5, 1e-3, {"weights": "00ff"}), (0.9, 0.4, 1e-3, {"weights": weights})]

    found = compare(make("a", traced("aa11")), make("b", traced("bb22"))).parting
    assert (found.step, found.quantity, found.a, found.b) == (2, "weights", "aa11", "bb22")
    assert (found.relative, found.ulp) == (None, None)
    assert "optimizer" in found.hint


def test_the_first_tensor_comes_from_the_next_line_that_digests_them(make) -> None:
    def traced(loss: float, digests: dict[str, str]) -> Lines:
        return [
            (1.0, 0.5, 1e-3, None),
            (loss, 0.5, 1e-3, None),
            (0.8, 0.5, 1e-3, {"tensors": digests}),
        ]

    a = make("a", traced(0.9, {"x": "1", "y": "2", "z": "3"}))
    b = make("b", traced(0.7, {"x": "1", "y": "5", "z": "6"}))
    found = compare(a, b)
    assert (found.parting.step, found.tensor.step) == (2, 3)
    assert (found.tensor.name, found.tensor.n_differ, found.tensor.n_tensors) == ("y", 2, 3)


def test_a_tensor_is_the_verdict_where_its_step_digests_them(make) -> None:
    a = make("a", [(1.0, 0.5, 1e-3, {"tensors": {"x": "1", "y": "2"}})])
    b = make("b", [(1.0, 0.5, 1e-3, {"tensors": {"x": "1", "y": "3"}})])
    assert compare(a, b).verdict == "parted at step 1: first tensor y"


def test_what_only_one_trace_records_is_no_difference(make) -> None:
    more = [(*line[:3], {"weights": "aa"}) for line in lines()]
    found = compare(make("a"), make("b", more))
    assert found.parting is None
    assert found.same


def test_a_run_that_ended_earlier_is_not_the_same(make) -> None:
    found = compare(make("a", lines(3), status="stopped"), make("b"))
    assert not found.same
    assert found.verdict == "the same up to step 3, where A ends; the other has 5"
    assert found.steps == (3, 5)


def test_weights_are_compared_at_the_first_checkpoint_that_differs(make) -> None:
    nudged = {**W, "b.bias": np.nextafter(W["b.bias"], np.float32(1))}
    a = make("a", checkpoints={2: W, 4: W})
    b = make("b", checkpoints={2: W, 4: nudged, 5: W})
    found = compare(a, b)
    assert found.weights.place == "checkpoints/step_00000004/model.safetensors"
    (tensor,) = found.weights.tensors
    assert (tensor.name, tensor.n_differ, tensor.n_elements) == ("b.bias", 2, 2)
    assert tensor.max_ulp == 1
    assert tensor.max_relative == 1.0  # from zero to the smallest number
    assert found.verdict == f"parted: the weights differ in {found.weights.place}"


def test_equal_traces_with_other_final_weights_are_not_the_same(make) -> None:
    found = compare(make("a"), make("b", weights={**W, "step": np.int64([8])}))
    assert not found.same
    assert found.weights.place == "model.safetensors"
    assert found.weights.tensors[0].max_ulp is None


def test_other_shapes_and_names_are_said(make) -> None:
    other = {"a.weight": np.float32([1.0]), "c": np.float32([1.0]), "step": W["step"]}
    tensors = compare(make("a"), make("b", weights=other)).weights.tensors
    assert {t.name: t.note for t in tensors} == {
        "a.weight": "F32[2, 2] against F32[1]",
        "b.bias": "only in A",
        "c": "only in B",
    }


def test_ulp_of_known_distances() -> None:
    one = np.float32(1.0)
    cases = [
        (one, np.float32(1 + 2**-23), 1),
        (one, np.float32(1 - 2**-24), 1),
        (np.float32(0.0), np.float32(-0.0), 1),
        (np.float32(1.0), np.float32(2.0), 2**23),
        (np.float64(1.0), np.float64(1 + 5 * 2**-52), 5),
        (np.float16(1.0), np.float16(1 + 2**-10), 1),
        (np.float32(-1.4e-45), np.float32(1.4e-45), 3),
    ]
    for a, b, ulp in cases:
        found = distance("x", np.array([a]), np.array([b]))
        assert (found.max_ulp, found.n_differ) == (ulp, 1), (a, b)


def test_extremes_neither_overflow_nor_hide() -> None:
    big = np.finfo(np.float64).max
    found = distance("x", np.array([big, 1.0]), np.array([-big, 1.0]))
    assert (found.n_differ, found.max_relative) == (1, 2.0)
    found = distance("x", np.float32([np.nan, np.inf, 1]), np.float32([np.nan, 5, 1.5]))
    assert (found.n_differ, found.note) == (2, "1 of them not finite")
    assert math.isclose(found.max_relative, 1 / 3)


def test_manifests_alone_are_compared_by_their_digests(make, tmp_path: Path) -> None:
    a, b = make("a"), make("b", lines(4) + [(0.25, 0.3, 1e-3, None)])
    kept = []
    for name, run in (("a", a), ("b", b)):
        kept.append(tmp_path / f"{name}.json")
        kept[-1].write_bytes((run / "manifest.json").read_bytes())
    found = compare(*kept)
    assert found.verdict == "parted: the final digests differ: trace"
    assert [note for note in found.notes if "no trace" in note] == [
        f"{name}: no trace beside the manifest, so steps cannot be compared" for name in "AB"
    ]
    assert compare(kept[0], kept[0]).same


def test_a_manifest_with_another_runs_trace_is_noted(make) -> None:
    a, b = make("a"), make("b", lines(4) + [(0.25, 0.3, 1e-3, None)])
    (b / "trace.jsonl").write_bytes((a / "trace.jsonl").read_bytes())
    assert compare(a, b).notes == ("B: the trace is not the one its manifest was sealed over",)


def test_an_open_run_is_compared_by_its_trace(make) -> None:
    found = compare(make("a"), make("b", status="open"))
    assert found.same
    assert found.notes == (
        "B: the run is open (still running, or killed); its record is not sealed",
    )


def test_an_edited_manifest_is_noted(make) -> None:
    a, b = make("a"), make("b")
    manifest = json.loads((b / "manifest.json").read_text())
    manifest["seeds"]["seed"] = 4
    (b / "manifest.json").write_bytes(canonical_json(manifest))
    found = compare(a, b)
    assert found.notes[0].startswith("B: the manifest was changed after it was sealed")
    assert found.causes[0].field == "seeds.seed"


def test_nothing_to_compare_is_refused(make, tmp_path: Path) -> None:
    a, b = make("a", [], status="open"), make("b", [], status="open")
    for run in (a, b):
        (run / "trace.jsonl").unlink()
        (run / "model.safetensors").unlink()
    with pytest.raises(DataRefused, match="hold none"):
        compare(a, b)


def test_a_damaged_trace_and_damaged_weights_are_refused(make) -> None:
    a, b = make("a"), make("b")
    (b / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(DataRefused, match="must be a safetensors file"):
        compare(a, b)
    (b / "trace.jsonl").write_bytes(b"{}\n")
    with pytest.raises(DataRefused, match="line 1 of `trace.jsonl`"):
        compare(a, b)


def test_links_are_not_followed(make, tmp_path: Path) -> None:
    a, b = make("a"), make("b", weights={**W, "step": np.int64([8])})
    outside = tmp_path / "outside"
    outside.write_bytes((b / "model.safetensors").read_bytes())
    (b / "model.safetensors").unlink()
    (b / "model.safetensors").symlink_to(outside)
    assert compare(a, b).weights is None


def test_the_command_prints_the_verdict_and_returns_its_code(make, capsys, tmp_path: Path) -> None:
    def other_seed(blocks: dict[str, Any]) -> None:
        blocks["requested"]["config"]["seed"] = blocks["seeds"]["seed"] = 4

    nudged = {**W, "b.bias": np.nextafter(W["b.bias"], np.float32(1))}
    a = make("a")
    b = make("b", [(2.0, 0.3, 1e-3, None), *lines()[1:]], nudged, change=other_seed)
    assert boldcast(["diff", str(a), str(a)]) == 0
    assert capsys.readouterr().out.startswith("the same run: 5 steps, every digest equal\n")
    assert boldcast(["diff", str(a), str(b)]) == 5
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "parted at step 1: first quantity loss"
    assert text[1].startswith("step 1, loss 1.0 and 2.0 (0.5 relative, 8388608 ULP): ")
    assert any(line.split()[:6] == ["b.bias", "2", "of", "2", "1", "1"] for line in text)
    assert any(line.split()[:4] == ["1", "requested.config.seed", "3", "4"] for line in text)
    out = tmp_path / "out.json"
    assert boldcast(["diff", str(a), str(b), "--json", "--out", str(out)]) == 5
    printed = capsys.readouterr().out
    assert printed == out.read_text()
    document = json.loads(printed)
    assert document["same"] is False
    assert document["parting"]["step"] == 1
    assert document["steps"] == {"a": 5, "b": 5}
    assert document["weights"]["tensors"][0]["max_ulp"] == 1
    assert document["causes"][0]["field"] == "requested.config.seed"
    assert document["causes"][0]["can_change_bits"] is True


def test_anything_but_two_records_is_refused(make, capsys) -> None:
    a = str(make("a"))
    for records in ([], [a], [a, a, a]):
        assert boldcast(["diff", *records]) == 2
    assert boldcast(["diff", a, f"{a}/nowhere"]) == 3
    assert "must be readable" in capsys.readouterr().err


def test_comparing_holds_one_line_of_a_trace_at_a_time(make, tmp_path: Path) -> None:
    many = [(1.0, 0.5, 1e-3, {"note": "x" * 500_000})] * 120
    a, b = make("a", many), make("b", many)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from boldcast.record.compare import compare\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "most = pages * resource.getpagesize() + 64 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "sys.exit(not compare(*map(Path, sys.argv[1:])).same)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, a, b], env=CHILD, check=False)
    assert done.returncode == 0
