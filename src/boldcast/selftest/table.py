"""Print what the self-test found.

Example
-------
>>> from boldcast.selftest.report import Report
>>> document(Report(), None)["ok"]
False
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from boldcast import __version__
from boldcast.files import canonical_json, write_bytes
from boldcast.selftest.report import Report


def show(report: Report, kept: Path | None, out: Path | None, as_json: bool) -> None:
    """Print the report, and write it to ``out`` as JSON; ``kept`` is the folder left behind."""
    found = document(report, kept)
    if out is not None:
        write_bytes(out, canonical_json(found))
    if as_json:
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        print(text(report, kept))


def document(report: Report, kept: Path | None) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "schema": "boldcast/selftest/1",
        "version": __version__,
        "ok": report.ok,
        "seconds": round(report.seconds, 1),
        "checks": [
            {"name": c.name, "ok": c.ok, "detail": c.detail, "seconds": round(c.seconds, 1)}
            for c in report.checks
        ],
        "kept": None if kept is None else str(kept),
    }


def text(report: Report, kept: Path | None) -> str:
    """Return the report as a table and a verdict."""
    width = max((len(check.name) for check in report.checks), default=0)
    lines = [f"{'check':<{width}}  {'':<6}  {'seconds':>7}  detail"]
    lines += [
        f"{c.name:<{width}}  {'ok' if c.ok else 'NOT OK':<6}  {c.seconds:>7.1f}  {c.detail}"
        for c in report.checks
    ]
    failed = sum(not check.ok for check in report.checks)
    verdict = "all hold" if report.ok else f"{failed} do NOT hold"
    lines.append(f"\n{len(report.checks)} checks, {verdict}, {report.seconds:.0f} s")
    if kept is not None:
        lines.append(f"Everything that the commands wrote is kept in {kept}")
    return "\n".join(lines)
