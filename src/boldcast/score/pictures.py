"""The pictures of a report, drawn once and coloured by the page.

Every colour used is one of ``PALETTE``. As SVG the picture goes inline into the page and each
colour becomes a CSS variable, so that one drawing suits light and dark; as PNG the light colours
stay. The hues are told apart with the common forms of colour blindness, and no series is told
apart by hue alone. No name from a data file is ever drawn: those are HTML text beside it.

Example
-------
>>> svg(loss_figure(run), "Loss curves")[:4]      # doctest: +SKIP
'<svg'
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from boldcast.score.page import text as escape
from boldcast.score.run_folder import RunFolder
from boldcast.score.verdict import label, number, ordered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = {
    "ink": "#23262b",
    "muted": "#666b73",
    "rule": "#dcdfe4",
    "model": "#0b62ab",
    "ar8": "#c4650c",
    "var2": "#0a7d62",
    "ar8_var2": "#3f9a8f",
    "persistence": "#9c3f7c",
    "window_mean": "#8a7414",
    "scan_mean": "#80868f",
    "zero": "#7b818a",
    "other": "#5b5fc7",
}
WIDTH_INCHES = 6.0
RAW_POINTS = 1500
_STYLE = {
    "svg.hashsalt": "boldcast",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.edgecolor": PALETTE["rule"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 1.0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.7,
    "text.parse_math": False,
    "text.color": PALETTE["ink"],
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": PALETTE["ink"],
    "lines.solid_capstyle": "round",
    "axes.unicode_minus": True,
}


def colour(name: str) -> str:
    """Colour of a forecaster."""
    return PALETTE.get(name, PALETTE["other"])


@contextmanager
def _style() -> Iterator[None]:
    """Set the report's style for a while, whatever the user's own matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]
        yield


def draw(
    paint: Callable[[list[Axes]], None],
    height: float,
    columns: int = 1,
    width: float = WIDTH_INCHES,
) -> Figure:
    """Return a figure painted in the report's style, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        paint(list(figure.subplots(1, columns, squeeze=False)[0]))
    return figure


def svg(figure: Figure, alt: str) -> str:
    """Return a figure as inline SVG: no outside reference, no date, colours as CSS variables."""
    stream = io.StringIO()
    with _style():
        figure.savefig(stream, format="svg", transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    opening = re.search(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', text)
    assert opening is not None
    drawing = text[opening.end() :]
    text = f'<svg viewBox="{opening[1]}" role="img" aria-label="{escape(alt)}">{drawing}'
    for name, value in PALETTE.items():
        text = text.replace(value, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", text).strip()


def png(figure: Figure, dots_per_inch: int = 160) -> bytes:
    """Return a figure as PNG on white, the same bytes for the same figure."""
    stream = io.BytesIO()
    with _style():
        figure.savefig(
            stream, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None}
        )
    return stream.getvalue()


def paint_loss(ax: Axes, run: RunFolder) -> None:
    """Draw training and held-out loss over steps, with the trivial baselines as levels."""
    trace = [(s, v) for s, v in zip(run.steps, run.loss, strict=True) if math.isfinite(v)]
    losses = [loss for _, loss in trace]
    ends = {label(name): (value, colour(name)) for name, value in run.baselines.items()}
    if trace:
        steps, raw = thin([step for step, _ in trace], losses)
        even = smooth(raw)
        ax.plot(steps, raw, color=PALETTE["model"], lw=0.8, alpha=0.25)
        ax.plot(steps, even, color=PALETTE["model"], lw=1.4, alpha=0.75, ls=(0, (4, 1.5)))
        ends["Training"] = (float(even[-1]), PALETTE["model"])
    if run.val_loss:
        hue = PALETTE["model"]
        ax.plot(run.val_steps, run.val_loss, color=hue, lw=2.2, marker="o", ms=4.5, zorder=4)
        ends["Held-out"] = (run.val_loss[-1], PALETTE["model"])
    for name, value in run.baselines.items():
        ax.axhline(value, color=colour(name), lw=1.2, ls=(0, (1, 2)), zorder=1)
    levels = [v for v in (*run.baselines.values(), *run.val_loss) if math.isfinite(v)]
    # A few wild first steps must not flatten the rest of the curve.
    top = max([*levels, *_quantile(losses)], default=1.0)
    low = min([*levels, *losses], default=0.0)
    pad = 0.07 * ((top - low) or 1.0)
    ax.set_ylim(low - pad, top + pad)
    label_ends(ax, ends)
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("mean squared error")


def _quantile(values: Sequence[float]) -> list[float]:
    return [float(np.quantile(values, 0.99))] if values else []


def thin(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return means of equal groups of neighbours, so that a long run stays a small picture."""
    size = -(-len(values) // RAW_POINTS)
    groups = range(0, len(values), max(1, size))
    return (
        [float(np.mean(steps[i : i + size])) for i in groups],
        [float(np.mean(values[i : i + size])) for i in groups],
    )


def smooth(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the running mean over a twentieth of the curve, with what there is of it at the end.

    At the start, where a loss falls fast, the window shrinks to stay centred.
    """
    half = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    at = np.arange(len(values))
    reach = np.minimum(half, at)
    high = np.minimum(at + reach + 1, len(values))
    return np.asarray((sums[high] - sums[at - reach]) / (high - at + reach))


def label_ends(ax: Axes, ends: Mapping[str, tuple[float, str]], gap: float = 0.062) -> None:
    """Write each series' name and value at the right edge, pushed apart where they would touch."""
    low, high = ax.get_ylim()
    rows = sorted(
        ((value - low) / (high - low), name)
        for name, (value, _) in ends.items()
        if math.isfinite(value)
    )
    places = spread([place for place, _ in rows], gap)
    for (_, name), place in zip(rows, places, strict=True):
        value, hue = ends[name]
        ax.annotate(
            f"{name} {number(value)}",
            (1.0, place),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=hue,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move sorted places apart to at least ``gap``, keeping groups centred where they were."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _edge(groups[-2], gap, 1) + gap > _edge(groups[-1], gap, -1):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [
        sum(group) / len(group) + (i - (len(group) - 1) / 2) * gap
        for group in groups
        for i in range(len(group))
    ]


def _edge(group: Sequence[float], gap: float, side: int) -> float:
    return sum(group) / len(group) + side * (len(group) - 1) / 2 * gap


def paint_horizons(ax: Axes, evaluation: Mapping[str, Any]) -> None:
    """Draw the MSE of every forecaster at every horizon: bars for a few, lines for many."""
    scores = {k: v for k, v in evaluation["scores"].items() if k != "scan_mean"}
    names = ordered(scores)
    horizons = evaluation["horizons"]
    values = {n: [np.nan if row["mse"] is None else row["mse"] for row in scores[n]] for n in names}
    ends: dict[str, tuple[float, str]] = {}
    if len(horizons) <= 4:
        _bars(ax, names, values, len(horizons))
        ax.set_xticks(range(len(horizons)), [str(h) for h in horizons])
        ax.tick_params(axis="x", length=0)
    else:
        for name, mark in zip(names, cycle("osD^vP"), strict=False):
            ax.plot(horizons, values[name], color=colour(name), marker=mark, ms=4.5, lw=1.6)
            ends[label(name)] = (values[name][-1], colour(name))
    mean = evaluation["scores"].get("scan_mean")
    if mean and mean[0]["mse"] is not None:
        ax.axhline(mean[0]["mse"], color=PALETTE["scan_mean"], lw=1.2, ls=(0, (1, 2)), zorder=1)
        ends[label("scan_mean")] = (mean[0]["mse"], PALETTE["scan_mean"])
    ax.set_ylim(bottom=0)
    label_ends(ax, ends)
    ax.set_xlabel("horizon, volumes ahead")
    ax.set_ylabel("mean squared error")


def _bars(
    ax: Axes, names: Sequence[str], values: Mapping[str, Sequence[float]], n_horizons: int
) -> None:
    width = 0.86 / len(names)
    for i, name in enumerate(names):
        at = np.arange(n_horizons) - 0.43 + (i + 0.5) * width
        bars = ax.bar(
            at,
            values[name],
            width * 0.9,
            color=colour(name),
            label=label(name),
        )
        ax.bar_label(bars, fmt="%.3f", fontsize=7, padding=2, color=PALETTE["ink"])
    ax.margins(y=0.14)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=5,
        fontsize=8,
        handlelength=1.0,
        columnspacing=1.3,
        borderaxespad=0.2,
    )
