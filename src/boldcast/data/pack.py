"""Write all scans of a source into one float32 file, one after another, one in memory at a time.

Regions are matched by name to the first scan's; a region that is masked in one scan is masked in
all; one repetition time holds for all. Beside the series lie one byte a volume (observed or not)
and ``index.json``, which describes every scan and holds the digests of both.

Example
-------
>>> align(("b", "a"), ("a", "b"), "scan.tsv")
(1, 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from boldcast.data.load import Loaded
from boldcast.data.quality import BAND_PASSED
from boldcast.data.source import Item, Source
from boldcast.data.standardize import CAUSAL_START, causal_zscore, scan_zscore
from boldcast.errors import DataRefused
from boldcast.files import canonical_json, sha256_file, write_bytes

FORMAT = 2
"""Raised with any change of what is written for the same inputs."""

SERIES = "series.f32"
OBSERVED = "observed.u8"
INDEX = "index.json"

_HABITS = {
    "scan": "Each region was z-scored over its whole scan, future volumes included (the field's "
    'habit); data.standardize = "causal" uses the past alone.',
    "causal": "Each volume was z-scored by the volumes up to it; the first "
    f"{CAUSAL_START - 1} of a scan have too few and are in no window.",
    "none": "The series were not standardized: errors are in the files' own units.",
}


class _Packer:
    """Writes scan after scan, and remembers what has to agree between them."""

    def __init__(self, folder: Path, standardize: str) -> None:
        self.folder = folder
        self.standardize = standardize
        self.first: Loaded | None = None
        self.first_where = ""
        self.masked: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.scans: list[dict[str, Any]] = []
        self.n_volumes = 0
        self.band_passed = 0
        self.dropped: dict[str, None] = {}

    def add(
        self, item: Item, side: str, loaded: Loaded, series: BinaryIO, observed: BinaryIO
    ) -> None:
        values, masked = self._matched(item, loaded)
        scores, seen = standardized(values, masked, self.standardize)
        stored = scores.astype("<f4")
        series.write(stored.tobytes())
        observed.write(seen.astype(np.uint8).tobytes())
        self.masked |= masked
        self.dropped.update(dict.fromkeys(loaded.dropped))
        if loaded.lag1 > BAND_PASSED:
            self.band_passed += 1
        self.scans.append(
            {
                "subject": item.subject,
                "session": item.session,
                "scan": item.scan,
                "family": item.family,
                "split": side,
                "n_volumes": len(values),
                "offset": self.n_volumes,
                "sha256": item.sha256,
                "path_label": item.label,
            }
        )
        self.n_volumes += len(values)

    def _matched(self, item: Item, loaded: Loaded) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        if self.first is None:
            # The facts of the first scan are kept, its series is not.
            self.first = replace(loaded, series=np.empty((0, 0)))
            self.first_where = item.where
            self.masked = np.zeros(len(loaded.masked), np.bool_)
        first = self.first
        if abs(loaded.t_r - first.t_r) > 1e-6 * first.t_r:
            raise DataRefused(
                f"`t_r` must be the same for all scans, but is {first.t_r:g} s in "
                f"`{self.first_where}` and {loaded.t_r:g} s in `{item.where}`. Train on scans of "
                "one repetition time."
            )
        if (loaded.regions is None) != (first.regions is None):
            raise DataRefused(
                f"`{item.where}` and `{self.first_where}` must both name their regions, but only "
                "one does. Name them all, or none."
            )
        if loaded.regions is not None and first.regions is not None:
            columns = align(loaded.regions, first.regions, item.where)
            return np.ascontiguousarray(loaded.series[:, columns]), loaded.masked[list(columns)]
        if len(loaded.masked) != len(first.masked):
            raise DataRefused(
                f"`{item.where}` must have the {len(first.masked)} regions of "
                f"`{self.first_where}`, but has {len(loaded.masked)}. Name the regions, or take "
                "the scan off the list."
            )
        return loaded.series, loaded.masked


def align(names: Sequence[str], reference: Sequence[str], where: str) -> tuple[int, ...]:
    """Return the columns of ``names`` in the order of ``reference``.

    Raises
    ------
    DataRefused
        If a region of one is missing in the other.
    """
    column = {name: index for index, name in enumerate(names)}
    missing = [name for name in reference if name not in column]
    extra = sorted(column.keys() - set(reference))
    if missing or extra:
        said = [f"lacks `{name}`" for name in missing[:3]] + [
            f"adds `{name}`" for name in extra[:3]
        ]
        raise DataRefused(
            f"`{where}` must have the regions of the first scan, but {', '.join(said)} "
            f"({len(missing)} missing, {len(extra)} more). Use one atlas for all scans."
        )
    return tuple(column[name] for name in reference)


def standardized(
    values: NDArray[np.float64], masked: NDArray[np.bool_], how: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores and which volumes are observed; masked regions are zero.

    Parameters
    ----------
    values : float64 array, shape (n_volumes, n_regions)
        A scan in its own units.
    masked : bool array, shape (n_regions,)
        Regions without signal.
    how : str
        ``scan``, ``causal`` or ``none``.
    """
    filled = np.where(masked, 0.0, values)
    if how == "causal":
        return causal_zscore(filled)
    observed = np.ones(len(filled), np.bool_)
    return (scan_zscore(filled) if how == "scan" else filled), observed


def pack(source: Source, standardize: str, inputs_digest: str, folder: Path) -> None:
    """Fill an empty folder with the packed store of ``source``.

    Raises
    ------
    DataRefused
        If a scan is unfit or does not agree with the others.
    """
    packer = _Packer(folder, standardize)
    with (folder / SERIES).open("wb") as series, (folder / OBSERVED).open("wb") as observed:
        for item, side in zip(source.items, source.sides, strict=True):
            packer.add(item, side, item.load(), series, observed)
    assert packer.first is not None, "a source has at least one scan"
    if packer.masked.all():
        raise DataRefused(
            "`regions` must hold a signal, but every one is constant or missing in some scan. "
            "Take the scans without signal off the list."
        )
    _blank(packer)
    regions = packer.first.regions or tuple(
        f"region_{index:04d}" for index in range(len(packer.masked))
    )
    index = {
        "format": FORMAT,
        "inputs_sha256": inputs_digest,
        "regions": list(regions),
        "region_mask": [not masked for masked in packer.masked.tolist()],
        "t_r": packer.first.t_r.hex(),
        "n_volumes": packer.n_volumes,
        "scans": packer.scans,
        "notes": [*source.notes, *_notes(packer, regions)],
        "series_sha256": sha256_file(folder / SERIES),
        "observed_sha256": sha256_file(folder / OBSERVED),
    }
    write_bytes(folder / INDEX, canonical_json(index))


def _blank(packer: _Packer) -> None:
    # A region may turn out masked only in a later scan than the ones already written.
    if not packer.masked.any():
        return
    shape = (packer.n_volumes, len(packer.masked))
    series = np.memmap(packer.folder / SERIES, dtype="<f4", mode="r+", shape=shape)
    for scan in packer.scans:
        rows = slice(scan["offset"], scan["offset"] + scan["n_volumes"])
        series[rows, packer.masked] = 0.0
    series.flush()


def _notes(packer: _Packer, regions: Sequence[str]) -> list[str]:
    notes = [_HABITS[packer.standardize]]
    if packer.masked.any():
        names = [regions[int(index)] for index in np.flatnonzero(packer.masked)]
        notes.append(
            f"Masked out of loss and scores in all subjects, because constant or missing in a "
            f"whole scan: {', '.join(names)}."
        )
    if packer.dropped:
        notes.append(f"Left out as confounds: {', '.join(packer.dropped)}.")
    if packer.band_passed:
        notes.append(
            f"WARNING: the lag-1 autocorrelation exceeds {BAND_PASSED} in "
            f"{packer.band_passed} of {len(packer.scans)} scans. Such data were band-passed, and "
            "any linear filter «forecasts» them: scores mean little."
        )
    return notes
