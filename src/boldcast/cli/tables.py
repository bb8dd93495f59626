"""Rows as text columns for a reader.

Example
-------
>>> print(table([{"n": 1, "x": 0.25}], ("n", "x")))
n  x
1  0.25
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as text columns under their names."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    lines = [list(columns), *cells]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "?"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value), keep="")


def printable(text: str, keep: str = "\n") -> str:
    """Return a text in which what a terminal would obey or reorder is escaped.

    Names and values may come from a stranger's file; a control sequence in them could rewrite what
    is on the screen.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
