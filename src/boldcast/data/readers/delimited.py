r"""``.csv`` and ``.tsv`` tables: a row is a volume, the first line may name the regions.

Missing values (empty, ``n/a``, ``NaN``) become NaN and are judged later with the others.

Example
-------
>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "scan.tsv")
...     _ = path.write_text("left\tright\n1\t2\n3\tn/a\n")
...     read(path).regions
('left', 'right')
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boldcast.data.readers.raw import Axes, Raw, two_dimensional, unique_names
from boldcast.errors import DataRefused

SUFFIXES: tuple[str, ...] = (".csv", ".tsv")
_MISSING = ("", "n/a", "na", "nan")


def read(path: Path, *, key: str | None = None) -> Raw:
    """Read a table; see :func:`boldcast.data.readers.read`."""
    rows = _rows(path)
    regions: tuple[str, ...] | None = None
    first = 1
    if rows and not all(_is_number(cell) for cell in rows[0]):
        regions = unique_names(path, tuple(cell.strip() for cell in rows.pop(0)))
        first = 2
    elif rows:
        _refuse_numbered_header(path, rows[0])
    axes: Axes = "named" if regions is not None else "volumes_first"
    return Raw(two_dimensional(path, _numbers(path, rows, regions, first)), regions, None, axes)


def _rows(path: Path) -> list[list[str]]:
    delimiter = "\t" if path.name.lower().endswith(".tsv") else ","
    try:
        # utf-8-sig: spreadsheets put a byte-order mark before the first name.
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return [row for row in csv.reader(stream, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataRefused(
            f"`{path}` must be a UTF-8 text table, but cannot be read as one ({error}). "
            "Save it again as UTF-8."
        ) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in _MISSING
    return True


def _refuse_numbered_header(path: Path, row: list[str]) -> None:
    cells = [cell.strip() for cell in row]
    for base in (0, 1):
        if len(cells) > 2 and cells == [str(base + index) for index in range(len(cells))]:
            raise DataRefused(
                f"`{path}` must begin with region names or with a volume, but its first line "
                f"counts {cells[0]}, {cells[1]}, {cells[2]} ..., which may be either. Name the "
                "regions, or save the table without that line."
            )


def _numbers(
    path: Path, rows: list[list[str]], regions: tuple[str, ...] | None, first: int
) -> NDArray[np.float64]:
    width = len(regions) if regions is not None else (len(rows[0]) if rows else 0)
    table = np.empty((len(rows), width))
    for index, row in enumerate(rows):
        if len(row) != width:
            raise DataRefused(
                f"`{path}` must have {width} cells in every line, but row {first + index} has "
                f"{len(row)}. Write the table again."
            )
        try:
            table[index] = row
        except ValueError:
            table[index] = [
                _number(path, cell, first + index, column) for column, cell in enumerate(row)
            ]
    return table


def _number(path: Path, cell: str, row: int, column: int) -> float:
    if cell.strip().lower() in _MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        raise DataRefused(
            f"`{path}` must hold numbers, but row {row}, column {column + 1} is `{cell}`. "
            "Correct the cell, or write n/a where nothing was measured."
        ) from None
