"""Check a command line word by word before anything else sees it.

Fire would run a command and complain about an unknown flag afterwards, take a stray word for a
parameter, read ``1e5`` or a digest as a number, cut ``x#y`` to ``x``, let the last duplicate win
and open a REPL for ``-- --interactive``. So every word is matched against ``specs`` first, all
problems are reported together, and fire receives only ``--name=value`` words that cannot be
misread.

Example
-------
>>> parse(["train", "run/tiny.toml", "--seed", "3"]).words()
['train', '--config=run/tiny.toml', '--seed=3']
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from boldcast.cli.specs import COMMANDS
from boldcast.cli.words import Command
from boldcast.config.docs import settings
from boldcast.config.nearest import did_you_mean
from boldcast.config.resolve import resolve
from boldcast.errors import UsageRefused

_NUMBER = re.compile(r"-[0-9.]\S*", re.ASCII)


@dataclass
class Request:
    """A command line that was understood: which command, and what for each of its names."""

    command: Command
    operands: list[str] = field(default_factory=list)
    options: dict[str, str | None] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return the words for fire: the command, then flags that each carry their value."""
        operand = self.command.operand
        words = list(self.command.path)
        if operand and operand.many:
            # Absolute, so that no file name can look like a flag or like fire's separator.
            words += [str(Path(path).absolute()) for path in self.operands]
        elif operand:
            words += [f"--{operand.name}={value}" for value in self.operands]
        for name, value in self.options.items():
            words.append(f"--{name}={'true' if value is None else value}")
        return words + [f"--{name}={value}" for name, value in self.overrides.items()]


def find_command(words: Sequence[str]) -> tuple[Command | None, int]:
    """Return the command that ``words`` begin with, and how many words name it."""
    for length in (2, 1):
        for command in COMMANDS:
            if len(command.path) == length and tuple(words[:length]) == command.path:
                return command, length
    return None, 0


def parse(argv: Sequence[str]) -> Request:
    """Match every word of a command line.

    Raises
    ------
    UsageRefused
        With one sentence for every problem, those of the configuration included.
    """
    command, length = find_command(argv)
    if command is None:
        raise UsageRefused(unknown_command(argv))
    reading = _Reading(Request(command), list(argv[length:]))
    reading.run()
    found = [*reading.found, *_config_problems(reading.request)]
    if found:
        raise UsageRefused(found)
    return reading.request


def unknown_command(argv: Sequence[str]) -> str:
    """Return the sentence for words that begin with no command."""
    names = [" ".join(command.path) for command in COMMANDS]
    group = [name for name in names if name.startswith(f"{argv[0]} ")]
    typed = " ".join(argv[: 2 if group else 1])
    near = did_you_mean(typed, group or names, flag="boldcast ")
    todo = near or f"Commands are {', '.join(f'`{name}`' for name in group or names)}."
    return f"`{typed}` must be a command of boldcast, but is not known. {todo}"


def _config_problems(request: Request) -> list[str]:
    """Return what is wrong with the settings of a command that takes them."""
    if not request.command.settings:
        return []
    try:
        resolve(Path(request.operands[0]) if request.operands else None, request.overrides)
    except UsageRefused as refused:
        return refused.problems
    return []


class _Reading:
    """The words still to read, and the problems met so far."""

    def __init__(self, request: Request, words: list[str]) -> None:
        self.request = request
        self.words = words
        self.found: list[str] = []

    def run(self) -> None:
        while self.words:
            word = self.words.pop(0)
            if word == "--":
                self._refuse("--", "stand in no boldcast command line", "given", "Remove it.")
            elif word.startswith("-"):
                self._flag(word)
            else:
                self._operand(word)
        operand = self.request.command.operand
        if operand and operand.required and not self.request.operands and not self._excused():
            todo = f"Write `{self.request.command.usage}`."
            self._refuse(operand.metavar, "be given", "missing", todo)

    def _excused(self) -> bool:
        operand = self.request.command.operand
        return operand is not None and operand.unless in self.request.options

    def _operand(self, word: str) -> None:
        operand = self.request.command.operand
        name = " ".join(self.request.command.path)
        if not word:
            self._refuse(operand.metavar if operand else '""', "not be empty", '""', "Remove it.")
            return
        if operand is None or (self.request.operands and not operand.many):
            least = f"one {operand.metavar}" if operand else "no words without a flag"
            todo = "Remove it, or write the flag in front of it."
            self._refuse(word, f"not stand here: `{name}` takes {least}", "one more", todo)
            return
        if operand.choices and word not in operand.choices:
            rule = f"be one of {', '.join(f'`{c}`' for c in operand.choices)}"
            near = did_you_mean(word, operand.choices)
            self._refuse(operand.metavar, rule, f"`{word}`", near or "Write one of these.")
        self.request.operands.append(word)

    def _flag(self, word: str) -> None:
        typed, equals, text = word.partition("=")
        name = typed[2:].replace("-", "_") if typed.startswith("--") else ""
        option = next((o for o in self.request.command.options if o.name == name), None)
        setting = settings().get(name) if self.request.command.settings else None
        if option is None and setting is None:
            self._unknown(typed, bool(equals))
            return
        if name in self.request.options or name in self.request.overrides:
            takes = setting is not None or (option is not None and option.metavar is not None)
            self._value(text if equals else None, takes=takes)
            self._refuse(f"--{name}", "be given once", "given again", "Keep one of them.")
            return
        if option is not None and option.metavar is None:
            if equals:
                todo = f"Write `--{name}` for yes, and nothing for no."
                self._refuse(f"--{name}", "stand alone", f"`{word}`", todo)
            self.request.options[name] = None
            return
        value = self._value(text if equals else None, takes=True)
        if value is None:
            self._no_value(name, setting.type_text if setting else "")
        elif setting is not None:
            self.request.overrides[name] = value
        elif option is not None:
            self.request.options[name] = value
            try:
                option.read(value)
            except ValueError as error:
                self._refuse(f"--{name}", f"be {error}", f"`{value}`", f"{option.doc}")

    def _value(self, given: str | None, *, takes: bool) -> str | None:
        """Return the flag's value; None where the next word is another flag or nothing."""
        if given is not None or not takes or not self.words:
            return given
        following = self.words[0]
        if following.startswith("-") and not _NUMBER.fullmatch(following):
            return None
        return self.words.pop(0)

    def _no_value(self, name: str, type_text: str) -> None:
        option = next((o for o in self.request.command.options if o.name == name), None)
        wanted = type_text or (option.metavar if option else "") or ""
        following = f", but is followed by `{self.words[0]}`" if self.words else ", but ends there"
        self.found.append(
            f"`--{name}` must have a value ({wanted}){following}. Write `--{name}=VALUE`."
        )

    def _unknown(self, typed: str, has_value: bool) -> None:
        command = self.request.command
        if not has_value and self.words and not self.words[0].startswith("-"):
            # Most likely its value; a second complaint about it would only confuse.
            self.words.pop(0)
        valid = [option.name for option in command.options]
        valid += list(settings()) if command.settings else []
        name = " ".join(command.path)
        near = did_you_mean(typed.lstrip("-"), valid, flag="--")
        rule = f"be an option of `boldcast {name}`"
        if not typed.startswith("--"):
            rule += ", written in full behind `--`"
        todo = near or _elsewhere(typed) or f"See `boldcast {name} --help`."
        self._refuse(typed, rule, "not known", todo)

    def _refuse(self, name: str, rule: str, value: str, todo: str) -> None:
        self.found.append(f"`{name}` must {rule}, but is {value}. {todo}")


def _elsewhere(typed: str) -> str:
    """Say which commands take an option that this one does not."""
    name = typed.lstrip("-").replace("-", "_")
    listed = ", ".join(
        f"`boldcast {' '.join(command.path)}`"
        for command in COMMANDS
        if name in [option.name for option in command.options]
        or (command.settings and name in settings())
    )
    return f"It belongs to {listed}." if listed else ""
