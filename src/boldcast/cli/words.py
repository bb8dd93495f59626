"""The parts of a command line: operands, options and commands, and how a value is read from text.

Example
-------
>>> read_counts("1,2,4")
(1, 2, 4)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boldcast.config.coerce import Unfit, from_text
from boldcast.config.docs import settings


@dataclass(frozen=True)
class Operand:
    """What stands behind the command without a flag."""

    name: str
    metavar: str
    doc: str
    required: bool = True
    many: bool = False
    choices: tuple[str, ...] = ()
    unless: str = ""
    """Option whose presence makes a required operand unnecessary."""


@dataclass(frozen=True)
class Option:
    """A flag of one command: ``--name METAVAR``, or ``--name`` alone without ``metavar``."""

    name: str
    metavar: str | None
    doc: str
    """One sentence with the unit."""
    default: str
    """What is taken without it, in words."""
    read: Callable[[str], Any]
    """From text to value; raises ValueError with the rule it breaks."""


@dataclass(frozen=True)
class Command:
    """One command, by the words that call it."""

    path: tuple[str, ...]
    summary: str
    details: str
    options: tuple[Option, ...] = ()
    operand: Operand | None = None
    settings: bool = False
    """Whether ``--section.name value`` overrides are taken."""

    @property
    def usage(self) -> str:
        """One line that shows how it is called."""
        words = ["boldcast", *self.path]
        if self.operand:
            shown = self.operand.metavar + (" ..." if self.operand.many else "")
            words.append(shown if self.operand.required else f"[{shown}]")
        if self.options:
            words.append("[options]")
        if self.settings:
            words.append("[--section.name value ...]")
        return " ".join(words)


def read_path(text: str) -> Path:
    """Read a path; an empty one would silently mean the current folder."""
    if not text or "\0" in text:
        raise ValueError("a path that is not empty")
    return Path(text)


def read_flag(text: str) -> bool:
    """Read the value that a flag without one is handed on with."""
    return text == "true"


def read_count(low: int) -> Callable[[str], int]:
    """Return a reader of integers of at least ``low``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) or int(text) < low:
            raise ValueError(f"an integer, at least {low}")
        return int(text)

    return read


def read_counts(text: str) -> tuple[int, ...]:
    """Read rising integers with commas between them, such as ``1,2,4``."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        counts = tuple(read_count(1)(part.strip()) for part in inner.split(","))
    except ValueError:
        counts = ()
    if not counts or list(counts) != sorted(set(counts)):
        raise ValueError("rising integers of at least 1 with commas between, such as 1,2")
    return counts


def read_fraction(text: str) -> float:
    """Read a number from 0 to 1."""
    if not re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text, re.ASCII) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


def read_t_r(text: str) -> float:
    """Read a repetition time in seconds, within the bounds of the setting ``data.t_r``."""
    try:
        value = from_text(settings()["data.t_r"], text)
    except Unfit as unfit:
        raise ValueError(unfit.rule) from None
    if not isinstance(value, float):
        raise ValueError("a number of seconds")
    return value


def read_choice(*choices: str) -> Callable[[str], str]:
    """Return a reader that takes one of ``choices``."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read
