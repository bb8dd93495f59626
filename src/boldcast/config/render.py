"""A resolved configuration as a dictionary, as commented TOML, and as one digest.

Example
-------
>>> from boldcast.config.schema import Config
>>> as_dict(Config(seed=7))["seed"]
7
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from dataclasses import asdict
from typing import Any

from boldcast.config.coerce import show
from boldcast.config.docs import Setting, field_docs, sections
from boldcast.config.schema import Config

_WIDTH = 96


def as_dict(config: Config) -> dict[str, Any]:
    """Return every setting as plain JSON values: nested dictionaries, lists, no tuples."""
    plain: dict[str, Any] = _listed(asdict(config))
    return plain


def digest(config: Config) -> str:
    """Return the SHA-256 of the canonical JSON of ``config``, with floats as hexadecimal text.

    Two configurations have one digest exactly if every setting is the same, bit for bit.
    """
    # The bytes of `files.canonical_json`, which is a neighbour and not below (a test compares).
    text = json.dumps(
        _hexed(as_dict(config)),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode() + b"\n").hexdigest()


def to_toml(config: Config) -> str:
    """Return ``config`` as TOML that holds every setting, each under its sentence.

    Reading the text back gives an equal configuration. TOML has no null, so an unset setting
    stands as a comment.
    """
    lines = ["# Resolved by boldcast: every setting of this run, defaults included.", ""]
    values = as_dict(config)
    section = ""
    for setting in field_docs():
        if setting.section != section:
            section = setting.section
            lines += [*_comment(sections()[section]), f"[{section}]", ""]
        value = values[section][setting.leaf] if section else values[setting.leaf]
        lines += [*_comment(f"{setting.doc} ({_takes(setting)})"), _assign(setting, value), ""]
    return "\n".join(lines)


def _takes(setting: Setting) -> str:
    return f"{setting.type_text}; default {show(setting.default)}"


def _assign(setting: Setting, value: Any) -> str:
    if value is None:
        return f"# {setting.leaf} is unset."
    return f"{setting.leaf} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Control characters were refused, so these two are all that needs escaping.
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_listed(item) for item in value]
    return value


def _hexed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hexed(item) for item in value]
    return value.hex() if isinstance(value, float) else value
