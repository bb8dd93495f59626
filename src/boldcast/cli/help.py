"""Help texts, made from ``specs`` and from the sentences in the schema; plain text, no pager.

Example
-------
>>> overview().splitlines()[0]
'boldcast: train Mamba-2 models that forecast fMRI BOLD signals, reproducibly to the bit.'
"""

from __future__ import annotations

import textwrap

from boldcast.cli.specs import COMMANDS
from boldcast.cli.words import Command
from boldcast.config.coerce import show
from boldcast.config.docs import field_docs, sections

_WIDTH = 98
_COLUMN = 26

_TITLE = "boldcast: train Mamba-2 models that forecast fMRI BOLD signals, reproducibly to the bit."
_EXIT_CODES = (
    "Exit codes: 0 done, 1 internal error, 2 usage or configuration refused, 3 data refused, "
    "4 acceptance not met, 5 not the same, 6 measurement invalid, 7 diverged, 75 stopped on "
    "request and resumable."
)


def overview(group: str = "") -> str:
    """Return the list of commands, all of them or those of one group."""
    chosen = [c for c in COMMANDS if not group or c.path[0] == group]
    prefix = f"boldcast {group}".strip()
    lines = [_TITLE, "", f"Usage: {prefix} COMMAND ...", "", "Commands:"]
    for command in chosen:
        lines += _row(" ".join(command.path), command.summary)
    lines += [
        "",
        "boldcast COMMAND --help   options, units and defaults of a command",
        "boldcast --version        the version",
        "",
        *textwrap.wrap(_EXIT_CODES, _WIDTH),
    ]
    return "\n".join(lines)


def of_command(command: Command) -> str:
    """Return the help of one command, with all settings where it takes them."""
    lines = [command.summary, "", f"Usage: {command.usage}", ""]
    lines += [*textwrap.wrap(command.details, _WIDTH), ""]
    if command.operand:
        lines += [*_row(command.operand.metavar, command.operand.doc), ""]
    lines.append("Options:")
    for option in command.options:
        name = f"--{option.name}" + (f" {option.metavar}" if option.metavar else "")
        lines += _row(name, f"{option.doc} Default: {option.default}.")
    lines += _row("--help, -h", "This text.")
    if command.settings:
        lines += _settings()
    return "\n".join(lines)


def _settings() -> list[str]:
    """Return every setting by section, with type, default and sentence."""
    how = "in the TOML file or as --section.name value; lists as 1,2, unset as none"
    lines = ["", f"Settings ({how}):"]
    section = None
    for setting in field_docs():
        if setting.section != section:
            section = setting.section
            title = sections()[section] if section else "The run."
            lines += ["", f"[{section}] {title}" if section else title]
        text = f"{setting.doc} ({setting.type_text}; default {show(setting.default)})"
        lines += _row(f"--{setting.name}", text)
    return lines


def _row(name: str, text: str) -> list[str]:
    """Return a name and its text in two columns; a long name gets a line of its own."""
    indent = " " * (_COLUMN + 2)
    wrapped = textwrap.wrap(
        text, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
    )
    if len(name) > _COLUMN - 1:
        return [f"  {name}", *(indent + line for line in wrapped)]
    first, *rest = wrapped
    return [f"  {name:<{_COLUMN}}{first}", *(indent + line for line in rest)]
