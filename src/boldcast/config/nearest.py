"""The valid names nearest to a name that is not valid, for «did you mean».

Example
-------
>>> did_you_mean("stepz", ["train.steps", "train.loss"])
'Did you mean `train.steps`?'
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_ALIKE = 0.6
_AS_GOOD = 0.08
_MOST = 3


def nearest(name: str, valid: Iterable[str]) -> list[str]:
    """Return up to three valid names that resemble ``name``, best first.

    A valid name is compared whole and by its last dotted part, whichever is closer; names clearly
    less alike than the best one are left out.
    """
    scored = sorted(((_likeness(name, candidate), candidate) for candidate in valid), reverse=True)
    if not scored or scored[0][0] < _ALIKE:
        return []
    best = scored[0][0]
    return [candidate for score, candidate in scored if score >= max(_ALIKE, best - _AS_GOOD)][
        :_MOST
    ]


def did_you_mean(name: str, valid: Iterable[str], *, flag: str = "") -> str:
    """Return ``Did you mean …?`` with ``flag`` before each name, or nothing if none is near."""
    found = [f"`{flag}{candidate}`" for candidate in nearest(name, valid)]
    if not found:
        return ""
    return f"Did you mean {' or '.join(found)}?"


def _likeness(name: str, candidate: str) -> float:
    name, candidate = name.lower().replace("-", "_"), candidate.lower()
    whole = SequenceMatcher(None, name, candidate).ratio()
    # A bare leaf is often typed where the full name is needed, and in the wrong section.
    parts = SequenceMatcher(None, name.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
    return max(whole, parts - 0.01 if "." in name else parts)
