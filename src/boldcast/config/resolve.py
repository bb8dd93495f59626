"""Turn a TOML file and command-line overrides into one frozen ``Config``, or one refusal.

Strict, because a misspelt setting must not train for eight hours with its default: unknown names,
wrong types, bounds and contradictions between settings are all found before anything starts, and
all reported together. What is not set anywhere keeps the default of ``schema``.

Example
-------
>>> resolve(None, {"train.steps": "20", "optim.warmup_steps": "2"}).train.steps
20
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boldcast.config.check import batch_arithmetic, check_world, problems
from boldcast.config.coerce import Unfit, from_text, from_toml, show
from boldcast.config.docs import Setting, Value, field_docs, sections, settings
from boldcast.config.nearest import did_you_mean
from boldcast.config.read import preset, read_toml
from boldcast.config.render import as_dict, digest, to_toml
from boldcast.config.schema import Config
from boldcast.errors import UsageRefused

__all__ = [
    "Setting",
    "as_dict",
    "batch_arithmetic",
    "check_world",
    "digest",
    "field_docs",
    "preset",
    "resolve",
    "to_toml",
]


def resolve(path: Path | None, overrides: Mapping[str, str]) -> Config:
    """Read a configuration file, apply the overrides, and check everything.

    Parameters
    ----------
    path : Path or None
        TOML file; None takes the example that comes with boldcast.
    overrides : mapping of str to str
        Values by full setting name (``train.steps``), as typed on the command line; they win
        over the file.

    Returns
    -------
    Config
        Every setting, typed and within its bounds.

    Raises
    ------
    UsageRefused
        With one sentence for every problem of file and overrides together.
    """
    reading = _Reading()
    file = preset("example") if path is None else path
    try:
        table = read_toml(file)
    except UsageRefused as refused:
        # Without a file, rules between settings would judge values that nobody asked for.
        reading.add_overrides(overrides)
        raise UsageRefused([*refused.problems, *reading.found]) from None
    reading.add_file(table, file)
    reading.add_overrides(overrides)
    config = _build(reading.values)
    found = reading.found + problems(config, reading.unsound)
    if found:
        raise UsageRefused(found)
    return config


def _build(values: Mapping[str, Value]) -> Config:
    tops: dict[str, Any] = {name: v for name, v in values.items() if "." not in name}
    for section in sections():
        default = next(f for f in dataclasses.fields(Config) if f.name == section)
        inside = {
            name.partition(".")[2]: value
            for name, value in values.items()
            if name.startswith(f"{section}.")
        }
        assert callable(default.default_factory)
        tops[section] = dataclasses.replace(default.default_factory(), **inside)
    return Config(**tops)


class _Reading:
    """Values read so far, the problems met, and the settings these problems are about."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.found: list[str] = []
        self.unsound: set[str] = set()

    def add_file(self, table: Mapping[str, Any], file: Path) -> None:
        for key, value in table.items():
            if key not in sections():
                self._add_toml(key, value, file)
            elif isinstance(value, dict):
                for leaf, inner in value.items():
                    self._add_toml(f"{key}.{leaf}", inner, file)
            else:
                self.found.append(
                    f"`{key}` must be a section, but is {show(value)}. "
                    f"Write [{key}] in `{file}` and its settings below."
                )

    def add_overrides(self, overrides: Mapping[str, str]) -> None:
        for name, text in overrides.items():
            if name not in settings():
                self._unknown(name, "on the command line")
                continue
            try:
                self.values[name] = from_text(settings()[name], text)
            except Unfit as unfit:
                self._unfit(settings()[name], unfit, f"`--{name}`")

    def _add_toml(self, name: str, value: Any, file: Path) -> None:
        if name not in settings():
            self._unknown(name, f"in `{file}`", is_section=isinstance(value, dict))
            return
        try:
            self.values[name] = from_toml(settings()[name], value)
        except Unfit as unfit:
            self._unfit(settings()[name], unfit, f"`{file}`")

    def _unknown(self, name: str, where: str, is_section: bool = False) -> None:
        self.unsound.add(name)
        if is_section:
            what = "section"
            todo = did_you_mean(name, sections()) or f"Sections are {', '.join(sections())}."
        else:
            what = "setting"
            valid = settings() if "." in name else [*settings(), *sections()]
            todo = did_you_mean(name, valid) or _names_of(name.rpartition(".")[0])
        self.found.append(f"`{name}` must be a {what} that exists, but is not ({where}). {todo}")

    def _unfit(self, setting: Setting, unfit: Unfit, where: str) -> None:
        self.unsound.add(setting.name)
        todo = f"{unfit.todo} " if unfit.todo else ""
        meaning = setting.doc.split(". ")[0].rstrip(".")
        self.found.append(
            f"`{setting.name}` must be {unfit.rule}, but is {unfit.shown} (from {where}). "
            f"{todo}It means: {meaning}."
        )


def _names_of(section: str) -> str:
    """Say what a section holds, for a name that resembles nothing."""
    names = [setting.leaf for setting in field_docs() if setting.section == section]
    if section in sections():
        return f"`{section}` has {', '.join(names)}."
    return "`boldcast train --help` lists all settings."
