"""Everything about a run that has a time, a host or a process: ``events.jsonl``.

Kept apart from the manifest so that the manifest of two equal runs can be equal. Each event is one
line, appended by a single write, so several processes may share the file and a kill tears at most
the last line.

Example
-------
>>> EventLog(Path("runs/demo/events.jsonl")).write("resumed", step=500)   # doctest: +SKIP
"""

from __future__ import annotations

import math
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

_OWN_KEYS = frozenset({"time", "host", "pid", "kind"})


class EventLog:
    """Append events to a file, which is created on the first one.

    Parameters
    ----------
    path : Path
        The ``events.jsonl`` of a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **facts: Any) -> None:
        """Append one event with the UTC time, host and process id.

        Parameters
        ----------
        kind : str
            What happened, for example ``started``, ``checkpoint``, ``stopped``.
        **facts
            Details. What JSON cannot hold is written as its text.

        Raises
        ------
        ValueError
            If a fact would replace ``time``, ``host`` or ``pid``.
        """
        if clash := _OWN_KEYS & set(facts):
            raise ValueError(f"facts belong to the log itself: {sorted(clash)}")
        event = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "kind": kind,
            **{name: _plain(value) for name, value in facts.items()},
        }
        line = orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line if _ends_whole(handle) else b"\n" + line)
        finally:
            os.close(handle)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a run in the order written; torn lines are passed over."""
    events = []
    for raw in path.read_bytes().splitlines() if path.exists() else []:
        try:
            event = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _ends_whole(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    # Text that is not valid Unicode (odd file names) must not stop a run.
    return str(value).encode("utf-8", "backslashreplace").decode()
