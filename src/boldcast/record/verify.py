"""Recompute every digest that a run's record holds, and name what no longer agrees.

What a check proves: the files are those the manifest was sealed over, and the manifest is the one
its ``id`` names. Who changes a file, the manifest and its ``id`` together is found only by
comparing ``id`` with one kept elsewhere.

Example
-------
>>> [f.name for f in verify(Path("runs/demo")) if not f.ok]   # doctest: +SKIP
['model.safetensors']
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused
from boldcast.files import PART, sha256_file
from boldcast.record import strict
from boldcast.record.artifacts import CHECKPOINT_DIGESTS, artifact_paths, foreign_paths, inside
from boldcast.record.manifest import TRACE, config_digest, load, manifest_id
from boldcast.record.requested import same_setting, stands_for_more
from boldcast.record.trace import GENESIS, each_line

MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: its name, whether it holds, and what was found."""

    name: str
    ok: bool
    detail: str


def verify(path: Path, data: Path | None = None) -> list[Finding]:
    """Check a run folder or a manifest against the digests recorded.

    Parameters
    ----------
    path : Path
        A run folder: everything recorded must be there, and nothing else. Or a manifest file:
        what lies beside it is checked, what does not is counted.
    data : Path, optional
        Folder that holds the scan files; they are recognized by content, not by name.

    Returns
    -------
    list of Finding
        In the order checked; the record holds if every one is ok.

    Raises
    ------
    DataRefused
        If there is nothing at ``path``.
    """
    whole = strict.is_folder(path)
    if not path.exists():
        raise DataRefused(
            f"`{path.name}` must be a run folder or a manifest, but there is none. "
            "Give the folder that `boldcast train` printed."
        )
    folder = path if whole else path.parent
    try:
        manifest = load(path)
    except DataRefused as refused:
        return [Finding("manifest", False, str(refused))]
    findings = [*_own(manifest), *_artifacts(manifest, folder, whole)]
    findings += [*_config(manifest, folder), *_trace(manifest, folder)]
    if whole:
        findings += _checkpoints(folder)
    return findings + _data(manifest, data)


def _own(manifest: dict[str, Any]) -> Iterator[Finding]:
    yield _same("manifest id", manifest["id"], manifest_id(manifest))
    status = manifest["results"]["status"]
    still = "open: running or killed, so its artifacts were never sealed"
    yield Finding("status", True, still if status == "open" else status)


def _same(name: str, recorded: Any, computed: Any) -> Finding:
    if recorded == computed:
        return Finding(name, True, str(computed))
    return Finding(name, False, f"recorded {str(recorded)[:64]}, computed {str(computed)[:64]}")


def _artifacts(manifest: dict[str, Any], folder: Path, whole: bool) -> Iterator[Finding]:
    recorded: dict[str, str] = manifest["results"]["digests"]
    absent = []
    for relative, digest in recorded.items():
        try:
            file = inside(folder, relative)
            there = file.is_file()
        except (DataRefused, OSError) as error:
            yield Finding(relative, False, str(error))
            continue
        if there:
            yield _same(relative, digest, sha256_file(file))
        elif whole:
            yield Finding(relative, False, "recorded, but not there")
        else:
            absent.append(relative)
    if absent:
        yield Finding("elsewhere", True, f"{len(absent)} artifacts are not beside the manifest")
    if whole and manifest["results"]["status"] != "open":
        for relative in artifact_paths(folder):
            if relative not in recorded:
                yield Finding(relative, False, "there, but not recorded")
    for relative in foreign_paths(folder) if whole else ():
        yield Finding(relative, False, "a link, a device or an odd name: no artifact can be that")


def _config(manifest: dict[str, Any], folder: Path) -> Iterator[Finding]:
    requested = manifest["requested"]
    file = _beside(folder, "config.toml")
    replaced = stands_for_more(requested["config"])
    if not replaced:
        computed = config_digest(requested["config"])
        yield _same("config digest", requested["config_digest"], computed)
    elif file is None:
        yield Finding("config digest", True, "not checked: its config.toml is not beside it")
    if file is None:
        return
    if file.stat().st_size > MAX_CONFIG_BYTES:
        yield Finding("config", False, "config.toml is larger than any configuration")
        return
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        yield Finding("config", False, f"config.toml cannot be read: {error}")
        return
    written_flat, recorded = _flat(written), _flat(manifest["requested"]["config"])
    parted = [
        name
        for name in sorted({*written_flat, *recorded})
        if not same_setting(name, written_flat.get(name), recorded.get(name))
    ]
    if replaced:
        whole = _with_unset(written, requested["config"])
        yield _same("config digest", requested["config_digest"], config_digest(whole))
    detail = f"config.toml and the manifest differ in {', '.join(parted[:5])}"
    yield Finding("config", not parted, detail if parted else f"{len(written_flat)} settings")


def _beside(folder: Path, name: str) -> Path | None:
    """Return a regular file of the folder; a link would lead out of it, and is named elsewhere."""
    file = folder / name
    return file if file.is_file() and not file.is_symlink() else None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return leaves by dotted name, without nulls, which TOML cannot hold."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _with_unset(written: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return what ``config.toml`` holds with the nulls of the record, which TOML cannot hold."""
    unset = {name: None for name, value in recorded.items() if value is None}
    return unset | {
        name: _with_unset(value, recorded.get(name, {}))
        if isinstance(value, dict) and isinstance(recorded.get(name), dict)
        else value
        for name, value in written.items()
    }


def _trace(manifest: dict[str, Any], folder: Path) -> Iterator[Finding]:
    file = _beside(folder, TRACE)
    if file is None:
        return
    n_lines, last = 0, {"chain": GENESIS, "step": 0}
    try:
        for line in each_line(file):
            n_lines, last = n_lines + 1, line
    except DataRefused as refused:
        yield Finding("trace", False, str(refused))
        return
    yield Finding("trace", True, f"{n_lines} lines chain")
    results = manifest["results"]
    if results["status"] != "open":
        yield _same("trace digest", results["trace"], last["chain"])
        yield _same("steps", results["steps"], last["step"])


def _checkpoints(folder: Path) -> Iterator[Finding]:
    top = folder / "checkpoints"
    for checkpoint in sorted(top.iterdir()) if top.is_dir() and not top.is_symlink() else ():
        plain = checkpoint.is_dir() and not checkpoint.is_symlink()
        if plain and not checkpoint.name.endswith(PART):
            yield from _checkpoint(checkpoint, f"checkpoints/{checkpoint.name}")


def _checkpoint(folder: Path, name: str) -> Iterator[Finding]:
    try:
        recorded = strict.read(inside(folder, CHECKPOINT_DIGESTS))
        if not isinstance(recorded, dict):
            raise DataRefused(f"`{CHECKPOINT_DIGESTS}` must be an object, but is not.")
        wrong = [
            relative
            for relative, digest in recorded.items()
            if not (file := inside(folder, relative)).is_file() or sha256_file(file) != digest
        ]
    except DataRefused as refused:
        yield Finding(name, False, str(refused))
        return
    extra = sorted(set(artifact_paths(folder)) - set(recorded) - {CHECKPOINT_DIGESTS})
    detail = "; ".join(
        f"{what}: {', '.join(names)}"
        for what, names in (("changed or missing", wrong), ("not recorded", extra))
        if names
    )
    yield Finding(name, not detail, detail or f"{len(recorded)} files")


def _data(manifest: dict[str, Any], data: Path | None) -> list[Finding]:
    files = manifest["data"]["files"]
    if not isinstance(files, list) or not files:
        return [Finding("data", True, "no files recorded")]
    if data is None:
        return [Finding("data", True, f"{len(files)} files not looked at; give --data DIR")]
    sizes = {str(entry.get("n_bytes")) for entry in files}
    candidates = [file for file in sorted(data.rglob("*")) if file.is_file()]
    if "None" not in sizes:
        candidates = [file for file in candidates if str(file.stat().st_size) in sizes]
    here = {sha256_file(file) for file in candidates}
    missing = [d[:16] for d in (str(entry.get("sha256")) for entry in files) if d not in here]
    if missing:
        detail = f"{len(missing)} of {len(files)} files not found by content: {', '.join(missing)}"
        return [Finding("data", False, detail)]
    return [Finding("data", True, f"{len(files)} files found by content")]
