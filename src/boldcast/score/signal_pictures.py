"""The pictures of signals and regions: forecasts over observed traces, and skill by region.

Example
-------
>>> svg(trace_figure(evaluation, 0), "Best region")[:4]      # doctest: +SKIP
'<svg'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from boldcast.score.pictures import PALETTE, draw, label_ends, paint_horizons, paint_loss
from boldcast.score.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def loss_figure(run: RunFolder) -> Figure:
    """Loss curves with the baselines drawn in."""
    return draw(lambda axes: paint_loss(axes[0], run), 3.7)


def horizon_curves_figure(run: RunFolder) -> Figure:
    """Held-out MSE of each horizon over the run, from light (near) to dark (far) line styles."""

    def paint(axes: list[Axes]) -> None:
        ax = axes[0]
        ends: dict[str, tuple[float, str]] = {}
        styles = ["-", (0, (5, 2)), (0, (2, 1.5)), (0, (1, 1.5))]
        for index, h in enumerate(run.horizons):
            values = [row[index] for row in run.val_horizons]
            ax.plot(
                run.val_steps,
                values,
                color=PALETTE["model"],
                ls=styles[index % len(styles)],
                marker="o",
                ms=3.2,
                lw=1.6,
                alpha=1.0 - 0.55 * index / max(1, len(run.horizons) - 1),
            )
            ends[f"{h} ahead"] = (values[-1], PALETTE["model"])
        label_ends(ax, ends, gap=0.085)
        ax.set_xlabel("optimizer step")
        ax.set_ylabel("held-out MSE")

    return draw(paint, 2.7)


def horizons_figure(evaluation: Mapping[str, Any]) -> Figure:
    """MSE by horizon and forecaster."""
    return draw(lambda axes: paint_horizons(axes[0], evaluation), 3.5)


def summary_figure(run: RunFolder) -> Figure:
    """Loss curves beside the scores by horizon: the one picture for a README."""

    def paint(axes: list[Axes]) -> None:
        paint_loss(axes[0], run)
        axes[0].set_title("Held-out loss against trivial forecasts", loc="left", fontsize=11)
        if run.evaluation is not None:
            paint_horizons(axes[1], run.evaluation)
            axes[1].set_title("Held-out error by horizon", loc="left", fontsize=11, pad=26)

    columns = 1 if run.evaluation is None else 2
    return draw(paint, 3.9, columns=columns, width=6.2 * columns)


def trace_figure(evaluation: Mapping[str, Any], index: int) -> Figure:
    """One region of the excerpt: observed, and forecast at the first and the last horizon."""
    excerpt = evaluation["excerpt"]
    region = excerpt["regions"][index]
    t_r = evaluation.get("t_r")
    volumes = excerpt["first_volume"] + np.arange(len(region["observed"]))
    at = volumes * t_r if t_r else volumes

    def paint(axes: list[Axes]) -> None:
        ax = axes[0]
        ax.plot(at, _floats(region["observed"]), color=PALETTE["ink"], lw=1.2, alpha=0.75)
        forecasts = region["forecast"]
        if len(forecasts) > 1:
            last = _floats(forecasts[-1])
            ax.plot(at, last, color=PALETTE["other"], lw=1.3, ls=(0, (3, 1.5)))
        ax.plot(at, _floats(forecasts[0]), color=PALETTE["model"], lw=1.8)
        ax.margins(x=0.005)
        ax.set_xlabel("time in the scan, s" if t_r else "volume of the scan")
        ax.set_ylabel("signal")

    return draw(paint, 1.9)


def _floats(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def skill_figure(evaluation: Mapping[str, Any]) -> Figure:
    """R2 of every region at the first horizon, best first, with AR(8) as dots."""
    model = np.array(_floats(evaluation["region_r2"]["model"]))
    order = np.argsort(-model, kind="stable")
    order = order[np.isfinite(model[order])]
    other = evaluation["region_r2"].get("ar8")

    def paint(axes: list[Axes]) -> None:
        ax = axes[0]
        rank = np.arange(1, len(order) + 1)
        ax.bar(rank, model[order], 0.82, color=PALETTE["model"], alpha=0.85)
        if other is not None:
            dots = np.array(_floats(other))[order]
            size = 9 if len(order) <= 200 else 3
            ax.scatter(rank, dots, s=size, color=PALETTE["ar8"], zorder=3, linewidths=0)
        ax.axhline(0, color=PALETTE["muted"], lw=0.8)
        ax.margins(x=0.01)
        ax.set_xlabel("region, by rank")
        ax.set_ylabel("R\N{SUPERSCRIPT TWO}")

    return draw(paint, 2.7)
