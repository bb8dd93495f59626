"""Score forecasts over whole held-out scans, from every origin that the caller forecasts from.

An *origin* t is the last volume a forecast has seen; stride 1, so each volume is forecast once per
horizon. Scores are pooled over origins, regions and scans:

* MSE, in squared units of the data (z-scored: 1 is about the variance);
* R2 = 1 - SSE / SST with SST about each region's mean over *its own scan* (not over the scored
  volumes, nor over all scans), so forecasting the scan's mean scores 0;
* r, Pearson's correlation of the deviations from those scan means, pooled over all cells, and the
  mean over regions of each region's own r.

Scans pass through one at a time, and only sums per region and one excerpt are kept. Shapes: R
regions, H horizons.

Example
-------
>>> import numpy as np
>>> x = np.array([[0.0], [1.0], [0.0], [1.0]])
>>> result = evaluate_forecasts([(x, {"flip": 1 - x[:, :, None]}, 0)], (1,), np.ones(1, bool), "A")
>>> result["scores"]["flip"][0]["r2"]
1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boldcast.score.excerpt import cut_excerpt, describe_excerpt

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
ScanForecasts = tuple[NDArray[np.floating], Mapping[str, NDArray[np.floating]], int]
"""Truth (n_volumes, R), forecasts by name (n_origins, R, H), first origin (volume index)."""

SCAN_MEAN = "scan_mean"
PERSISTENCE = "persistence"
FORMAT = "boldcast-evaluation/1"


@dataclass
class Sums:
    """Running sums of one forecaster, float64 (R, H) each, over scored cells.

    ``x`` is the target and ``y`` the forecast, both as deviations from the scan's mean, which
    also keeps the sums well conditioned on data that are not z-scored.
    """

    n: Floats
    x: Floats
    y: Floats
    xx: Floats
    yy: Floats
    xy: Floats
    sse: Floats

    @classmethod
    def zero(cls, n_regions: int, n_horizons: int) -> Sums:
        """Return sums over nothing."""
        return cls(*(np.zeros((n_regions, n_horizons)) for _ in range(7)))

    def add(self, target: Floats, forecast: Floats, horizon_index: int) -> Floats:
        """Add cells (n, R) of one scan and horizon; NaN targets are not scored.

        Returns
        -------
        array (R,)
            Summed squared error of these cells.
        """
        scored = np.isfinite(target)
        x = np.where(scored, target, 0.0)
        y = np.where(scored, forecast, 0.0)
        sse = np.square(x - y).sum(axis=0)
        parts = (scored, x, y, x * x, y * y, x * y)
        sums = (self.n, self.x, self.y, self.xx, self.yy, self.xy)
        for total, part in zip(sums, parts, strict=True):
            total[:, horizon_index] += part.sum(axis=0)
        self.sse[:, horizon_index] += sse
        return np.asarray(sse)

    def r2(self) -> Floats:
        """R2 about the scan mean, per region (R, H); NaN where the target does not vary."""
        return 1.0 - _ratio(self.sse, self.xx)

    def r(self) -> Floats:
        """Pearson's r per region (R, H); NaN where target or forecast does not vary."""
        return _pearson(self.n, self.x, self.y, self.xx, self.yy, self.xy)

    def pooled(self, horizon_index: int) -> dict[str, Any]:
        """Scores of one horizon over all regions together; None where undefined."""
        n, x, y, xx, yy, xy, sse = (
            np.asarray(value[:, horizon_index].sum())
            for value in (self.n, self.x, self.y, self.xx, self.yy, self.xy, self.sse)
        )
        per_region = self.r()[:, horizon_index]
        known = per_region[np.isfinite(per_region)]
        return {
            "cells": int(n),
            "mse": _plain(_ratio(sse, n)),
            "r2": _plain(1.0 - _ratio(sse, xx)),
            "r": _plain(_pearson(n, x, y, xx, yy, xy)),
            "r_region_mean": float(known.mean()) if len(known) else None,
        }


def _ratio(top: Floats, bottom: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def _pearson(n: Floats, x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> Floats:
    n = np.maximum(n, 1)
    spread_x, spread_y = xx - x * x / n, yy - y * y / n
    # A constant leaves rounding noise instead of zero spread; below this it carries no r.
    varies = (spread_x > 1e-12 * xx) & (spread_y > 1e-12 * yy)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (xy - x * y / n) / np.sqrt(spread_x * spread_y)
    return np.where(varies, np.clip(r, -1.0, 1.0), np.nan)


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


@dataclass
class Evaluation:
    """Everything ``evaluation.json`` holds, gathered scan by scan."""

    horizons: tuple[int, ...]
    regions: tuple[str, ...]
    """Scored regions only, in the data's order."""
    masked: tuple[str, ...] = ()
    t_r: float | None = None
    notes: tuple[str, ...] = ()
    sums: dict[str, Sums] = field(default_factory=dict)
    scan_mse: dict[str, list[list[float | None]]] = field(default_factory=dict)
    excerpt: dict[str, Any] | None = None

    def add_scan(self, truth: Floats, forecasts: Mapping[str, Floats], first_origin: int) -> None:
        """Score one scan: truth (n_volumes, R), forecasts (n_origins, R, H) of the same regions."""
        observed = np.isfinite(truth)
        count = np.maximum(observed.sum(axis=0), 1)
        mean = np.where(observed, truth, 0.0).sum(axis=0) / count
        for name, forecast in forecasts.items():
            if not np.isfinite(forecast).all():
                raise ValueError(f"forecasts of {name} must be finite")
            sums = self.sums.setdefault(name, Sums.zero(truth.shape[1], len(self.horizons)))
            errors: list[float | None] = []
            for index, h in enumerate(self.horizons):
                start = first_origin + h
                n = min(len(forecast), max(0, len(truth) - start))
                target = truth[start : start + n] - mean
                sse = sums.add(target, forecast[:n, :, index] - mean, index)
                cells = int(np.isfinite(target).sum())
                errors.append(float(sse.sum()) / cells if cells else None)
            self.scan_mse.setdefault(name, []).append(errors)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; what is undefined is None."""
        r2 = {name: sums.r2()[:, 0] for name, sums in self.sums.items()}
        return {
            "format": FORMAT,
            "horizons": list(self.horizons),
            "t_r": self.t_r,
            "n_scans": max((len(rows) for rows in self.scan_mse.values()), default=0),
            "regions": list(self.regions),
            "masked_regions": list(self.masked),
            "scores": {
                name: [
                    {"horizon": h, **sums.pooled(index)} for index, h in enumerate(self.horizons)
                ]
                for name, sums in self.sums.items()
            },
            "region_r2": {name: [_plain(value) for value in row] for name, row in r2.items()},
            "scan_mse": self.scan_mse,
            "excerpt": describe_excerpt(self.excerpt, self.regions, r2.get("model")),
            "notes": list(self.notes),
        }


def _check_forecast(
    name: str,
    forecast: NDArray[np.floating],
    truth: NDArray[np.floating],
    first_origin: int,
    n_horizons: int,
) -> None:
    if forecast.ndim != 3 or forecast.shape[1:] != (truth.shape[1], n_horizons):
        raise ValueError(
            f"forecasts of {name} must be (n_origins, {truth.shape[1]}, {n_horizons}), "
            f"but are {forecast.shape}"
        )
    if first_origin < 0 or first_origin + len(forecast) > len(truth):
        raise ValueError(
            f"{len(forecast)} forecasts of {name} from origin {first_origin} on do not lie in a "
            f"scan of {len(truth)} volumes"
        )


def evaluate_forecasts(
    scan_series: Iterable[ScanForecasts],
    horizons: Sequence[int],
    region_mask: Bools,
    regions: Sequence[str],
    *,
    t_r: float | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Score every forecaster on every held-out scan; the content of ``evaluation.json``.

    Persistence and the scan mean are added to what is given, over the same cells. Forecasts for
    volumes past the end of a scan are ignored, so n_origins may run up to the last volume.

    Parameters
    ----------
    scan_series : iterable of (truth, forecasts, first_origin)
        ``truth`` (n_volumes, R), NaN where a volume was not observed; ``forecasts`` by name, each
        (n_origins, R, H), where [k, r, i] forecasts volume first_origin + k + horizons[i]. All
        scans carry the same names; "model" is the one that the report is about.
    horizons : sequence of int
        Volumes ahead, ascending.
    region_mask : bool array (R,)
        Regions that are scored.
    regions : sequence of str
        Names of all R regions.
    t_r : float, optional
        Repetition time, seconds.
    notes : sequence of str
        Remarks on the data that the report must show.

    Returns
    -------
    dict
        JSON-ready; see ``Evaluation.to_dict``.

    Raises
    ------
    ValueError
        If there is no scan, a shape does not fit, or a forecast is not finite.
    """
    mask = np.asarray(region_mask, bool)
    kept = tuple(str(name) for name, keep in zip(regions, mask, strict=True) if keep)
    masked = tuple(str(name) for name, keep in zip(regions, mask, strict=True) if not keep)
    result = Evaluation(tuple(horizons), kept, masked, t_r, tuple(notes))
    for truth_all, forecasts_all, first_origin in scan_series:
        for name, forecast in forecasts_all.items():
            _check_forecast(name, forecast, truth_all, first_origin, len(horizons))
        truth = np.asarray(truth_all, np.float64)[:, mask]
        forecasts = {name: np.asarray(f, np.float64)[:, mask] for name, f in forecasts_all.items()}
        if not forecasts:
            raise ValueError("a scan came without forecasts")
        n_origins = len(next(iter(forecasts.values())))
        forecasts |= _references(truth, first_origin, n_origins, len(horizons))
        result.add_scan(truth, forecasts, first_origin)
        if result.excerpt is None and "model" in forecasts:
            result.excerpt = cut_excerpt(truth, forecasts["model"], first_origin, tuple(horizons))
    if not result.sums:
        raise ValueError("there is no scan to evaluate")
    return result.to_dict()


def _references(truth: Floats, first_origin: int, n_origins: int, n: int) -> dict[str, Floats]:
    """Return persistence (of the last observed value) and the scan mean, (n_origins, R, H)."""
    observed = np.isfinite(truth)
    mean = np.where(observed, truth, 0.0).sum(axis=0) / np.maximum(observed.sum(axis=0), 1)
    rows = np.where(observed, np.arange(len(truth))[:, None], -1)
    last = np.maximum.accumulate(rows, axis=0)
    held = np.where(last >= 0, np.take_along_axis(truth, np.maximum(last, 0), axis=0), mean)
    origins = slice(first_origin, first_origin + n_origins)
    return {
        PERSISTENCE: np.repeat(held[origins, :, None], n, axis=2),
        SCAN_MEAN: np.broadcast_to(mean[:, None], (n_origins, len(mean), n)),
    }
