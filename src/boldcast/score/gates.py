"""The two bars that a finished run must reach, as assertions with the arithmetic spelled out.

A gate returns True or raises ``AcceptanceMissed``, which is an ``AssertionError`` and becomes exit
code 4. The message says what was measured, what was asked and by how much it misses, so that the
log line alone is enough to judge the run.

Example
-------
>>> heldout_decreased_by({"val_loss": [1.0, 0.9, 0.8, 0.5, 0.5, 0.5]}, frac=0.30)
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from boldcast.errors import AcceptanceMissed

_WINDOW = 3


def heldout_decreased_by(history: Mapping[str, Sequence[float]], frac: float = 0.30) -> bool:
    """Assert that the held-out loss fell by at least ``frac`` over the run.

    The mean of the last three measurements must be at most ``(1 - frac)`` times the mean of the
    first three. With fewer than six measurements the two means share some, which makes the gate
    stricter, never easier.

    Parameters
    ----------
    history : mapping
        ``history["val_loss"]`` holds the held-out losses in the order they were measured.
    frac : float
        Least relative fall, 0 <= frac <= 1.

    Returns
    -------
    bool
        True; a miss is raised.

    Raises
    ------
    AcceptanceMissed
        If the fall is smaller, there are fewer than three measurements, or one is not finite.
    ValueError
        If ``frac`` is outside [0, 1].
    """
    if not 0.0 <= frac <= 1.0:
        raise ValueError(f"frac must be within 0 and 1, but is {frac}")
    losses = [float(value) for value in history.get("val_loss", ())]
    _refuse_unusable(losses)
    first = math.fsum(losses[:_WINDOW]) / _WINDOW
    last = math.fsum(losses[-_WINDOW:]) / _WINDOW
    limit = (1.0 - frac) * first
    if last <= limit:
        return True
    fall = f"ratio {last / first:.4f}" if first > 0 else "ratio undefined"
    raise AcceptanceMissed(
        f"`held-out loss` must fall by at least {frac:.0%}, but the mean of the last {_WINDOW} "
        f"validations is {last:.6g} against {first:.6g} for the first {_WINDOW} ({fall}): it "
        f"misses the limit {limit:.6g} by {last - limit:.6g}. Train longer, or ask for less with "
        "`validation.heldout_decreased_by`."
    )


def _refuse_unusable(losses: Sequence[float]) -> None:
    if len(losses) < _WINDOW:
        raise AcceptanceMissed(
            f"`held-out loss` must have been measured at least {_WINDOW} times, but was measured "
            f"{len(losses)} times. Lower `validation.every` or raise `train.steps`."
        )
    for index, value in enumerate(losses):
        if not math.isfinite(value):
            raise AcceptanceMissed(
                f"`held-out loss` must be finite, but validation {index + 1} of {len(losses)} is "
                f"{value}. The run diverged; lower `optim.lr`."
            )


def beats_trivial(last_mse: float, baselines: Mapping[str, float], ratio: float = 0.85) -> bool:
    """Assert that the last held-out MSE is at most ``ratio`` times the best trivial forecast's.

    Parameters
    ----------
    last_mse : float
        The model's last held-out mean squared error.
    baselines : mapping
        Name of a trivial forecast to its MSE over the same windows and positions.
    ratio : float
        Largest allowed multiple of the smallest of them.

    Returns
    -------
    bool
        True; a miss is raised.

    Raises
    ------
    AcceptanceMissed
        If the model is worse than that, or a number needed for the comparison is not finite.
    ValueError
        If there are no baselines or ``ratio`` is negative or not finite.
    """
    if not baselines:
        raise ValueError("baselines must name at least one forecast, but is empty")
    if not (math.isfinite(ratio) and ratio >= 0.0):
        raise ValueError(f"ratio must be finite and not negative, but is {ratio}")
    for name, value in {"the model": last_mse, **baselines}.items():
        if not math.isfinite(value):
            raise AcceptanceMissed(
                f"`held-out MSE` of {name} must be finite, but is {value}. "
                "There is nothing to compare; look at the data and the loss curve."
            )
    best = min(sorted(baselines), key=lambda name: baselines[name])
    limit = ratio * baselines[best]
    if last_mse <= limit:
        return True
    raise AcceptanceMissed(
        f"`last held-out MSE` must be at most {ratio:g} times that of the best trivial forecast, "
        f"but is {last_mse:.6g} against {baselines[best]:.6g} of {best}"
        f"{_times(last_mse, baselines[best])}: it misses the limit {limit:.6g} by "
        f"{last_mse - limit:.6g}. Train longer, or ask for less with `validation.baseline_ratio`."
    )


def _times(value: float, reference: float) -> str:
    return f" ({value / reference:.4f} times)" if reference > 0 else ""
