import json
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

from boldcast.score.page import HCP
from boldcast.score.report import write_figure, write_report


class Strict(HTMLParser):
    """Checks nesting, and gathers tags with their attributes and the text of each."""

    VOID = {"meta", "br", "hr", "img"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def rendered(folder):
    return write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("horizons", [(1,), (1, 3), (1, 2, 3, 4, 5, 6)])
def test_the_page_is_well_formed_and_needs_nothing_from_outside(run_folder, tmp_path, horizons):
    text = rendered(run_folder(tmp_path / "run", horizons=horizons))
    page = Strict(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "img", "object", "base"}
    assert "http:" not in text
    assert "https:" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "srcset", "action", "onload"}
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("xlink:href", "#").startswith("#")
    defined = re.findall(r'\sid="([^"]*)"', text)
    sections = [i for i in defined if i in {"verdict", "loss", "scores", "traces", "regions"}]
    assert sections == ["verdict", "loss", "scores", "traces", "regions"]


def test_every_picture_has_an_alternative_text_with_numbers(run_folder, tmp_path):
    page = Strict(rendered(run_folder(tmp_path / "run")))
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 8
    assert all(p["role"] == "img" and re.search(r"\d", p["aria-label"]) for p in pictures)


def test_words_from_files_stay_words(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run", name="</title><b>x")
    text = rendered(folder)
    page = Strict(text)
    words = "".join(page.words)
    assert "<script>" not in text
    assert "<b>loud" not in text
    for shown in ("<script>alert(1)</script>", 'a"onload="x', "$\\frac{$", "脑区", "&amp;"):
        assert shown in words
    assert "</title><b>x" in words
    assert not re.search("[\x00-\x08\x1b\u202e]", text)
    assert "\N{REPLACEMENT CHARACTER}" in words


def test_a_forecaster_with_a_hostile_name_is_drawn_in_plain_characters(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    text = (folder / "evaluation.json").read_text()
    name = json.dumps("$\\frac{<b>脑\x00$")
    (folder / "evaluation.json").write_text(text.replace('"var2"', name))
    text = rendered(folder)
    Strict(text)
    assert "$\\frac{&lt;b&gt;??$" in text
    assert "<b>?" not in text


def test_the_bytes_depend_on_the_files_alone(run_folder, tmp_path):
    first = write_report(run_folder(tmp_path / "a")).read_bytes()
    with mpl.rc_context({"font.size": 30, "xtick.major.pad": 20, "svg.image_inline": False}):
        second = write_report(run_folder(tmp_path / "b b")).read_bytes()
    assert first == second
    code = "import sys; from pathlib import Path; from boldcast.score.report import *\n"
    code += "write_report(Path(sys.argv[1])); assert 'matplotlib.pyplot' not in sys.modules"
    (tmp_path / "a" / "report.html").unlink()
    subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path / "a"], check=True)
    assert (tmp_path / "a" / "report.html").read_bytes() == first
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "config.toml",
        "evaluation.json",
        "history.json",
        "report.html",
        "trace.jsonl",
    ]


def test_a_sealed_manifest_of_a_completed_run_does_not_change_the_page(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    before = rendered(folder)
    (folder / "manifest.json").write_text('{"id": "x", "results": {"status": "completed"}}')
    assert rendered(folder) == before


def test_importing_the_report_loads_no_matplotlib_and_no_torch():
    code = "import sys, boldcast.score.report; print(*{'matplotlib', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_scores_in_the_table_are_those_of_the_file(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    text = rendered(folder)
    row = evaluation["scores"]["ar8"][1]
    cells = "".join(
        f"<td>{row[k]:.3f}</td>".replace("-", "\N{MINUS SIGN}")
        for k in ("mse", "r2", "r", "r_region_mean")
    )
    assert f"<td>AR(8) per region</td>{cells}" in text
    assert "3 volumes ahead (2.16 s)" in text


def test_synthetic_data_are_said_loudly_and_hcp_data_acknowledged(run_folder, tmp_path):
    real = rendered(run_folder(tmp_path / "real"))
    assert HCP in real
    assert 'class="alarm"' not in real
    made_up = rendered(run_folder(tmp_path / "made", source="synthetic"))
    assert HCP not in made_up
    assert made_up.index("No brain was measured") < made_up.index("<h1>")


def test_an_unfinished_run_gives_a_shorter_honest_page(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run", finished=False)
    with (folder / "trace.jsonl").open("a") as stream:
        stream.write('{"step": 13, "lo')
    text = rendered(folder)
    Strict(text)
    assert "This run has not finished." in text
    assert "Step 12 of 12 is recorded." in text
    assert 'id="scores"' not in text
    assert "Passed" not in text
    (folder / "manifest.json").write_text('{"results": {"status": "failed"}}')
    assert "This run failed before its end." in rendered(folder)


def test_a_run_that_has_only_a_config_and_one_that_diverged_still_have_a_page(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run", finished=False)
    with (folder / "trace.jsonl").open("a") as stream:
        stream.write('{"step": 13, "loss": "nan"}\n')
    diverged = rendered(folder)
    Strict(diverged)
    # The label at the curve's end: the mean of its last two finite losses, 1/11 and 1/12.
    assert "Training 0.087" in diverged
    (folder / "trace.jsonl").unlink()
    (folder / "history.json").unlink()
    text = rendered(folder)
    assert "It has not been validated yet." in text
    assert "<svg" not in text


def test_the_figure_is_a_png_of_the_same_bytes_each_time(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    first = write_figure(folder, tmp_path / "a.png").read_bytes()
    assert write_figure(folder, tmp_path / "b.png").read_bytes() == first
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", first[16:24]) == (int(12.4 * 160), int(3.9 * 160))
