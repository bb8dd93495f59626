"""Split: whole subjects and families, nothing on both sides."""

from __future__ import annotations

import pytest

from boldcast.data.split import Member, assign, describe, refuse_overlap
from boldcast.errors import DataRefused


def members(*rows: tuple[str, str | None, str | None]) -> list[Member]:
    return [Member(*row, sha256=f"{index:064d}") for index, row in enumerate(rows)]


def test_held_out_names_decide_before_the_list() -> None:
    rows = members(("a", None, "train"), ("b", None, "held_out"), ("a", None, "train"))
    assert assign(rows, ("a",)) == ("held_out", "train", "held_out")
    assert assign(rows, ()) == ("train", "held_out", "train")


def test_a_subject_on_both_sides_is_refused() -> None:
    rows = members(("007", None, "train"), ("007", None, "held_out"))
    with pytest.raises(
        DataRefused, match="every subject on one side, but 007 .subjects 007. is both"
    ):
        assign(rows, ())


def test_a_family_on_both_sides_is_refused() -> None:
    rows = members(("a", "F1", None), ("b", "F1", None), ("c", "F2", None))
    with pytest.raises(DataRefused, match="every family on one side, but F1 .subjects a, b"):
        assign(rows, ("a",))
    assert assign(rows, ("a", "b")) == ("held_out", "held_out", "train")


def test_a_copied_file_on_both_sides_is_refused() -> None:
    rows = [Member("a", None, "train", "5" * 64), Member("b", None, "held_out", "5" * 64)]
    with pytest.raises(
        DataRefused, match=r"every file content on one side, but 5{64} \(subjects a, b\)"
    ):
        assign(rows, ())


def test_overlap_is_refused_for_any_sides() -> None:
    rows = members(("a", None, None), ("a", None, None))
    with pytest.raises(DataRefused, match="subject"):
        refuse_overlap(rows, ("train", "held_out"))
    refuse_overlap(rows, ("train", "train"))


@pytest.mark.parametrize(("held_out", "word"), [(("a", "b"), "train on"), ((), "hold out")])
def test_an_empty_side_is_refused(held_out: tuple[str, ...], word: str) -> None:
    rows = members(("a", None, "train"), ("b", None, "train"))
    with pytest.raises(DataRefused, match=word):
        assign(rows, held_out)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(DataRefused, match="has `sub-011`. Did you mean `sub-01`"):
        assign(members(("sub-01", None, None), ("sub-02", None, None)), ("sub-011",))


def test_a_scan_without_side_is_refused() -> None:
    with pytest.raises(DataRefused, match="subject b has none"):
        assign(members(("a", None, "train"), ("b", None, None)), ())


def test_claims_are_those_that_families_allow() -> None:
    assert "subject-disjoint (family unknown)" in describe(members(("a", None, None)))
    assert "1 of 2" in describe(members(("a", "F", None), ("b", None, None)))
    assert "family-disjoint" in describe(members(("a", "F", None)))
