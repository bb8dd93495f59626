"""One line of JSON per optimizer step, each chained to the one before by SHA-256.

Numbers are written as ``float.hex`` because they must match bit for bit, and nothing in a line
depends on time, host or the number of ranks. A changed, removed or inserted line breaks the chain
where it stands; a trace that ends early still chains, which is why the manifest keeps the last link
(`trace_digest`) and the number of steps. The chain is no signature: who can rewrite the manifest
too can rewrite both.

Example
-------
>>> writer = TraceWriter(Path("runs/demo/trace.jsonl"))      # doctest: +SKIP
>>> writer.append(1, loss=0.98, grad_norm=0.5, lr=1e-4)      # doctest: +SKIP
>>> writer.flush()                                           # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from boldcast.errors import DataRefused
from boldcast.files import canonical_json, sha256_bytes

GENESIS = sha256_bytes(b"boldcast/trace/1\n")
"""The link before the first line."""

MAX_LINE = 1 << 20
"""Bytes of the longest line; a longer one is taken for damage."""

_OWN_KEYS = frozenset({"step", "loss", "grad_norm", "lr", "chain"})


def link(previous: str, line: Mapping[str, Any]) -> str:
    """Return the chain value of ``line``: SHA-256 over the previous one and its content.

    Parameters
    ----------
    previous : str
        Chain value of the line before, or `GENESIS`.
    line : mapping
        The line; its own ``chain`` is left out.
    """
    content = {key: value for key, value in line.items() if key != "chain"}
    return sha256_bytes(previous.encode("ascii") + canonical_json(content))


class TraceWriter:
    """Append the lines of a new trace; use `TraceWriter.resume` for one that exists.

    Lines are buffered. Call `flush` before the checkpoint of the same step takes its name, so that
    no checkpoint is ever ahead of its trace.

    Parameters
    ----------
    path : Path
        File to create.

    Raises
    ------
    FileExistsError
        If the file exists.
    """

    def __init__(self, path: Path) -> None:
        self._start(path, "xb", last_step=None, chain=GENESIS)

    def _start(self, path: Path, mode: str, last_step: int | None, chain: str) -> None:
        self.path = path
        self.last_step = last_step
        self.chain = chain
        self._stream = path.open(mode)

    @classmethod
    def resume(cls, path: Path, step: int) -> TraceWriter:
        """Cut the trace back to ``step`` and continue its chain.

        Lines after ``step`` are dropped, whole or torn. Those up to it are verified. With
        ``step = 0`` the file may be missing.

        Raises
        ------
        DataRefused
            If a kept line is damaged, or the trace ends before ``step``.
        """
        last, chain, end = None, GENESIS, 0
        if path.exists():
            for line, stop in _lines(path, until=step):
                last, chain, end = line["step"], line["chain"], stop
            os.truncate(path, end)
        if (last or 0) != step:
            raise DataRefused(
                f"`{path.name}` must reach step {step} of the checkpoint, but ends at step "
                f"{last or 0}. Resume from an older checkpoint, or start in a new folder."
            )
        writer = cls.__new__(cls)
        writer._start(path, "ab", last, chain)
        return writer

    def append(
        self,
        step: int,
        loss: float,
        grad_norm: float,
        lr: float,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add the line of one optimizer step.

        Parameters
        ----------
        step : int
            The number of optimizer steps done, counted from 1; rises by one from line to line.
        loss, grad_norm, lr : float
            Training loss, L2 norm of the gradient before clipping, learning rate of the step.
        extra : mapping, optional
            Further JSON values that must match between two runs, for example ``weights``, a
            digest. Floats in it should come as ``float.hex``.

        Raises
        ------
        ValueError
            If the step does not follow the last one, or ``extra`` uses a key of the trace.
        """
        if self.last_step is not None and step != self.last_step + 1:
            raise ValueError(f"step {step} does not follow step {self.last_step}")
        line = {**(extra or {}), "step": step}
        if clash := _OWN_KEYS & set(extra or {}):
            raise ValueError(f"extra keys belong to the trace itself: {sorted(clash)}")
        for name, value in (("loss", loss), ("grad_norm", grad_norm), ("lr", lr)):
            line[name] = float(value).hex()
        self.chain = line["chain"] = link(self.chain, line)
        self._stream.write(canonical_json(line))
        self.last_step = step

    def flush(self) -> None:
        """Bring every line written so far to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Flush and close; closing twice is harmless."""
        if not self._stream.closed:
            self.flush()
            self._stream.close()

    def __enter__(self) -> TraceWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file, also after an error."""
        self.close()


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return every line of a trace, its chain verified.

    Raises
    ------
    DataRefused
        If the file is missing, or a line is torn, damaged or out of sequence; names the line.
    """
    return list(each_line(path))


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a trace one at a time, each verified first; raises as `read_trace`."""
    for line, _ in _lines(path, until=None):
        yield line


def trace_digest(path: Path) -> str:
    """Return the last link of the verified chain: equal exactly when every line is equal."""
    lines = read_trace(path)
    return str(lines[-1]["chain"]) if lines else GENESIS


def _lines(path: Path, until: int | None) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (line, offset of its end), verified, up to step ``until``; what follows is not read."""
    chain, previous, offset = GENESIS, None, 0
    try:
        stream = path.open("rb")
    except OSError as error:
        raise DataRefused(
            f"`{path.name}` must be readable, but is not: {error.strerror}. Point at a run folder "
            "that holds a trace."
        ) from None
    with stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), start=1):
            torn = not raw.endswith(b"\n")
            if until is not None and (torn or (previous or 0) >= until):
                return
            line = _parse(raw, f"line {number} of `{path.name}`")
            if until is not None and line["step"] > until:
                return
            if previous is not None and line["step"] != previous + 1:
                raise _damaged(
                    f"line {number} of `{path.name}`",
                    f"follow step {previous}",
                    f"step {line['step']}",
                )
            if line["chain"] != link(chain, line):
                raise _damaged(
                    f"line {number} of `{path.name}`",
                    f"chain to the line before it (step {line['step']})",
                    "different content than was written",
                )
            chain, previous, offset = line["chain"], line["step"], offset + len(raw)
            yield line, offset


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _damaged(where, "be one JSON object", "torn or damaged") from None
    if not isinstance(line, dict) or not isinstance(line.get("chain"), str):
        raise _damaged(where, "be an object with a `chain`", "something else")
    if type(line.get("step")) is not int:
        raise _damaged(where, "have a whole number as `step`", repr(line.get("step"))[:40])
    for name in ("loss", "grad_norm", "lr"):
        if not isinstance(line.get(name), str):
            raise _damaged(where, f"have `{name}` as a hex string", repr(line.get(name))[:40])
    try:
        whole = canonical_json(line) == raw
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise _damaged(where, "be canonical JSON", "written differently")
    return line


def _damaged(where: str, rule: str, found: str) -> DataRefused:
    return DataRefused(
        f"{where} must {rule}, but is {found}. The trace was changed after it was written; "
        "restore it from a copy, or run again."
    )
