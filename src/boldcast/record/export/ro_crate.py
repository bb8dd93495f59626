"""A run as a Process Run Crate 0.5 (RO-Crate 1.1): a folder that says what made what.

The crate holds the manifest and what lies beside it of the small results and the final weights.
Checkpoints and scan files stay out; they are named by their digests. The one date that the
standard demands is that of the export, or ``SOURCE_DATE_EPOCH``.

Source: https://w3id.org/ro/wfrun/process/0.5

Example
-------
>>> write_crate(Path("runs/demo"), Path("crate"))   # doctest: +SKIP
PosixPath('crate/ro-crate-metadata.json')
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from boldcast.errors import DataRefused, UsageRefused
from boldcast.files import sha256_file, whole_folder
from boldcast.record.artifacts import VOLATILE_FILES, inside
from boldcast.record.events import read_events
from boldcast.record.export.entities import SHA256, Entity, elsewhere, image, scans
from boldcast.record.manifest import MANIFEST, load

METADATA = "ro-crate-metadata.json"
_CONTEXT = [
    "https://w3id.org/ro/crate/1.1/context",
    "https://w3id.org/ro/terms/workflow-run/context",
]
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_STATUS = {
    "completed": "http://schema.org/CompletedActionStatus",
    "failed": "http://schema.org/FailedActionStatus",
    "diverged": "http://schema.org/FailedActionStatus",
}
_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".toml": "application/toml",
    ".html": "text/html",
    ".safetensors": "application/octet-stream",
}
_MAX_EVENTS = 64 * 2**20
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")


def write_crate(path: Path, out: Path, with_times: bool = False) -> Path:
    """Write the crate of a run, whole or not at all.

    Parameters
    ----------
    path : Path
        Run folder, or a manifest: what lies beside it and has its recorded digest comes along.
    out : Path
        Folder to make; it must not exist.
    with_times : bool
        Take start and end from ``events.jsonl``, which the record itself leaves out.

    Returns
    -------
    Path
        The crate's metadata file.

    Raises
    ------
    DataRefused
        If it is no manifest, or a file beside it does not have its recorded digest.
    UsageRefused
        If ``out`` exists.
    """
    if out.exists() or out.is_symlink():
        raise UsageRefused(f"`--out` must be a new folder, but {out} exists. Name another.")
    manifest = load(path)
    folder = path if path.is_dir() else path.parent
    source = path / MANIFEST if path.is_dir() else path
    parts = dict(_parts(manifest, folder))
    times = _times(folder) if with_times else {}
    try:
        with whole_folder(out) as crate:
            shutil.copyfile(source, crate / MANIFEST, follow_symlinks=False)
            for name, file in parts.items():
                shutil.copyfile(file, crate / name, follow_symlinks=False)
            document = {
                "@context": _CONTEXT,
                "@graph": list(_graph(manifest, [MANIFEST, *parts], crate, times)),
            }
            flags = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            (crate / METADATA).write_bytes(orjson.dumps(document, option=flags))
    except OSError as error:
        raise UsageRefused(
            f"`--out` must be a folder that can be made, but {out} is not: "
            f"{error.strerror or error}. Name another."
        ) from None
    return out / METADATA


def _parts(manifest: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what of the run's top folder comes along, each with its recorded digest."""
    for name, digest in sorted(manifest["results"]["digests"].items()):
        if "/" in name or name in (MANIFEST, METADATA):
            continue
        file = inside(folder, name)
        if not file.is_file():
            continue
        if sha256_file(file) != digest:
            if name in VOLATILE_FILES:  # written again since
                continue
            raise DataRefused(
                f"`{name}` must have its recorded digest, but has another. Run `boldcast verify`."
            )
        yield name, file


def _graph(
    manifest: Mapping[str, Any], parts: list[str], crate: Path, times: Mapping[str, str]
) -> Iterator[Entity]:
    name = f"boldcast run {str(manifest['requested']['config'].get('name', ''))[:80]}".strip()
    action = f"#run-{manifest['id'][:16]}"
    inputs, absent = list(scans(manifest)), list(elsewhere(manifest, parts))
    yield {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": _PROFILE},
        "name": name,
        "description": _description(manifest),
        "datePublished": _today(),
        "license": {"@id": "#no-licence"},
        "hasPart": _references(_iri(part) for part in parts),
        "mentions": {"@id": action},
    }
    yield {
        "@id": _PROFILE,
        "@type": "CreativeWork",
        "name": "Process Run Crate",
        "version": "0.5",
    }
    yield {
        "@id": "#no-licence",
        "@type": "CreativeWork",
        "name": "No licence stated",
        "description": "The record states no licence for the results; the terms of the data, "
        "where they are known, stand in the manifest under data.notes.",
    }
    yield from _tool(manifest)
    yield _action(manifest, action, name, parts, [*inputs, *absent], times)
    yield from (_file(manifest, part, crate) for part in parts)
    yield from inputs
    yield from absent
    yield from image(manifest)


def _description(manifest: Mapping[str, Any]) -> str:
    notes = manifest["data"]["notes"]
    first = notes[0][:500] if isinstance(notes, list) and notes else ""
    level = str(manifest["numerics"]["level"])[:40]
    return f"One training run at the level {level}, with its sealed record. {first}".strip()


def _tool(manifest: Mapping[str, Any]) -> Iterator[Entity]:
    code = manifest["code"]
    tool = {
        "@id": _tool_id(manifest),
        "@type": "SoftwareApplication",
        "name": "boldcast",
        "softwareVersion": str(code["version"])[:80],
    }
    if isinstance(code["source_digest"], str):
        tool["identifier"] = f"sha256:{code['source_digest'][:64]}"
    yield tool


def _tool_id(manifest: Mapping[str, Any]) -> str:
    digest = manifest["code"]["source_digest"]
    known = isinstance(digest, str) and SHA256.fullmatch(digest)
    return f"urn:boldcast:source:{digest}" if known else "urn:boldcast:source:unknown"


def _action(
    manifest: Mapping[str, Any],
    identifier: str,
    name: str,
    parts: list[str],
    named: list[Entity],
    times: Mapping[str, str],
) -> Entity:
    status = manifest["results"]["status"]
    inputs = [entity["@id"] for entity in named if entity["@id"].startswith("#scan")]
    inputs += [_iri(part) for part in parts if part == "config.toml"]
    results = [_iri(part) for part in parts if part != "config.toml"]
    results += [entity["@id"] for entity in named if not entity["@id"].startswith("#scan")]
    action: Entity = {
        "@id": identifier,
        "@type": "CreateAction",
        "name": name,
        "description": " ".join(["boldcast", *manifest["requested"]["argv"]])[:500],
        "identifier": f"sha256:{manifest['id']}",
        "instrument": {"@id": _tool_id(manifest)},
        "object": _references(inputs),
        "result": _references(results),
        **times,
    }
    if status in _STATUS:
        action["actionStatus"] = _STATUS[status]
    if "Failed" in _STATUS.get(status, "") and isinstance(manifest["results"]["first_cause"], str):
        action["error"] = manifest["results"]["first_cause"][:500]
    if images := list(image(manifest)):
        action["containerImage"] = {"@id": images[0]["@id"]}
    return action


def _file(manifest: Mapping[str, Any], part: str, crate: Path) -> Entity:
    file = crate / part
    entity: Entity = {
        "@id": _iri(part),
        "@type": "File",
        "name": "boldcast manifest" if part == MANIFEST else part,
        "encodingFormat": _TYPES.get(file.suffix, "application/octet-stream"),
        "contentSize": str(file.stat().st_size),
        "sha256": manifest["results"]["digests"].get(part) or sha256_file(file),
    }
    return entity


def _times(folder: Path) -> dict[str, str]:
    """Return start and end of the run by its own log, which is not part of the record."""
    file = inside(folder, "events.jsonl")
    readable = file.is_file() and file.stat().st_size <= _MAX_EVENTS
    events = read_events(file) if readable else []
    stamps = [e["time"] for e in events if isinstance(e.get("time"), str)]
    stamps = [stamp for stamp in stamps if _TIME.fullmatch(stamp)]
    if not stamps:
        raise DataRefused(
            "`events.jsonl` must lie beside the manifest for --with_times and hold times, in at "
            "most 64 MiB, but does not. "
            "Export without times, or give the run folder."
        )
    return {"startTime": stamps[0], "endTime": stamps[-1]}


def _references(identifiers: Iterable[str]) -> Any:
    """Return references to entities; a single one stands without a list around it."""
    references = [{"@id": identifier} for identifier in identifiers]
    return references[0] if len(references) == 1 else references


def _today() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdecimal() else datetime.now(UTC)
    return moment.date().isoformat()


def _iri(relative: str) -> str:
    from urllib.parse import quote

    return quote(relative, safe="/")
