"""Every setting is described by what stands in the schema, and by nothing else."""

import ast
import dataclasses
import inspect
import subprocess
import sys

import pytest

from boldcast.config import schema
from boldcast.config.docs import Setting, _describe, field_docs, sections, settings
from boldcast.config.rules import Range
from boldcast.config.schema import Config


def _defaults():
    tree = dataclasses.asdict(Config())
    flat = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    for section, inside in tree.items():
        if isinstance(inside, dict):
            flat |= {f"{section}.{name}": value for name, value in inside.items()}
    return flat


def test_every_setting_of_the_schema_is_listed_with_its_default():
    assert {s.name: s.default for s in field_docs()} == _defaults()


def test_every_field_of_the_schema_has_a_sentence_that_ends():
    unfinished = [s.name for s in field_docs() if not s.doc.endswith(".")]
    assert unfinished == []
    assert all(sections().values())


def test_sentences_are_those_under_the_field_and_not_of_a_neighbour():
    """Compare with the source itself: the sentence starts on the line below the field."""
    lines = inspect.getsource(schema).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.AnnAssign) and node.target.id == "headdim":
            below = lines[node.end_lineno].strip().strip('"')
    assert settings()["model.headdim"].doc == below


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.steps", "integer, at least 1"),
        ("optim.lr", "number, greater than 0"),
        ("model.dropout", "number, from 0 to 0.9"),
        ("data.t_r", "number, from 0.1 to 10, or none"),
        ("data.horizons", "list of integers, each at least 1, rising"),
        ("data.held_out", "list of texts"),
        ("model.layout", "one of `frame`, `region`"),
        ("log.wandb", "true or false"),
        ("seed", "integer, from 0 to 9007199254740991"),
    ],
)
def test_types_and_bounds_are_said_in_words(name, text):
    assert settings()[name].type_text == text


def test_every_optional_setting_is_unset_by_default():
    """TOML cannot write null, so an unset value round-trips only by being the default."""
    assert [s.name for s in field_docs() if s.optional and s.default is not None] == []


def test_a_type_that_cannot_be_read_is_an_error_of_the_programmer():
    with pytest.raises(TypeError, match="x.y"):
        _describe("x.y", complex, None, "")


def test_upper_bound_alone_is_said():
    setting = Setting("x", "", 0, "", int, bounds=Range(None, 5))
    assert setting.bounds.low is None
    from boldcast.config.docs import bounds_text

    assert bounds_text(setting.bounds) == "at most 5"


def test_reading_a_configuration_imports_nothing_heavy():
    code = (
        "import sys; from boldcast.config.resolve import resolve; resolve(None, {});"
        "print({'torch', 'numpy', 'scipy', 'nibabel', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
