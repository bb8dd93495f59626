"""The packed store: one memory-mapped file of all scans, and an index that describes it.

``prepare`` builds it once for the same inputs and finds it again ever after: the folder is named by
the digest of everything the numbers depend on, so a changed file or setting is another folder.

Example
-------
>>> folder = prepare(config, root=Path("data"), cache=Path("cache"))  # doctest: +SKIP
>>> store = Store.open(folder)  # doctest: +SKIP
>>> store.series[store.volumes(0)].shape  # doctest: +SKIP
(1200, 94)
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boldcast.config.schema import Config
from boldcast.data.pack import FORMAT, INDEX, OBSERVED, SERIES, pack
from boldcast.data.segments import observed_stretches
from boldcast.data.source import Source, open_source
from boldcast.data.split import Split
from boldcast.errors import DataRefused
from boldcast.files import canonical_json, sha256_bytes, sha256_file, whole_folder


@dataclass(frozen=True)
class ScanInfo:
    """Where a scan lies in the store, and which it is; ``sha256`` is that of its file."""

    subject: str
    session: str
    scan: str
    family: str | None
    split: Split
    n_volumes: int
    offset: int
    sha256: str
    path_label: str


@dataclass(frozen=True, eq=False)
class Store:
    """All scans of a run, packed.

    Attributes
    ----------
    folder : Path
        Where it lies.
    regions : tuple of str
        Names of the regions.
    region_mask : bool array, shape (n_regions,)
        False: without signal in some scan; zero in the store, out of loss and scores.
    t_r : float
        Repetition time in seconds.
    scans : tuple of ScanInfo
        In the order of the scan list, one after another along the volumes.
    series : float32 memory map, shape (total_volumes, n_regions)
        Standardized signals.
    observed : bool array, shape (total_volumes,)
        False where a volume was censored.
    notes : tuple of str
        What everybody must be told of these data.
    digest : str
        SHA-256 of the index, which holds the digests of the series and of every input file.
    series_sha256, observed_sha256 : str
        Digests that the two data files must have.
    """

    folder: Path
    regions: tuple[str, ...]
    region_mask: NDArray[np.bool_]
    t_r: float
    scans: tuple[ScanInfo, ...]
    series: NDArray[np.float32]
    observed: NDArray[np.bool_]
    notes: tuple[str, ...]
    digest: str
    series_sha256: str
    observed_sha256: str

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Map a packed store; checks sizes, not digests (see :meth:`damage`).

        Raises
        ------
        DataRefused
            If the folder is not a whole packed store of this version.
        """
        content, data = _index(folder)
        shape = (content["n_volumes"], len(content["regions"]))
        _check_size(folder / SERIES, shape[0] * shape[1] * 4)
        _check_size(folder / OBSERVED, shape[0])
        return cls(
            folder=folder,
            regions=tuple(content["regions"]),
            region_mask=np.array(content["region_mask"], dtype=np.bool_),
            t_r=float.fromhex(content["t_r"]),
            scans=tuple(ScanInfo(**scan) for scan in content["scans"]),
            series=np.memmap(folder / SERIES, dtype="<f4", mode="r", shape=shape),
            observed=np.memmap(folder / OBSERVED, dtype=np.bool_, mode="r", shape=shape[:1]),
            notes=tuple(content["notes"]),
            digest=sha256_bytes(data),
            series_sha256=content["series_sha256"],
            observed_sha256=content["observed_sha256"],
        )

    def __reduce__(self) -> tuple[Callable[[Path], Store], tuple[Path]]:
        """Travel to loader processes as a path, not as a copy of the data."""
        return Store.open, (self.folder,)

    def volumes(self, scan: int) -> slice:
        """Return the rows of ``series`` that hold a scan."""
        info = self.scans[scan]
        return slice(info.offset, info.offset + info.n_volumes)

    def damage(self) -> tuple[str, ...]:
        """Read everything and return a sentence for each file that is not as it was packed."""
        return tuple(
            f"`{self.folder / name}` must have the SHA-256 {expected}, but has {found}. Delete "
            "the folder; it is packed again by the next run."
            for name, expected in ((SERIES, self.series_sha256), (OBSERVED, self.observed_sha256))
            if (found := sha256_file(self.folder / name)) != expected
        )


def prepare(config: Config, root: Path, cache: Path) -> Path:
    """Return the folder of the packed store of a run, building it where it is not there yet.

    Two runs may do so at once: each builds under a name of its own, the first to finish gives the
    folder its final name, the other uses it.

    Parameters
    ----------
    config : Config
        The run's settings.
    root : Path
        The folder where data live.
    cache : Path
        The folder where packed stores live; made if missing.

    Raises
    ------
    DataRefused
        If the data are missing, damaged, ambiguous, unfit, or too short for one window.
    """
    source = open_source(config, root)
    digest = sha256_bytes(canonical_json({"format": FORMAT, "inputs": source.inputs}))
    folder = cache / f"store-{digest[:32]}"
    store = _existing(folder, digest) or _build(config, source, digest, folder)
    _refuse_short(config, source, store)
    return folder


def _existing(folder: Path, digest: str) -> Store | None:
    try:
        content, _ = _index(folder)
        return Store.open(folder) if content["inputs_sha256"] == digest else None
    except DataRefused:
        return None


def _build(config: Config, source: Source, digest: str, folder: Path) -> Store:
    mine = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    with whole_folder(mine) as part:
        pack(source, config.data.standardize, digest, part)
    try:
        _take_name(mine, folder, digest)
    finally:
        shutil.rmtree(mine, ignore_errors=True)
    return Store.open(folder)


def _take_name(mine: Path, folder: Path, digest: str) -> None:
    try:
        mine.rename(folder)
        return
    except OSError:
        if _existing(folder, digest) is not None:
            return
    # What stands there is damaged: out of the way in one step, so that no run opens half of it.
    damaged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.damaged")
    folder.rename(damaged)
    mine.rename(folder)
    shutil.rmtree(damaged, ignore_errors=True)


def _refuse_short(config: Config, source: Source, store: Store) -> None:
    data = config.data
    span = data.context_length + max(data.horizons)
    problems = []
    for index, item in enumerate(source.items):
        lengths = [n for _, n in observed_stretches(store.observed[store.volumes(index)])]
        if max(lengths, default=0) < span:
            problems.append(
                f"`{item.where}` must have at least {span} observed volumes in one piece "
                f"(context {data.context_length} + horizon {max(data.horizons)}), but has "
                f"{max(lengths, default=0)}. Lower data.context_length or data.horizons, or take "
                "the scan off the list."
            )
    if problems:
        raise DataRefused("\n".join(problems))


def _index(folder: Path) -> tuple[dict[str, Any], bytes]:
    try:
        data = (folder / INDEX).read_bytes()
        content = orjson.loads(data)
    except (OSError, orjson.JSONDecodeError) as error:
        raise DataRefused(
            f"`{folder}` must be a packed store, but its index cannot be read ({error}). Delete "
            "the folder; it is packed again by the next run."
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataRefused(
            f"`{folder}` must be a packed store of format {FORMAT}, but is not. Delete the folder; "
            "it is packed again by the next run."
        )
    return content, data


def _check_size(path: Path, expected: int) -> None:
    found = path.stat().st_size if path.is_file() else 0
    if found != expected or expected == 0:
        raise DataRefused(
            f"`{path}` must have {expected} bytes, but has {found}. Delete its folder; it is "
            "packed again by the next run."
        )
