r"""The scan list: a TSV with one line a scan, the one place where a study is described.

``path`` and ``subject`` are required, the rest is optional; empty and ``n/a`` cells say nothing.
Paths are relative to the list's folder. Identifiers are strings: ``0042`` stays ``0042``.

========== =========================================================================
column     meaning
========== =========================================================================
path       the file of the scan
subject    who was scanned
session    which visit
scan       which scan of the visit
t_r        repetition time in seconds
family     family of the subject; all of it goes to the same side of the split
split      ``train`` or ``held_out``
n_regions  regions of the atlas, which tells time from space where the file does not
regions    text file with one region name a line, where the file holds no names
key        name of the array, where the file holds several
========== =========================================================================

Example
-------
>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "scans.tsv")
...     _ = path.write_text("path\tsubject\na.npy\t007\n")
...     _ = path.with_name("a.npy").write_bytes(b"")
...     read_scan_list(path)[0].subject
'007'
"""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from pathlib import Path

from boldcast.errors import DataRefused

COLUMNS = (
    "path",
    "subject",
    "session",
    "scan",
    "t_r",
    "family",
    "split",
    "n_regions",
    "regions",
    "key",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the scan list.

    ``label`` is the path as written there (only the file name of an absolute one), fit to be
    recorded; ``path`` and ``regions_path`` are where the files are on this machine.
    """

    path: Path
    label: str
    subject: str
    session: str = ""
    scan: str = ""
    t_r: float | None = None
    family: str | None = None
    split: str | None = None
    n_regions: int | None = None
    regions_path: Path | None = None
    key: str | None = None


def read_scan_list(path: Path) -> tuple[Entry, ...]:
    """Read and check a scan list.

    Raises
    ------
    DataRefused
        With every problem of the list at once.
    """
    rows = _rows(path)
    problems: list[str] = []
    entries = [
        entry for line, row in enumerate(rows, 2) if (entry := _entry(path, line, row, problems))
    ]
    problems += _repeated(path, entries)
    if problems:
        raise DataRefused("\n".join(problems))
    if not entries:
        raise DataRefused(f"`{path}` must list at least one scan, but is empty. Add a line a scan.")
    return tuple(entries)


def is_scan_list(path: Path) -> bool:
    """Return whether a file is a scan list: a .tsv whose first line names path and subject."""
    if not path.name.lower().endswith(".tsv") or not path.is_file():
        return False
    with path.open("rb") as stream:
        first = stream.readline(1 << 16).decode("utf-8-sig", errors="replace")
    return {"path", "subject"} <= {cell.strip() for cell in first.split("\t")}


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataRefused(f"`{path}` must be a scan list (.tsv), but is not there. Correct it.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = [row for row in csv.reader(stream, delimiter="\t") if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataRefused(
            f"`{path}` must be a UTF-8 table with tabs, but cannot be read as one ({error}). "
            "Save it again as UTF-8."
        ) from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    problems = _header_problems(path, header)
    for line, row in enumerate(lines[1:], 2):
        if len(row) > len(header):
            problems.append(
                f"`{path}` line {line} must have at most {len(header)} cells, but has {len(row)}. "
                "Separate cells by one tab."
            )
    if problems:
        raise DataRefused("\n".join(problems))
    return [dict(zip(header, map(str.strip, row), strict=False)) for row in lines[1:]]


def _header_problems(path: Path, header: list[str]) -> list[str]:
    problems = [
        f"`{path}` must have a column `{needed}`, but has {', '.join(header) or 'none'}. "
        "Separate columns by tabs and name them in the first line."
        for needed in ("path", "subject")
        if needed not in header
    ]
    for index, name in enumerate(header):
        if name not in COLUMNS:
            near = difflib.get_close_matches(name.lower(), COLUMNS, 1, 0.5)
            hint = f"Did you mean `{near[0]}`?" if near else f"Known are {', '.join(COLUMNS)}."
            problems.append(f"`{path}` must have known columns only, but has `{name}`. {hint}")
        elif header.index(name) != index:
            problems.append(f"`{path}` must have the column `{name}` once. Remove one of them.")
    return problems


def _entry(path: Path, line: int, row: dict[str, str], problems: list[str]) -> Entry | None:
    cells = {name: text for name, text in row.items() if text and text.lower() != "n/a"}
    where = f"`{path}` line {line}"
    missing = [name for name in ("path", "subject") if name not in cells]
    if missing:
        problems.append(f"{where} must fill in {' and '.join(missing)}, but leaves it empty.")
        return None
    file = path.parent / cells["path"]
    regions = path.parent / cells["regions"] if "regions" in cells else None
    for needed in (file, regions):
        if needed is not None and not needed.is_file():
            problems.append(f"{where} must name a file, but `{needed}` is not there. Correct it.")
    if cells.get("split", "train") not in ("train", "held_out"):
        problems.append(
            f"{where}: `split` must be train or held_out, but is {cells['split']}. Correct it."
        )
    return Entry(
        path=file,
        label=Path(cells["path"]).name if Path(cells["path"]).is_absolute() else cells["path"],
        subject=cells["subject"],
        session=cells.get("session", ""),
        scan=cells.get("scan", ""),
        t_r=_number(where, "t_r", cells, problems),
        family=cells.get("family"),
        split=cells.get("split"),
        n_regions=_count(where, cells, problems),
        regions_path=regions,
        key=cells.get("key"),
    )


def _number(where: str, name: str, cells: dict[str, str], problems: list[str]) -> float | None:
    try:
        return float(cells[name]) if name in cells else None
    except ValueError:
        problems.append(f"{where}: `{name}` must be a number, but is {cells[name]}. Correct it.")
        return None


def _count(where: str, cells: dict[str, str], problems: list[str]) -> int | None:
    text = cells.get("n_regions", "")
    if not text:
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    problems.append(f"{where}: `n_regions` must be a count above 0, but is {text}. Correct it.")
    return None


def _repeated(path: Path, entries: list[Entry]) -> list[str]:
    problems = []
    seen: dict[tuple[str, ...], str] = {}
    for entry in entries:
        named = f"subject {entry.subject}, session {entry.session or '-'}, scan {entry.scan or '-'}"
        for mark, said in (
            (("file", str(entry.path.resolve())), f"the file `{entry.label}`"),
            (("scan", entry.subject, entry.session, entry.scan), named),
        ):
            if mark in seen:
                problems.append(
                    f"`{path}` must list every scan once, but has {said} twice "
                    f"(`{seen[mark]}` and `{entry.label}`). Remove one, or number the scans in "
                    "the column `scan`."
                )
            seen.setdefault(mark, entry.label)
    return problems
