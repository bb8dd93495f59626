r"""What ``diff``, ``manifest lint`` and ``manifest export`` print and write.

Values of a record may come from a stranger, so none reaches the terminal but as escaped ASCII.

Example
-------
>>> shown({"state": "unset"}), shown("\x1b[31m")
('unset', '\\x1b[31m')
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boldcast.cli.places import check_out
from boldcast.cli.tables import table
from boldcast.errors import NotTheSame, UsageRefused
from boldcast.files import write_bytes
from boldcast.record.causes import Cause
from boldcast.record.compare import Comparison, WeightsCompared
from boldcast.record.differences import is_error
from boldcast.record.parting import Parting

if TYPE_CHECKING:
    from boldcast.record.verify import Finding

_WIDTH = 36
_TENSORS = 10


def report(findings: Sequence[Finding], verdict: str, *, as_json: bool, out: Path | None) -> int:
    """Print findings as a table or as JSON; return the exit code."""
    rows = [{"name": f.name, "ok": f.ok, "detail": f.detail} for f in findings]
    good = bool(rows) and all(row["ok"] for row in rows)
    shown_rows = [{**row, "ok": "ok" if row["ok"] else "NOT OK"} for row in rows]
    text = table(shown_rows, ("ok", "name", "detail"))
    _put({verdict: good, "findings": rows}, text, as_json=as_json, out=out)
    return 0 if good else NotTheSame.exit_code


def show_comparison(found: Comparison, *, as_json: bool, out: Path | None) -> int:
    """Print a comparison as a text or as JSON; return the exit code."""
    _put(as_document(found), as_text(found), as_json=as_json, out=out)
    return 0 if found.same else NotTheSame.exit_code


def _put(document: Any, text: str, *, as_json: bool, out: Path | None) -> None:
    check_out(out)
    whole = _json(document)
    print(whole if as_json else text, end="" if as_json else "\n")
    if out:
        write_bytes(out, whole.encode())


def _json(document: Any) -> str:
    """Return indented JSON in ASCII, which no terminal takes for a command."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def as_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    document = asdict(found)
    document["steps"] = dict(zip("ab", found.steps, strict=True))
    for cause, row in zip(found.causes, document["causes"], strict=True):
        row["can_change_bits"] = cause.can_change_bits
    return document


def as_text(found: Comparison) -> str:
    """Return a comparison for a reader: the verdict, where, by how much, and why."""
    return "\n".join(_lines(found))


def shown(value: Any) -> str:
    """Return a value of a record as short, escaped text."""
    if is_error(value):
        text = f"unknown: {value['error']}"
    elif isinstance(value, dict) and "state" in value:
        text = str(value.get("value", value["state"]))
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    plain = text.encode("unicode_escape").decode("ascii").replace("\\\\", "\\")
    return plain if len(plain) <= _WIDTH else plain[: _WIDTH - 3] + "..."


def _lines(found: Comparison) -> Iterator[str]:
    yield shown_line(found.verdict)
    for note in found.notes:
        yield f"note: {note}"
    if found.parting:
        yield _where(found.parting)
    if found.tensor:
        t = found.tensor
        yield (
            f"tensors by the digests of step {t.step}: {t.n_differ} of {t.n_tensors} differ, "
            f"by name first {shown_line(t.name)}"
        )
    if found.weights:
        yield from _weights(found.weights)
    yield from _causes(found)


def _where(parting: Parting) -> str:
    size = ""
    if parting.relative is not None:
        size = f" ({parting.relative:.3g} relative, {parting.ulp} ULP)"
    hint = f": {parting.hint}" if parting.hint else ""
    numbers = f"{_number(parting.a)} and {_number(parting.b)}"
    return f"step {parting.step}, {shown_line(parting.quantity)} {numbers}{size}{hint}"


def _number(value: Any) -> str:
    """Return a hex float of the trace in decimal digits that name it; anything else as it is."""
    try:
        return repr(float.fromhex(value)) if "0x" in value else shown(value)
    except (TypeError, ValueError, OverflowError):
        return shown(value)


def _weights(weights: WeightsCompared) -> Iterator[str]:
    yield ""
    yield f"Tensors that differ in {shown_line(weights.place)}:"
    rows = [
        {
            "tensor": shown_line(tensor.name),
            "elements": f"{tensor.n_differ} of {tensor.n_elements}",
            "most ULP": tensor.max_ulp if tensor.max_ulp is not None else "-",
            "most relative": tensor.max_relative if tensor.max_relative is not None else "-",
            "": tensor.note,
        }
        for tensor in weights.tensors[:_TENSORS]
    ]
    yield table(rows, ("tensor", "elements", "most ULP", "most relative", ""))
    if len(weights.tensors) > _TENSORS:
        yield f"and {len(weights.tensors) - _TENSORS} more; --json lists all"


def _causes(found: Comparison) -> Iterator[str]:
    able = [cause for cause in found.causes if cause.can_change_bits]
    unable = [cause for cause in found.causes if not cause.can_change_bits]
    yield ""
    if able:
        title = "can change bits, but did not" if found.same else "the likeliest cause first"
        yield f"Differ, {title}:"
        yield table([_row(cause) for cause in able], ("", "field", "A", "B", "why"))
    elif found.same:
        yield "No recorded field that could change bits differs."
    else:
        yield (
            "No recorded field that could change bits differs: suspect a kernel that adds in the "
            "order in which threads arrive, a faulty board, or a fact no record holds."
        )
    if unable:
        yield ""
        yield "Differ, but cannot change bits here:"
        yield table([_row(cause) for cause in unable], ("field", "A", "B", "why"))


def _row(cause: Cause) -> dict[str, Any]:
    return {
        "": cause.rank,
        "field": shown_line(cause.field),
        "A": shown(cause.a),
        "B": shown(cause.b),
        "why": cause.why,
    }


def shown_line(text: str) -> str:
    """Return a name of a record as escaped ASCII on one line."""
    return text.encode("unicode_escape").decode("ascii")[:200]


def export(path: Path, form: str, out: Path | None, with_times: bool) -> str:
    """Write a record in another form; return what is to be printed.

    Raises
    ------
    UsageRefused
        If the options do not fit the form, or ``out`` cannot be written.
    """
    if with_times and form != "ro-crate":
        raise UsageRefused(
            f"`--with_times` must go with --format ro-crate, but the format is {form}: its records "
            "hold no time. Remove it."
        )
    if form == "ro-crate":
        from boldcast.record.export.ro_crate import write_crate

        if out is None:
            raise UsageRefused(
                "`--out` must name a new folder for --format ro-crate, but is missing. "
                "Write `--out DIR`."
            )
        return f"{write_crate(path, out, with_times)}\n"
    text = _document(path, form)
    if out is None:
        return text
    check_out(out)
    write_bytes(out, text.encode())
    return f"{out}\n"


def _document(path: Path, form: str) -> str:
    if form == "datalad":
        from boldcast.record.export.datalad import commit_message

        return commit_message(path)
    from boldcast.record.export.in_toto import statement

    return _json(statement(path))
