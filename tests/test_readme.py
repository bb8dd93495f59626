"""The README cannot rot: what it names exists, and what it shows is what the program says."""

import hashlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from boldcast import __version__, errors
from boldcast.cli import help as texts
from boldcast.cli.argv import find_command, parse
from boldcast.cli.specs import COMMANDS
from boldcast.config.docs import sections, settings
from boldcast.config.resolve import batch_arithmetic, resolve
from boldcast.data.fetch import SUBJECTS, TERMS_TEXT
from boldcast.data.readers import known_suffixes
from boldcast.data.scan_list import COLUMNS
from boldcast.errors import UsageRefused
from boldcast.files import canonical_json

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
CODE = [line[4:] for line in TEXT.splitlines() if line.startswith("    ")]
FILES_LIKE_SETTINGS = {"model.safetensors"}


def section(title):
    """Return the text under a heading, up to the next of the same or a higher level."""
    found = re.search(rf"^(#+) {title}\n(.*?)(?=^#{{1,2}} |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return found[2]


def rows(text):
    """Return the cells of a table's body."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def command_lines():
    """Return the words behind ``boldcast`` of every command line in a code block or in code."""
    shown = [line.removeprefix("$ ") for line in CODE]
    shown = [line for line in shown if line.startswith("boldcast ")]
    # In running text upper-case words stand for something of the reader's; those are not parsed.
    inline = [text for text in re.findall(r"`(boldcast [^`]+)`", TEXT) if text.lower() == text]
    # A name alone is no command line.
    names = {" ".join(("boldcast", *command.path)) for command in COMMANDS}
    inline = [line for line in inline if line not in names]
    return [shlex.split(line, comments=True)[1:] for line in dict.fromkeys(shown + inline)]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Stand where the reader stands: beside run/ and the files that the README shows."""
    (tmp_path / "run").symlink_to(ROOT / "run")
    for kind, content in FENCED:
        if kind == "toml":
            (tmp_path / "study.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_every_command_line_is_understood(reader, words):
    if words == ["--version"] or words[-1] == "--help":
        assert words[:1] == ["--version"] or find_command(words)[0]
        return
    if "--stepz" in words:
        with pytest.raises(UsageRefused) as refused:
            parse(words)
        shown = [f"    - {problem}" for problem in refused.value.problems]
        assert "\n".join(shown) in TEXT
        return
    assert parse(words).command.path == find_command(words)[0].path


def test_there_are_command_lines_to_look_at():
    assert len(command_lines()) > 12


def test_the_table_of_commands_is_that_of_the_program():
    shown = {command: does for command, does in rows(section("Commands").split("###")[0])}
    for command in COMMANDS:
        usage = next(c for c in shown if c.startswith(f"`boldcast {' '.join(command.path)}"))
        assert shown.pop(usage).split(". Without")[0].rstrip(".") == command.summary.rstrip(".")
    assert shown == {}


def test_the_exit_codes_are_those_of_the_errors():
    codes = {kind.exit_code for kind in errors.BoldcastError.__subclasses__()}
    codes |= {0, errors.BoldcastError.exit_code}
    table = rows(section("Exit codes"))
    assert [int(code) for code, *_ in table] == sorted(codes)
    said = " ".join(texts.overview().split())
    for code, meaning, _ in table:
        assert re.search(rf"[:,] {code} {re.escape(meaning)}[,.]", said), code


def test_every_path_of_the_repository_exists():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    named = re.findall(r"(?<![\w/.:-])\.?/?((?:run|src|tests|container|manifests)/[\w./-]+)", TEXT)
    assert {"run/example", "run/test", "run/example.png"} <= {*links, *named}
    for path in {*links, *named}:
        assert (ROOT / path.rstrip(".")).exists(), path


def test_every_link_within_the_page_leads_to_a_heading():
    headings = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    targets = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert targets
    assert targets <= anchors


def test_every_setting_exists():
    pattern = rf"(?<![\w/.])(?:--)?((?:{'|'.join(sections())})\.[a-z_0-9]+)"
    named = set(re.findall(pattern, TEXT)) - FILES_LIKE_SETTINGS
    assert len(named) > 8
    assert named <= set(settings())


def test_every_flag_of_running_text_belongs_to_a_command():
    options = {option.name for command in COMMANDS for option in command.options}
    known = options | set(settings()) | {"help", "version"}
    for flag in re.findall(r"`--([a-z_.]+)", TEXT):
        assert flag in known or flag == "stepz", flag


def test_the_configuration_that_is_shown_resolves(reader):
    assert resolve(Path("study.toml"), {}).name == "study"


def test_the_scan_list_that_is_shown_has_known_columns():
    lists = [content.splitlines() for kind, content in FENCED if kind == "tsv"]
    header = lists[0][0].split("\t")
    assert set(header) <= set(COLUMNS)
    assert all(len(line.split("\t")) == len(header) for line in lists[0][1:])


def test_every_format_that_can_be_read_is_in_the_table_and_no_other():
    first = [cells[0] for cells in rows(section("Your own data"))]
    assert set(re.findall(r"`(\.[\w.]+)`", " ".join(first))) == set(known_suffixes())


def test_the_example_is_the_one_whose_numbers_are_shown():
    # If this fails, the example was changed: run it again and replace the picture, the table, the
    # printed scores and, last, this digest.
    example = tomllib.loads((ROOT / "run/example.toml").read_text())
    digest = hashlib.sha256(canonical_json(example)).hexdigest()
    assert digest == "fb1f32841f3746f43d9ced173060cef192e2127c212da7449630499b9a113e1f"


def test_the_table_of_scores_holds_the_printed_scores():
    printed = {
        line.split()[0]: line.split()[1:]
        for line in CODE
        if re.fullmatch(r"\w+ +\d\.\d{4} \d\.\d{4}", line)
    }
    assert {tuple(cells[1:]) for cells in rows(section("The bar"))} == {
        tuple(values) for values in printed.values()
    }
    assert set(printed) == {"model", "ar8_var2", "var2", "ar8", "persistence", "scan_mean"}


def test_the_batch_arithmetic_is_the_example_s():
    assert f"    # {batch_arithmetic(resolve(None, {}), 2)}\n" in TEXT


def test_the_acknowledgement_is_the_one_that_travels_with_the_data():
    quoted = " ".join(re.findall(r"^> (.*)$", TEXT, re.MULTILINE))
    assert quoted in " ".join(TERMS_TEXT.split())
    assert quoted.startswith("Data were provided")
    assert quoted.endswith("Washington University.")
    assert len(SUBJECTS) == 7
    assert "seven real subjects" in TEXT


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
