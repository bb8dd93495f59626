"""Why two runs parted: the fields in which their records differ, the likeliest cause first.

What can change bits and what cannot stands in `boldcast.record.rules`; here it is applied.

Example
-------
>>> a = {"requested": {"config": {"seed": 1}}}
>>> b = {"requested": {"config": {"seed": 2}}}
>>> ranked(a, b)[0].rule
'seed'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from boldcast.record.differences import Difference, differences
from boldcast.record.rules import RULES, Rule, Setting

FAST = Rule(
    "fast level", "", 45,
    "At the level fast nothing is promised: kernels that add in the order in which threads arrive "
    "part two runs of one and the same record.",
)  # fmt: skip
OTHER = Rule("unknown field", ".*", 35, "No rule knows this field.")

_COMPILED = tuple((rule, re.compile(rule.paths)) for rule in RULES)


@dataclass(frozen=True)
class Cause:
    """One differing field with what is known about it."""

    rank: int
    field: str
    a: Any
    b: Any
    rule: str
    weight: int
    why: str

    @property
    def can_change_bits(self) -> bool:
        """Whether the field can be what parted the runs."""
        return self.weight > 0


def ranked(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Cause]:
    """Return the fields in which two manifests differ, ordered by how likely each parted them.

    Raises
    ------
    DataRefused
        If they differ in more fields than two runs can.
    """
    found = list(differences(a, b))
    setting = Setting(
        levels=(_level(a), _level(b)),
        world_sizes=(_world_size(a), _world_size(b)),
        differing=frozenset(difference.path for difference in found),
        known_code=all(isinstance(_at(m, "code", "source_digest"), str) for m in (a, b)),
        known_data=all(isinstance(_at(m, "data", "digest"), str) for m in (a, b)),
    )
    judged = [(difference, *_judge(difference, setting)) for difference in found]
    if "fast" in setting.levels:
        values = Difference("numerics.level", *setting.levels)
        judged.append((values, FAST, FAST.weight))
    judged.sort(key=lambda entry: (-entry[2], entry[0].path))
    return [
        Cause(rank, d.path, d.a, d.b, rule.name, weight, rule.why)
        for rank, (d, rule, weight) in enumerate(judged, start=1)
    ]


def _judge(difference: Difference, setting: Setting) -> tuple[Rule, int]:
    for rule, pattern in _COMPILED:
        if pattern.fullmatch(difference.path) and rule.when(difference, setting):
            # What only one record knows may well be equal: it comes behind what surely differs.
            doubt = 0 if difference.known or not rule.weight else 30
            return rule, max(rule.weight - doubt, min(rule.weight, 1))
    return OTHER, OTHER.weight


def _level(manifest: Mapping[str, Any]) -> str:
    return str(_at(manifest, "numerics", "level"))


def _world_size(manifest: Mapping[str, Any]) -> int:
    size = _at(manifest, "parallel", "world_size")
    return size if isinstance(size, int) else 0


def _at(manifest: Mapping[str, Any], block: str, name: str) -> Any:
    place = manifest.get(block)
    return place.get(name) if isinstance(place, Mapping) else None
