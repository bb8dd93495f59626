"""What a scan is looked over for before it may be trained on.

A missing value somewhere is refused with its place; a region that is constant or missing over the
whole scan carries no signal and is masked; a column that is a confound in name or in scale is
named, because a forecast of head motion among the regions goes unnoticed.

Example
-------
>>> confounds(("Precuneus_L", "trans_x", "csf_derivative1"))
('trans_x', 'csf_derivative1')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boldcast.errors import DataRefused

BAND_PASSED = 0.9
SCALE_FACTOR = 50.0
_CONFOUND = re.compile(
    r"""(wm|csf|gm|vent|ventricles?|brain|white_?matter|global_?signal|gsr|fd|(std_)?dvars|rmsd
        |framewise_displacement|(trans|rot)_.+|cosine.*|[atcw]_comp_cor.*|motion_outlier.*
        |non_steady_state_outlier.*)(_derivative1)?(_power2)?""",
    re.IGNORECASE | re.VERBOSE,
)


def region_label(regions: Sequence[str] | None, index: int) -> str:
    """Return how a message names a region: its name where known, and its column."""
    return f"`{regions[index]}` (column {index})" if regions is not None else f"column {index}"


def confounds(regions: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are those of confound regressors, in their order."""
    return tuple(name for name in regions if _CONFOUND.fullmatch(name.strip()))


def confound_columns(series: NDArray[np.float64], regions: Sequence[str] | None) -> tuple[int, ...]:
    """Return the columns that look like confounds, by name or by scale.

    By scale: its ratio of mean to deviation is 50 times the median's. Below a median ratio of 1
    (demeaned data) 1 is taken, so that regions around zero are not compared with noise.

    Parameters
    ----------
    series : float64 array, shape (n_volumes, n_regions)
        A scan in its own units.
    regions : sequence of str or None
        Names of the columns, where known.
    """
    named = set(confounds(regions)) if regions is not None else set()
    usable = ~masked_regions(series) & np.isfinite(series).all(axis=0)
    ratio = np.zeros(series.shape[1])
    kept = series[:, usable]
    ratio[usable] = np.abs(kept.mean(axis=0)) / kept.std(axis=0) if kept.size else 0.0
    limit = SCALE_FACTOR * max(1.0, float(np.median(ratio[usable])) if kept.size else 1.0)
    return tuple(
        index
        for index in range(series.shape[1])
        if ratio[index] > limit or (regions is not None and regions[index] in named)
    )


def masked_regions(series: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which regions are constant or missing over the whole scan.

    A region that varies by less than a 1e-9 part of its size is constant: it is rounding.

    Parameters
    ----------
    series : float64 array, shape (n_volumes, n_regions)
        A scan in its own units.

    Returns
    -------
    bool array, shape (n_regions,)
    """
    finite = np.isfinite(series)
    filled = np.where(finite, series, 0.0)
    spread = filled.max(axis=0) - filled.min(axis=0)
    constant = finite.all(axis=0) & (spread <= 1e-9 * np.abs(filled).max(axis=0))
    return np.asarray(constant | np.isnan(series).all(axis=0), dtype=np.bool_)


def refuse_missing(
    path: Path,
    series: NDArray[np.float64],
    regions: Sequence[str] | None,
    masked: NDArray[np.bool_],
) -> None:
    """Refuse a scan with NaN or infinite values outside its masked regions.

    Raises
    ------
    DataRefused
        Naming the file, the first such volume and region, and how many values there are.
    """
    bad = ~np.isfinite(series)
    bad[:, masked] = False
    if not bad.any():
        return
    volume, region = (int(index) for index in np.argwhere(bad)[0])
    word = "NaN" if np.isnan(series[volume, region]) else "infinite"
    raise DataRefused(
        f"`{path}` must hold finite numbers only, but region {region_label(regions, region)} is "
        f"{word} at volume {volume}, the first of {int(bad.sum())} such values in "
        f"{int(bad.any(axis=0).sum())} regions. Interpolate or remove those volumes, or take the "
        "scan off the list."
    )


def lag1_autocorrelation(series: NDArray[np.float64]) -> float:
    """Return the mean over regions of the correlation of a volume with the next one.

    Masked and incomplete regions are left out; NaN if none is left.
    """
    usable = ~masked_regions(series) & np.isfinite(series).all(axis=0)
    if not usable.any():
        return float("nan")
    centred = series[:, usable] - series[:, usable].mean(axis=0)
    return float(
        ((centred[1:] * centred[:-1]).sum(axis=0) / (centred * centred).sum(axis=0)).mean()
    )
