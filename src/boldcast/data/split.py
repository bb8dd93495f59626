"""Which subjects are learned from and which are held out: whole subjects, and whole families.

Windows of one subject on both sides would score memory as forecasting, so an overlap is refused
wherever it could come from: the same subject, the same family, the same file under another name.

Example
-------
>>> assign([Member("a", None, "train"), Member("b", None, None)], held_out=("b",))
('train', 'held_out')
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from boldcast.errors import DataRefused

Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Member:
    """One scan as the split sees it: its subject, its family, its list's word, its file."""

    subject: str
    family: str | None
    listed: str | None
    sha256: str = ""


def assign(members: Sequence[Member], held_out: Sequence[str]) -> tuple[Split, ...]:
    """Return the side of each scan, and refuse a split that leaks or leaves a side empty.

    Parameters
    ----------
    members : sequence of Member
        The scans.
    held_out : sequence of str
        The setting ``data.held_out``; empty: the ``split`` column of the list decides.

    Raises
    ------
    DataRefused
        If a name is unknown, a scan has no side, a side is empty, or the sides overlap.
    """
    sides = _by_name(members, held_out) if held_out else _by_list(members)
    for side, word in (("train", "train on"), ("held_out", "hold out")):
        if side not in sides:
            raise DataRefused(
                f"`data.held_out` must leave a scan to {word}, but leaves none of "
                f"{len(members)}. Change it, or the column split of the scan list."
            )
    refuse_overlap(members, sides)
    return sides


def _by_name(members: Sequence[Member], held_out: Sequence[str]) -> tuple[Split, ...]:
    subjects = sorted({member.subject for member in members})
    for name in held_out:
        if name not in subjects:
            near = difflib.get_close_matches(name, subjects, 1)
            hint = f"Did you mean `{near[0]}`?" if near else f"There are {', '.join(subjects)}."
            raise DataRefused(f"`data.held_out` must name subjects, but has `{name}`. {hint}")
    return tuple("held_out" if member.subject in held_out else "train" for member in members)


def _by_list(members: Sequence[Member]) -> tuple[Split, ...]:
    sides: list[Split] = []
    for member in members:
        if member.listed is None:
            raise DataRefused(
                "`split` must be given for every scan when data.held_out is empty, but subject "
                f"{member.subject} has none. Set data.held_out, or fill in the column split."
            )
        sides.append("held_out" if member.listed == "held_out" else "train")
    return tuple(sides)


def refuse_overlap(members: Sequence[Member], sides: Sequence[Split]) -> None:
    """Refuse a split in which a subject, a family or a file is on both sides.

    Raises
    ------
    DataRefused
        Naming the first overlap of each kind.
    """
    problems = []
    for kind, marks, advice in (
        ("subject", [member.subject for member in members], "Put all its scans on one side."),
        ("family", [member.family for member in members], "Hold out all its members or none."),
        ("file content", [member.sha256 for member in members], "Remove the copy."),
    ):
        on = {
            side: {mark for mark, its in zip(marks, sides, strict=True) if mark and its == side}
            for side in ("train", "held_out")
        }
        if both := sorted(on["train"] & on["held_out"]):
            who = {m.subject for m, mark in zip(members, marks, strict=True) if mark == both[0]}
            problems.append(
                f"`split` must keep every {kind} on one side, but {both[0]} (subjects "
                f"{', '.join(sorted(who))}) is both trained on and held out. {advice}"
            )
    if problems:
        raise DataRefused("\n".join(problems))


def describe(members: Sequence[Member]) -> str:
    """Return what may be claimed of a split that passed, given what is known of families."""
    known = sum(member.family is not None for member in members)
    if known == len(members):
        return "The split is family-disjoint."
    if known:
        return f"The split is subject-disjoint (family known for {known} of {len(members)} scans)."
    return "The split is subject-disjoint (family unknown)."
