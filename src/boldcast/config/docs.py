"""What can be set: every setting with its type, bounds, default and sentence, read from ``schema``.

The sentence is the string under the field, which Python throws away at run time, so it is read
from the source of ``schema`` with ``ast``. Help texts, messages and the resolved TOML use it.

Example
-------
>>> settings()["train.steps"].type_text
'integer, at least 1'
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from boldcast.config import schema
from boldcast.config.rules import Each, Instead, Range
from boldcast.config.schema import Config

Scalar = bool | int | float | str
Value = Scalar | None | tuple[Scalar, ...]

_KINDS = {bool: "true or false", int: "integer", float: "number", str: "text"}
_UNITS = {"t_r": "s", "timeout_s": "s", "bucket_cap_mb": "MiB"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting: how it is named, what it takes, and what it means."""

    name: str
    """``section.name``, or ``name`` at the top level."""

    type_text: str
    """What values it takes, in words."""

    default: Value
    """Value when nothing sets it."""

    doc: str
    """Its sentence, unit included, on one line."""

    base: type
    """``bool``, ``int``, ``float`` or ``str``; for a list, of its elements."""

    many: bool = False
    """Whether it is a list."""

    optional: bool = False
    """Whether it may be unset (``none``)."""

    choices: tuple[str, ...] = ()
    """The only values allowed, for a text of fixed choices."""

    bounds: Range = Range()
    """Bounds of the number, or of each element of the list."""

    ascending: bool = False
    """Whether a list must rise strictly."""

    min_length: int = 0
    """Fewest elements of a list."""

    instead: tuple[tuple[str, str], ...] = ()
    """Values that are asked for elsewhere, each with what to do here."""

    @property
    def section(self) -> str:
        """The section, empty at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The name without its section."""
        return self.name.rpartition(".")[2]

    @property
    def unit(self) -> str:
        """Unit to print behind a value, where it is not a plain count or ratio."""
        return _UNITS.get(self.leaf, "")


def field_docs() -> list[Setting]:
    """Return every setting in the order of the schema, top level first."""
    return list(settings().values())


@cache
def settings() -> Mapping[str, Setting]:
    """Return every setting by its full name, in the order of the schema, top level first."""
    docs = _sentences()
    found = _of_class(Config, "", docs)
    for section in sections():
        found += _of_class(_section_class(section), section, docs)
    return types.MappingProxyType({setting.name: setting for setting in found})


@cache
def sections() -> Mapping[str, str]:
    """Return the sentence of every section by the section's name."""
    names = [f.name for f in dataclasses.fields(Config) if _is_section(f.name)]
    return types.MappingProxyType({n: inspect.getdoc(_section_class(n)) or "" for n in names})


def _is_section(name: str) -> bool:
    return dataclasses.is_dataclass(_hints(Config)[name])


def _section_class(section: str) -> type:
    found: type = _hints(Config)[section]
    return found


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


def _of_class(owner: type, section: str, docs: Mapping[tuple[str, str], str]) -> list[Setting]:
    """Describe the settings of one dataclass; its nested sections are left out."""
    prefix = f"{section}." if section else ""
    return [
        _describe(
            f"{prefix}{field.name}",
            _hints(owner)[field.name],
            cast(Value, field.default),
            docs[owner.__name__, field.name],
        )
        for field in dataclasses.fields(owner)
        if not dataclasses.is_dataclass(_hints(owner)[field.name])
    ]


def _describe(name: str, hint: Any, default: Value, doc: str) -> Setting:
    bounds, ascending, min_length = Range(), False, 0
    instead: tuple[tuple[str, str], ...] = ()
    if get_origin(hint) is Annotated:
        hint, rule = get_args(hint)
        if isinstance(rule, Instead):
            instead = rule.answers
        elif isinstance(rule, Each):
            bounds, ascending, min_length = rule.bounds, rule.ascending, rule.min_length
        else:
            bounds = rule
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        hint = next(part for part in get_args(hint) if part is not type(None))
    choices: tuple[str, ...] = get_args(hint) if get_origin(hint) is Literal else ()
    many = get_origin(hint) is tuple
    base = str if choices else get_args(hint)[0] if many else hint
    if base not in _KINDS:
        raise TypeError(f"{name} has the type {hint}, which this reader does not know")
    text = _type_text(base, bounds, many, optional, choices, ascending)
    return Setting(
        *(name, text, default, doc, base, many, optional),
        choices=choices,
        bounds=bounds,
        ascending=ascending,
        min_length=min_length,
        instead=instead,
    )


def _type_text(
    base: type, bounds: Range, many: bool, optional: bool, choices: tuple[str, ...], rising: bool
) -> str:
    limits = bounds_text(bounds)
    if choices:
        text = "one of " + ", ".join(f"`{choice}`" for choice in choices)
    elif many:
        text = f"list of {_KINDS[base]}s" if base is not str else "list of texts"
        text += f", each {limits}" if limits else ""
        text += ", rising" if rising else ""
    else:
        text = _KINDS[base] + (f", {limits}" if limits else "")
    return text + (", or none" if optional else "")


def bounds_text(bounds: Range) -> str:
    """Say a range in words; empty when it has no bound."""
    parts = []
    if bounds.low is not None and bounds.high is not None and not bounds.above:
        return f"from {bounds.low:.16g} to {bounds.high:.16g}"
    if bounds.low is not None:
        parts.append(f"{'greater than' if bounds.above else 'at least'} {bounds.low:.16g}")
    if bounds.high is not None:
        parts.append(f"at most {bounds.high:.16g}")
    return " and ".join(parts)


def _sentences() -> dict[tuple[str, str], str]:
    """Return the string under every field of the schema, by class and field name."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[node.name, field.target.id] = " ".join(str(below.value.value).split())
    return found
