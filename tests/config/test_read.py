"""A configuration file that cannot be read is refused with its place and what is nearby."""

from pathlib import Path

import pytest

from boldcast.config.read import preset
from boldcast.config.resolve import resolve
from boldcast.errors import UsageRefused


def refusal(path, overrides=None):
    with pytest.raises(UsageRefused) as caught:
        resolve(path, overrides or {})
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("a = 1\nb = \n", 2, 5, "Invalid value"),
        ("seed = 1 2\n", 1, 10, "Expected newline"),
        ("[train\n", 1, 7, "Expected ']'"),
        ('name = "x', 1, 10, "Unterminated string"),
        ('name = "a"\nname = "b"\n', 2, 11, "a second time"),
        ("[train]\nsteps = 1\n[train]\n", 3, 7, "a second time"),
    ],
)
def test_broken_toml_is_refused_with_line_column_and_reason(toml, text, line, column, why):
    (problem,) = refusal(toml(text))
    assert f"on line {line}, column {column}: " in problem
    assert why in problem
    source, caret = problem.splitlines()[-2:]
    assert source.strip() == text.splitlines()[line - 1].strip()
    assert caret.index("^") - 4 == column - 1


def test_problems_of_overrides_are_reported_beside_a_broken_file(toml):
    first, second = refusal(toml("a ="), {"train.stepz": "1"})
    assert "must be TOML" in first
    assert "train.steps" in second


def test_a_missing_file_names_the_files_nearby(tmp_path):
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "other.toml").write_text("")
    (problem,) = refusal(tmp_path / "mime.toml")
    assert "does not exist" in problem
    assert "mine.toml" in problem
    assert "other.toml" not in problem


def test_a_missing_file_in_a_folder_without_any_names_those_of_boldcast(tmp_path):
    (problem,) = refusal(tmp_path / "no" / "mime.toml")
    assert str(preset("tiny")) in problem


def test_a_folder_is_refused(tmp_path):
    (problem,) = refusal(tmp_path)
    assert "is a folder" in problem


def test_text_that_is_not_utf8_is_refused_with_its_line(toml):
    (problem,) = refusal(toml(b'seed = 1\nname = "\xff"\n'))
    assert "on line 2, byte 17" in problem


def test_a_file_of_another_kind_is_refused_by_its_size(toml):
    (problem,) = refusal(toml(b"\0" * (1 << 21)))
    assert "at most 1 MiB, but is larger" in problem


def test_a_byte_order_mark_and_windows_line_ends_are_read(toml):
    assert resolve(toml(b"\xef\xbb\xbfseed = 3\r\n[train]\r\nsteps = 300\r\n"), {}).seed == 3


def test_presets_lie_in_the_run_folder_of_a_checkout():
    assert preset("tiny").parent == Path(__file__).resolve().parents[2] / "run"
