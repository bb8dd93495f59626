"""The fields in which two manifests differ, as named pairs of values.

Lists of objects (nodes, boards, ranks, scan files) are taken as the set of what stands in them, so
that two boards of one kind and one board of that kind do not differ in their name. What was asked
and what came out is told apart: results, attempts and the command line are no causes.

Example
-------
>>> list(differences({"seeds": {"seed": 1}}, {"seeds": {"seed": 2}}))
[Difference(path='seeds.seed', a=1, b=2)]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from boldcast.errors import DataRefused

MAX_DIFFERENCES = 2000
"""More than two runs can have; a record with more was made to keep somebody busy."""

ABSENT = {"error": "not in this record"}

_NO_CAUSE = frozenset(
    {"schema", "id", "rerun_of", "results", "attempts", "requested.argv", "requested.config_digest"}
)


@dataclass(frozen=True)
class Difference:
    """One field that two records hold with different values."""

    path: str
    """Name with its blocks; ``*`` stands for every item of a list."""
    a: Any
    b: Any

    @property
    def known(self) -> bool:
        """Whether both records hold a value, not an error."""
        return not (is_error(self.a) or is_error(self.b))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what differs between two manifests, by path, results and attempts left out.

    A field that is an error in both records is no difference, whatever its text.

    Raises
    ------
    DataRefused
        If there are more than two runs can have.
    """
    left, right = leaves(a), leaves(b)
    count = 0
    for path in sorted({*left, *right}):
        one, other = left.get(path, ABSENT), right.get(path, ABSENT)
        if _text(one) == _text(other) or (is_error(one) and is_error(other)):
            continue
        count += 1
        if count > MAX_DIFFERENCES:
            raise DataRefused(
                f"Two records must differ in at most {MAX_DIFFERENCES} fields, but these differ in "
                "more. Take the files that boldcast wrote, unchanged."
            )
        yield Difference(path, one, other)


def leaves(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value of a manifest by its path; see the module for lists."""
    collected: dict[str, list[Any]] = {}
    several: set[str] = set()
    _walk(manifest, "", False, collected, several)
    found: dict[str, Any] = {}
    for path, values in collected.items():
        if path in several:
            unique = {_text(value): value for value in values}
            found[path] = [unique[text] for text in sorted(unique)]
        else:
            found[path] = values[0]
    return found


def is_error(value: Any) -> bool:
    """Say whether a field holds an error in place of a value."""
    return isinstance(value, dict) and list(value) == ["error"]


def _is_variable(value: Mapping[str, Any]) -> bool:
    """Say whether this is an environment variable: unset, empty or set, one fact."""
    return set(value) <= {"state", "value"} and value.get("state") in ("unset", "empty", "set")


def _walk(
    value: Any, path: str, in_list: bool, found: dict[str, list[Any]], several: set[str]
) -> None:
    if path in _NO_CAUSE:
        return
    if isinstance(value, Mapping) and value and not (is_error(value) or _is_variable(value)):
        for key, item in value.items():
            _walk(item, f"{path}.{key}" if path else key, in_list, found, several)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for item in value:
            _walk(item, f"{path}.*", True, found, several)
    else:
        found.setdefault(path, []).append(value)
        if in_list:
            several.add(path)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
