from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from boldcast.record.events import EventLog, read_events


def test_an_event_has_time_in_utc_host_and_pid(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl").write("started", step=0)
    (event,) = read_events(tmp_path / "events.jsonl")
    assert (event["host"], event["pid"]) == (socket.gethostname(), os.getpid())
    assert (event["kind"], event["step"]) == ("started", 0)
    assert datetime.fromisoformat(event["time"]).tzinfo == UTC


def test_what_json_cannot_hold_is_written_as_text(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("odd", nan=float("nan"), big=2**70, path=Path("x"), name="\ud800", many=(1, None))
    (event,) = read_events(log.path)
    assert event["nan"] == "nan"
    assert event["big"] == str(2**70)
    assert (event["path"], event["many"]) == ("x", [1, None])
    assert event["name"] == "\\ud800"


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("first")
    with log.path.open("ab") as stream:
        stream.write(b'{"time": "20')
    log.write("second")
    assert [event["kind"] for event in read_events(log.path)] == ["first", "second"]


def test_facts_cannot_replace_the_logs_own_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host"):
        EventLog(tmp_path / "events.jsonl").write("started", host="elsewhere")
    assert read_events(tmp_path / "events.jsonl") == []
