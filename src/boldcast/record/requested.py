"""What was asked for, in the form in which it is recorded: no subject, no place on a machine.

Of a configuration two kinds of settings are not recorded as they stand: subjects become their
salted hashes, the same ones as in ``data.files``, and an absolute path keeps its last part alone.
The digest beside it is that of the configuration itself, so it can be recomputed from a record only
where nothing was replaced, and from the run's ``config.toml`` always.

Example
-------
>>> asked = {"data": {"held_out": ["007"], "source": "/home/ann/scans.tsv"}}
>>> recorded_config(asked, salt="s")["data"]["source"]
'<path>/scans.tsv'
>>> stands_for_more(recorded_config(asked, salt="s"))
True
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from boldcast.record.privacy import hashed_subject, hide_place

SUBJECTS = "data.held_out"
"""The setting that names subjects."""

PLACES = ("data.source", "model.coordinates")
"""The settings that may be paths."""

HASHED = re.compile("[0-9a-f]{16}")
_PATH_FLAGS = frozenset({*PLACES, "run_dir", "data", "config"})
_NAME = re.compile(r"[^,\[\]\"'\s][^,\[\]\"']*[^,\[\]\"'\s]|[^,\[\]\"'\s]")


def recorded_config(
    config: Mapping[str, Any], salt: str, subjects: Collection[str] = ()
) -> dict[str, Any]:
    """Return a configuration as it is recorded.

    Parameters
    ----------
    config : mapping
        Every setting, nested by section.
    salt : str
        See `boldcast.record.privacy.subject_salt`.
    subjects : collection of str
        Subjects of the data; one that a path is named after is hashed there too.
    """
    recorded = copy.deepcopy(dict(config))
    for name in (SUBJECTS, *PLACES):
        section, leaf = name.split(".")
        value = recorded.get(section, {}).get(leaf)
        if name == SUBJECTS and value:
            recorded[section][leaf] = [hashed_subject(subject, salt) for subject in value]
        elif isinstance(value, str):
            recorded[section][leaf] = _without(hide_place(value), salt, subjects)
    return recorded


def recorded_argv(argv: Sequence[str], salt: str, subjects: Collection[str] = ()) -> list[str]:
    """Return a command line with the subjects in it hashed; its places are hidden when sealing."""
    recorded, flag = [], ""
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flag = name[2:].replace("-", "_")
            value = _value(flag, value, salt, subjects)
            recorded.append(f"{name}{equals}{value}" if equals else word)
            flag = "" if equals else flag
        else:
            recorded.append(_value(flag or "config", word, salt, subjects))
            flag = ""
    return recorded


def stands_for_more(config: Mapping[str, Any]) -> bool:
    """Say whether a recorded configuration holds replacements, so that its digest is another's."""
    flat = {name: _leaf(config, name) for name in (SUBJECTS, *PLACES)}
    return bool(flat.pop(SUBJECTS)) or any(
        isinstance(value, str) and _is_replaced(value) for value in flat.values()
    )


def same_setting(name: str, written: Any, recorded: Any) -> bool:
    """Say whether a recorded setting can stand for what ``config.toml`` holds, without a salt."""
    if name == SUBJECTS and isinstance(written, list) and isinstance(recorded, list):
        hashes = all(isinstance(item, str) and HASHED.fullmatch(item) for item in recorded)
        return hashes and len(written) == len(recorded)
    if name in PLACES and isinstance(recorded, str) and _is_replaced(recorded):
        return isinstance(written, str)
    return repr(written) == repr(recorded)


def _leaf(config: Mapping[str, Any], name: str) -> Any:
    section, leaf = name.split(".")
    block = config.get(section)
    return block.get(leaf) if isinstance(block, Mapping) else None


def _is_replaced(place: str) -> bool:
    return place.startswith("<path>") or "<subject " in place


def _value(flag: str, value: str, salt: str, subjects: Collection[str]) -> str:
    if flag == SUBJECTS:
        return _NAME.sub(lambda match: hashed_subject(match[0], salt), value)
    return _without(value, salt, subjects) if flag in _PATH_FLAGS else value


def _without(text: str, salt: str, subjects: Collection[str]) -> str:
    """Replace the names of subjects that stand as whole words."""
    known = "|".join(re.escape(name) for name in sorted(subjects, key=len, reverse=True) if name)
    if not known:
        return text
    return re.sub(
        rf"(?<![A-Za-z0-9])(?:{known})(?![A-Za-z0-9])",
        lambda match: f"<subject {hashed_subject(match[0], salt)}>",
        text,
    )
