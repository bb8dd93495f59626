from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from boldcast.errors import DataRefused
from boldcast.files import canonical_json
from boldcast.record.trace import GENESIS, TraceWriter, link, read_trace, trace_digest


def write(path: Path, steps: int, start: int = 1) -> Path:
    with TraceWriter(path) as trace:
        for step in range(start, start + steps):
            trace.append(
                step, loss=1 / step, grad_norm=0.1 * step, lr=1e-3, extra={"weights": "ab"}
            )
    return path


def test_a_line_holds_the_exact_numbers_and_chains_by_sha256(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 2)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert float.fromhex(lines[1]["grad_norm"]) == 0.2
    assert lines[0]["loss"] == "0x1.0000000000000p+0"
    chain = hashlib.sha256(b"boldcast/trace/1\n").hexdigest()
    for line in lines:
        content = {key: value for key, value in line.items() if key != "chain"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"
        chain = hashlib.sha256(chain.encode() + text.encode()).hexdigest()
        assert line["chain"] == chain
    assert trace_digest(path) == chain
    assert read_trace(path) == lines


def test_an_empty_trace_has_the_genesis_digest(tmp_path: Path) -> None:
    assert trace_digest(write(tmp_path / "trace.jsonl", 0)) == GENESIS


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
@pytest.mark.parametrize("torn", [b"", b'{"chain":"0', b"\0" * 50])
def test_resume_continues_to_the_bytes_of_an_undisturbed_trace(
    tmp_path: Path, cut: int, torn: bytes
) -> None:
    whole = write(tmp_path / "whole.jsonl", 5).read_bytes()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(whole + torn)
    with TraceWriter.resume(path, cut) as trace:
        for step in range(cut + 1, 6):
            trace.append(
                step, loss=1 / step, grad_norm=0.1 * step, lr=1e-3, extra={"weights": "ab"}
            )
    assert path.read_bytes() == whole


def test_resume_starts_a_missing_trace_at_step_0_only(tmp_path: Path) -> None:
    TraceWriter.resume(tmp_path / "trace.jsonl", 0).close()
    with pytest.raises(DataRefused, match="must reach step 2 .* but ends at step 0"):
        TraceWriter.resume(tmp_path / "other.jsonl", 2)


def test_resume_refuses_a_trace_that_ends_before_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 3)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataRefused, match="must reach step 3 .* but ends at step 2"):
        TraceWriter.resume(path, 3)


def test_resume_refuses_a_damaged_kept_line(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 3)
    path.write_text(path.read_text().replace("0x1.0000000000000p-1", "0x1.0000000000001p-1"))
    with pytest.raises(DataRefused, match="line 2 of `trace.jsonl`"):
        TraceWriter.resume(path, 3)


def test_any_flipped_bit_is_found_and_its_line_named(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 3)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 7)
        path.write_bytes(changed)
        line = whole[:place].count(b"\n") + 1
        # A changed line end joins two lines; both names are right then.
        with pytest.raises(DataRefused, match=rf"line ({line}|{line + 1}) of `trace.jsonl`"):
            read_trace(path)


def test_removed_doubled_and_swapped_lines_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 4)
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in ([0, 2, 3], [1, 2, 3], [0, 0, 1], [0, 2, 1, 3]):
        path.write_bytes(b"".join(lines[i] for i in broken))
        with pytest.raises(DataRefused, match="line"):
            read_trace(path)


@pytest.mark.parametrize(
    "text",
    [
        b"[1]\n",
        b"{}\n",
        b"nonsense\n",
        b'{"chain":"a","step":true}\n',
        b'{"chain":"a","grad_norm":"x","loss":1.5,"lr":"x","step":1}\n',
        b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n",
        b'{"chain":"a","grad_norm":"x","loss":"x","lr":"x","step":1,"x":'
        + b"[" * 990
        + b"]" * 990
        + b"}\n",
        b'{"chain":"a","grad_norm":"x","loss":"x","lr":"x","step":99999999999999999999}\n',
    ],
)
def test_hostile_lines_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text)
    with pytest.raises(DataRefused, match="line 1 of `trace.jsonl`"):
        read_trace(path)


def test_a_line_written_otherwise_is_refused_although_its_content_chains(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", 2)
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step": 2'))
    with pytest.raises(DataRefused, match="line 2 .* canonical JSON"):
        read_trace(path)


def test_a_gap_in_the_steps_is_refused_although_the_lines_chain(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    chain = GENESIS
    for step in (1, 3):
        line = {"step": step, "loss": "0x0p+0", "grad_norm": "0x0p+0", "lr": "0x0p+0"}
        chain = link(chain, line)
        with path.open("ab") as stream:
            stream.write(canonical_json({**line, "chain": chain}))
    with pytest.raises(DataRefused, match="line 2 .* must follow step 1, but is step 3"):
        read_trace(path)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="must be readable"):
        read_trace(tmp_path / "trace.jsonl")


def test_the_writer_guards_its_sequence_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as trace:
        trace.append(1, 1.0, 1.0, 1.0)
        with pytest.raises(ValueError, match="step 3 does not follow step 1"):
            trace.append(3, 1.0, 1.0, 1.0)
        with pytest.raises(ValueError, match="loss"):
            trace.append(2, 1.0, 1.0, 1.0, {"loss": "x"})
    with pytest.raises(FileExistsError):
        TraceWriter(path)
    assert [line["step"] for line in read_trace(path)] == [1]


def test_flush_brings_lines_to_the_file(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace.jsonl") as trace:
        trace.append(1, 1.0, 1.0, 1.0)
        trace.flush()
        assert len(read_trace(tmp_path / "trace.jsonl")) == 1
