"""One self-contained page about a run, from the files in its folder and nothing else.

The page needs no network, no script and no second file, follows the reader's light or dark
setting, and is the same bytes for the same files: it holds no time, host or path. Its first words
are the verdict; its last tell how to check it.

Example
-------
>>> write_report(Path("runs/example"))      # doctest: +SKIP
PosixPath('runs/example/report.html')
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from boldcast.files import write_bytes
from boldcast.score import page, pictures, signal_pictures
from boldcast.score.run_folder import RunFolder, read_run
from boldcast.score.verdict import judge, label, number

REPORT = "report.html"


def _key(series: str, kind: str = "") -> str:
    """Return a small sample of how a series is drawn, for use in running text."""
    return f'<span class="key {kind} c-{series}"></span>&nbsp;'


LOSS_CAPTION = (
    f"{_key('model')}held-out loss, measured on subjects the model never saw; "
    f"{_key('model', 'dashed')}training loss, smoothed over a twentieth of the run, its raw values "
    "faint behind it. Dotted levels are forecasts that need no training, on the same windows and "
    "positions: <em>zero</em> says the mean of z-scored data, <em>persistence</em> that the volume "
    "stays as it is, <em>window mean</em> the mean of what the window has shown so far. All are "
    "averages over the horizons; every position of a window forecasts, so the first ones have "
    "little to go by."
)
CURVES_CAPTION = (
    "The held-out loss, horizon by horizon. Far horizons often stop improving first; where a curve "
    "turns upward, the run was too long for that horizon."
)
BARS_CAPTION = (
    "Lower is better; the dotted level is the scan's own mean. AR(8) is a ridge regression of each "
    "region on its own last eight volumes{var}. Linear forecasts are the ones to beat on BOLD, so "
    "they are always shown."
)
VAR_CAPTION = (
    ", VAR(2) one of each region on the last two volumes of all, AR(8) + VAR(2) the first with the "
    "second fitted to what it leaves"
)
SCORES_EXPLAINED = (
    "<p>MSE is in squared units of the data, near 1 for the mean of z-scored signals. "
    f"{page.R2} is measured about each region's mean over its own scan: 0 is no better than that "
    "mean, which a forecast cannot know. r is Pearson's correlation of forecast and signal over "
    "all cells together, regional r the mean of each region's own.</p>"
)


def write_report(run_dir: Path) -> Path:
    """Draw a run's report into its folder, whole or not at all.

    Parameters
    ----------
    run_dir : Path
        Run folder: ``config.toml``, and as far as they exist ``trace.jsonl``, ``history.json``,
        ``evaluation.json``, ``manifest.json``.

    Returns
    -------
    Path
        ``run_dir / "report.html"``.

    Raises
    ------
    UsageRefused
        If there is no run in the folder.
    DataRefused
        If one of its files is damaged.
    """
    run = read_run(run_dir)
    out = run_dir / REPORT
    write_bytes(out, render(run).encode())
    return out


def write_figure(run_dir: Path, out: Path) -> Path:
    """Draw the loss curves and the scores by horizon as one PNG; raises as ``write_report``."""
    run = read_run(run_dir)
    write_bytes(out, pictures.png(signal_pictures.summary_figure(run)))
    return out


def render(run: RunFolder) -> str:
    """Return the whole page as HTML."""
    sections = [
        page.header(run),
        page.verdict(judge(run)),
        page.tiles(run),
        _loss(run),
        *(_evaluation(run, run.evaluation) if run.evaluation is not None else []),
        page.what_ran(run),
        page.how_to_check(),
    ]
    style = resources.files("boldcast.score").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in (page.banner(run), *sections) if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{page.text(run.name)} \N{MIDDLE DOT} boldcast</title>\n<style>\n{style}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n"
        "<footer>Drawn by boldcast from this run's own files.</footer>\n</main>\n</body>\n</html>\n"
    )


def _loss(run: RunFolder) -> str:
    if not run.steps and not run.val_loss:
        return ""
    alt = f"Training and held-out loss over {run.steps[-1] if run.steps else 0} steps."
    if run.val_loss:
        first, last = number(run.val_loss[0]), number(run.val_loss[-1])
        alt += f" The held-out loss goes from {first} to {last}."
    for name, value in run.baselines.items():
        alt += f" {label(name)} stands at {number(value)}."
    loss = pictures.svg(signal_pictures.loss_figure(run), alt)
    parts = [page.figure(loss, LOSS_CAPTION)]
    if len(run.val_horizons) > 1 and 2 <= len(run.val_horizons[0]) == len(run.horizons) <= 6:
        near, far = number(run.val_horizons[-1][0]), number(run.val_horizons[-1][-1])
        alt = f"Held-out error by horizon; at the end {near} nearest, {far} farthest."
        curves = pictures.svg(signal_pictures.horizon_curves_figure(run), alt)
        parts.append(page.figure(curves, CURVES_CAPTION))
    return '<section id="loss">\n<h2>How it learned</h2>\n' + "\n".join(parts) + "\n</section>"


def _evaluation(run: RunFolder, evaluation: Mapping[str, Any]) -> list[str]:
    return [_scores(run, evaluation), _traces(run, evaluation), _skill(evaluation)]


def _scores(run: RunFolder, evaluation: Mapping[str, Any]) -> str:
    rows = [
        f"{label(name)} {number(scores[0]['mse'])}" for name, scores in evaluation["scores"].items()
    ]
    far = page.ahead(evaluation["horizons"][0], run.t_r)
    alt = f"Mean squared error {far}: {', '.join(rows)}."
    bars = pictures.svg(signal_pictures.horizons_figure(evaluation), alt)
    caption = BARS_CAPTION.format(var=VAR_CAPTION if "var2" in evaluation["scores"] else "")
    return (
        '<section id="scores">\n<h2>How well it forecasts</h2>\n'
        "<p>Every held-out scan, forecast from every volume that has at least half a context "
        "before it.</p>\n"
        f"{page.figure(bars, caption)}\n{page.score_table(run, evaluation)}\n"
        f"{SCORES_EXPLAINED}\n</section>"
    )


def _traces(run: RunFolder, evaluation: Mapping[str, Any]) -> str:
    excerpt = evaluation["excerpt"]
    if not excerpt:
        return ""
    horizons = evaluation["horizons"]
    legend = [f"{_key('ink')}observed"]
    legend.append(f"{_key('model')}forecast {page.ahead(horizons[0], run.t_r)}")
    if len(horizons) > 1:
        far = page.ahead(horizons[-1], run.t_r)
        legend.append(f"{_key('other', 'dashed')}forecast {far}")
    regions = "".join(
        _trace(evaluation, index, region) for index, region in enumerate(excerpt["regions"])
    )
    return (
        '<section id="traces">\n<h2>What a forecast looks like</h2>\n'
        f"<p>{'; '.join(legend)}. Each forecast stands at the volume it is about. A good one is "
        "flatter than the signal: what cannot be known in advance is best left out.</p>\n"
        f"{regions}</section>"
    )


def _trace(evaluation: Mapping[str, Any], index: int, region: Mapping[str, Any]) -> str:
    alt = f"Observed and forecast signal of {region['name']}, {len(region['observed'])} volumes."
    picture = pictures.svg(signal_pictures.trace_figure(evaluation, index), alt)
    return (
        f"<h3>{page.text(region['name'])} <small>{page.text(region['role'])}, {page.R2} "
        f"{number(region['r2'])}</small></h3>\n<figure>\n{picture}\n</figure>\n"
    )


def _skill(evaluation: Mapping[str, Any]) -> str:
    known = sorted(v for v in evaluation["region_r2"]["model"] if v is not None)
    if not known:
        return ""
    low, mid, high = (number(v) for v in (known[0], known[len(known) // 2], known[-1]))
    alt = f"{page.R2} of {len(known)} regions, best first: {high}, median {mid}, worst {low}."
    dots = f"; {_key('ar8', 'dot')}AR(8) for the same region"
    caption = (
        f"{_key('model')}{page.R2} of the model at the nearest horizon"
        f"{dots if 'ar8' in evaluation['region_r2'] else ''}. Skill that is about equal everywhere "
        "would be suspicious: regions with little signal, or near the air-filled sinuses, can "
        "hardly be forecast at all."
    )
    picture = pictures.svg(signal_pictures.skill_figure(evaluation), alt)
    return (
        '<section id="regions">\n<h2>Where it forecasts well</h2>\n'
        f"{page.figure(picture, caption)}\n{page.region_tables(evaluation)}\n</section>"
    )
