"""A TOML file as nested dictionaries, or a refusal that points at the line.

Example
-------
>>> from pathlib import Path
>>> read_toml(Path("run/tiny.toml"))["name"]  # doctest: +SKIP
'tiny'
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from boldcast.config.nearest import nearest
from boldcast.errors import UsageRefused

_PLACE = re.compile(
    r"^(?P<why>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of .*)\)$"
)
_MOST_NAMED = 8
_LARGEST_BYTES = 1 << 20


def preset(name: str) -> Path:
    """Return the path of a configuration that comes with boldcast, installed or checked out.

    Raises
    ------
    UsageRefused
        If there is no such configuration.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "presets", package.parents[1] / "run")
    for place in places:
        if (place / f"{name}.toml").is_file():
            return place / f"{name}.toml"
    raise UsageRefused(
        f"`{name}.toml` must come with boldcast, but is not in {places[0]}. Install boldcast again."
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most 1 MiB.

    Raises
    ------
    UsageRefused
        If it is missing or broken; the message names what is nearby, or the line and the reason.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)  # never all of a device
    except OSError as error:
        raise UsageRefused(_unreadable(path, error)) from None
    if len(data) > _LARGEST_BYTES:
        raise UsageRefused(
            f"`{path}` must be a configuration of at most 1 MiB, but is larger. "
            "Give the path of a TOML file."
        )
    try:
        # utf-8-sig: editors on Windows put a byte-order mark in front.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageRefused(
            f"`{path}` must be UTF-8 text, but is not on line {line}, byte {error.start}. "
            "Save it as UTF-8."
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageRefused(_broken(path, text, str(error))) from None


def _broken(path: Path, text: str, message: str) -> str:
    lines = text.splitlines() or [""]
    found = _PLACE.match(message)
    why = found["why"] if found else message
    if found and found["line"]:
        line, column = int(found["line"]), int(found["column"])
    else:
        line, column = len(lines), len(lines[-1]) + 1
    if "overwrite" in why or "declare" in why or "twice" in why:
        # tomllib stops behind the second definition, which may be the start of the next line.
        why = f"a key or section is set a second time ({why[0].lower()}{why[1:]})"
    shown = lines[line - 1] if line <= len(lines) else ""
    return (
        f"`{path}` must be TOML, but is broken on line {line}, column {column}: {why}. "
        f"Correct it there:\n    {shown}\n    {' ' * (column - 1)}^"
    )


def _unreadable(path: Path, error: OSError) -> str:
    if path.is_dir():
        return f"`{path}` must be a TOML file, but is a folder. {_nearby(path, path.name)}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        nearby = _nearby(path.parent, path.name)
        return f"`{path}` must be a TOML file, but does not exist. {nearby}"
    return f"`{path}` must be readable, but is not: {error.strerror}. Check its permissions."


def _nearby(folder: Path, name: str) -> str:
    """Say which TOML files are in ``folder``, or in the presets where it holds none."""
    found = [*sorted(folder.glob("*.toml")), *sorted(folder.glob("run/*.toml"))]
    found = [file for file in found if file.name != "pyproject.toml"]
    if not found:
        found = sorted(preset("example").parent.glob("*.toml"))
    alike = nearest(Path(name).stem, [file.stem for file in found])
    found = [file for file in found if file.stem in alike] or found
    listed = ", ".join(f"`{file}`" for file in found[:_MOST_NAMED])
    more = len(found) - _MOST_NAMED
    return f"Nearby: {listed}{f' and {more} more' if more > 0 else ''}."
