"""What a run's report says first: is it finished, did it reach its bars, does it beat the field.

Example
-------
>>> judge(read_run(Path("runs/example"))).headline      # doctest: +SKIP
'Finished, and both bars are passed.'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from boldcast.errors import AcceptanceMissed
from boldcast.score.gates import beats_trivial, heldout_decreased_by
from boldcast.score.run_folder import RunFolder

LABELS = {
    "model": "Model",
    "ar8": "AR(8) per region",
    "var2": "VAR(2)",
    "ar8_var2": "AR(8) + VAR(2)",
    "persistence": "Persistence",
    "window_mean": "Window mean",
    "scan_mean": "Scan mean",
    "zero": "Zero",
}
_NOTABLY_LOWER = 0.98
"""A best validation under this share of the last one is worth a word: the run was too long."""

ORDER = (
    *("model", "ar8_var2", "var2", "ar8"),
    *("persistence", "window_mean", "scan_mean", "zero"),
)


def label(name: str) -> str:
    """Name of a forecaster for people; an unknown one in plain characters, as it may be drawn."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in name)
    return LABELS.get(name, plain)


def ordered(names: Mapping[str, Any]) -> list[str]:
    """Forecasters in the order in which pictures and tables show them."""
    known = [name for name in ORDER if name in names]
    return known + sorted(name for name in names if name not in ORDER)


def number(value: float | None, digits: int = 3, signed: bool = False) -> str:
    """Write a number with a true minus sign; an en dash where there is none."""
    if value is None:
        return "\N{EN DASH}"
    # Adding zero drops the sign of a value that rounds to it.
    value = round(value, digits) + 0.0
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Gate:
    """One bar: what was asked, what was measured, and whether it was reached (None: not asked)."""

    asked: str
    measured: str
    passed: bool | None
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """The first words of a report; ``tone`` is ``good``, ``bad`` or ``open``."""

    tone: str
    headline: str
    sentences: tuple[str, ...]
    gates: tuple[Gate, ...]


def judge(run: RunFolder) -> Verdict:
    """Judge a run from its own files."""
    if run.evaluation is None:
        return _unfinished(run)
    gates = (_decrease_gate(run), _trivial_gate(run))
    asked = [gate for gate in gates if gate.passed is not None]
    missed = [gate for gate in asked if not gate.passed]
    if missed:
        what = "a bar" if len(missed) == 1 else "both bars"
        headline, tone = f"Finished, but {what} it had to reach is missed.", "bad"
        if len(missed) == 2:
            headline = "Finished, but both bars it had to reach are missed."
    elif asked:
        which = "both bars are" if len(asked) == 2 else "the bar that was set is"
        headline, tone = f"Finished, and {which} passed.", "good"
    else:
        headline, tone = "Finished; no bar was set.", "open"
    return Verdict(tone, headline, (_outcome(run), *against_field(run.evaluation)), gates)


def _outcome(run: RunFolder) -> str:
    if not run.val_loss:
        return "The held-out loss was never measured."
    best = min(range(len(run.val_loss)), key=lambda index: run.val_loss[index])
    lowest = (
        f" and was lowest, {number(run.val_loss[best])}, after {run.val_steps[best]}"
        if run.val_loss[best] < _NOTABLY_LOWER * run.val_loss[-1]
        else ""
    )
    return (
        f"After {run.val_steps[-1]} steps the held-out MSE is {number(run.val_loss[-1])}; "
        f"it began at {number(run.val_loss[0])}{lowest}."
    )


def _unfinished(run: RunFolder) -> Verdict:
    total = run.setting("train", "steps")
    done = run.steps[-1] if run.steps else 0
    progress = f"Step {done} of {total} is recorded." if total else f"Step {done} is recorded."
    last = (
        f"The last held-out loss is {number(run.val_loss[-1])}, after step {run.val_steps[-1]}."
        if run.val_loss
        else "It has not been validated yet."
    )
    headline = {
        "failed": "This run failed before its end.",
        "stopped": "This run was stopped on request and can go on.",
    }.get(run.ended or "", "This run has not finished.")
    tone = "bad" if run.ended == "failed" else "open"
    more = "There are no scores before the end. The command that started it continues it."
    return Verdict(tone, headline, (progress, last, more), ())


def _decrease_gate(run: RunFolder) -> Gate:
    frac = float(run.setting("validation", "heldout_decreased_by", 0.0))
    measured = "never measured"
    first = last = 0.0
    if run.val_loss:
        first = sum(run.val_loss[:3]) / len(run.val_loss[:3])
        last = sum(run.val_loss[-3:]) / len(run.val_loss[-3:])
        moved = (first - last) / first if first else 0.0
        verb = "fell" if moved >= 0 else "rose"
        measured = f"{verb} by {abs(moved):.1%}, from {number(first)} to {number(last)}"
    if frac <= 0:
        return Gate("Held-out loss falls (no amount asked)", measured, None)
    asked = f"Held-out loss falls by at least {frac:.0%}, first three validations to last three"
    try:
        heldout_decreased_by({"val_loss": run.val_loss}, frac)
    except AcceptanceMissed as miss:
        if len(run.val_loss) < 3:
            return Gate(asked, measured, False, str(miss).replace("`", ""))
        limit = (1 - frac) * first
        return Gate(asked, measured, False, _missed_by(last - limit, limit))
    return Gate(asked, measured, True)


def _missed_by(excess: float, limit: float) -> str:
    return f"It misses the limit {number(limit, 4)} by {number(excess, 4)}."


def _trivial_gate(run: RunFolder) -> Gate:
    ratio = float(run.setting("validation", "baseline_ratio", 0.0))
    baselines = run.trivial
    if not baselines or not run.val_loss:
        return Gate("Held-out MSE against the trivial forecasts", "never measured", None)
    best = min(sorted(baselines), key=lambda name: baselines[name])
    last = run.val_loss[-1]
    share = f"{last / baselines[best]:.2f} \N{MULTIPLICATION SIGN} " if baselines[best] > 0 else ""
    measured = (
        f"{share}{label(best).lower()}: {number(last)} against {number(baselines[best])} "
        "(same windows, all positions)"
    )
    if ratio <= 0:
        return Gate("Held-out MSE against the trivial forecasts (no ratio asked)", measured, None)
    asked = f"Last held-out MSE is at most {ratio:g} \N{MULTIPLICATION SIGN} the best trivial one"
    try:
        beats_trivial(last, baselines, ratio)
    except AcceptanceMissed:
        limit = ratio * baselines[best]
        return Gate(asked, measured, False, _missed_by(last - limit, limit))
    return Gate(asked, measured, True)


def against_field(evaluation: Mapping[str, Any]) -> list[str]:
    """Say in sentences whether the model beats the fitted linear forecasts, paired over scans."""
    scores = evaluation["scores"]
    if "model" not in scores:
        return ["The evaluation holds no model."]
    horizon = evaluation["horizons"][0]
    found = []
    for name in ("ar8", "var2", "ar8_var2"):
        mine = scores["model"][0]["mse"]
        theirs = scores[name][0]["mse"] if name in scores else None
        if mine is None or theirs is None:
            continue
        rows = zip(evaluation["scan_mse"]["model"], evaluation["scan_mse"][name], strict=True)
        pairs = [(a[0], b[0]) for a, b in rows if a[0] is not None and b[0] is not None]
        wins = sum(a < b for a, b in pairs)
        word = "lower" if mine < theirs else "not lower"
        found.append(
            f"{word} than that of {label(name)} ({number(mine - theirs, 4, signed=True)}; "
            f"better on {wins} of {len(pairs)} held-out scan{'s' if len(pairs) != 1 else ''})"
        )
    if not found:
        return []
    volumes = f"{horizon} volume{'s' if horizon > 1 else ''} ahead"
    return [f"Over whole scans, {volumes}, its error is {', and '.join(found)}."]
