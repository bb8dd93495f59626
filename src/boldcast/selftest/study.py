"""A study small enough to train in seconds: made-up scans in files, with a scan list.

Files rather than the generator itself, so that reading, checking and packing are proved as well,
and so that something can be planted in them.

Example
-------
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write(Path(folder) / "study", SyntheticConfig(n_subjects=2, n_volumes=16, n_regions=3)).name
'scans.tsv'
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from boldcast.config.schema import SyntheticConfig
from boldcast.data.synthetic import generate, splits

SCAN_LIST = "scans.tsv"
_REGIONS = "regions.txt"


def write(folder: Path, sizes: SyntheticConfig) -> Path:
    """Write one ``.npy`` file a subject and the scan list; return the list's path."""
    folder.mkdir(parents=True)
    scans = generate(sizes, seed=0)
    lines = ["path\tsubject\tt_r\tsplit\tn_regions\tregions"]
    for scan, side in zip(scans, splits(sizes), strict=True):
        np.save(folder / f"{scan.subject}.npy", scan.series)
        cells = (f"{scan.subject}.npy", scan.subject, scan.t_r, side, sizes.n_regions, _REGIONS)
        lines.append("\t".join(map(str, cells)))
    (folder / _REGIONS).write_text("\n".join(scans[0].regions) + "\n", encoding="utf-8")
    (folder / SCAN_LIST).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / SCAN_LIST


def plant(study: Path, copy: Path, file: str, *, volume: int, region: int, value: float) -> None:
    """Copy a study and change one number of one scan in the copy.

    Parameters
    ----------
    study, copy : Path
        Folders; ``copy`` is made.
    file : str
        Name of the scan.
    volume, region : int
        Row and column.
    value : float
        What is added to the number there; NaN makes it NaN.
    """
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns(".*"))
    series = np.load(copy / file)
    series[volume, region] += value
    np.save(copy / file, series)


def flip_bit(path: Path) -> None:
    """Flip the lowest bit of the last byte of a file."""
    with path.open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)[0]
        stream.seek(-1, 2)
        stream.write(bytes([last ^ 1]))
