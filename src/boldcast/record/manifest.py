"""The sealed record of a run: what was asked, what was found, what came out. No times, no names.

`open_manifest` writes it when the run starts, with status ``open``; `seal` replaces it when the run
ends. A killed run therefore stays ``open``, which is the truth. The record is canonical JSON, and
its ``id`` is the digest of everything else in it.

Example
-------
>>> path = seal(run_dir, blocks, {"status": "completed", "steps": 300}, [])   # doctest: +SKIP
>>> load(path)["results"]["status"]                                           # doctest: +SKIP
'completed'
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused
from boldcast.files import canonical_json, sha256_bytes, write_bytes
from boldcast.record import fields, strict
from boldcast.record.artifacts import inside, sums
from boldcast.record.privacy import hidden, redact_argv
from boldcast.record.trace import trace_digest

MANIFEST = "manifest.json"
TRACE = "trace.jsonl"
_NOT_RECORDED = {"error": "not recorded"}


def open_manifest(
    run_dir: Path, blocks: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write the record of a run that begins or goes on, with status ``open``.

    Parameters
    ----------
    run_dir : Path
        Run folder.
    blocks : mapping
        See `build`.
    attempts : sequence of mapping, optional
        Starts so far, as for `seal`.
    """
    results = {"status": "open", "steps": 0, "digests": {}, "first_cause": None}
    path = run_dir / MANIFEST
    write_bytes(path, canonical_json(build(blocks, results, attempts)))
    return path


def seal(
    run_dir: Path,
    blocks: Mapping[str, Any],
    results: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]],
) -> Path:
    """Digest every artifact of the run and write its final record, whole or not at all.

    Parameters
    ----------
    run_dir : Path
        Run folder; every artifact must have its final content.
    blocks : mapping
        See `build`.
    results : mapping
        ``status`` and, as known, ``steps``, ``weights``, ``optimizer``, ``scores``,
        ``first_cause``. ``digests`` and ``trace`` are computed here and replace given ones.
    attempts : sequence of mapping
        Per start of the run, without times: ``first_step``, ``last_step``, ``world_size``,
        ``strategy``, ``end``, and ``resumed_from``: ``world_size`` and ``strategy`` of whoever
        wrote the checkpoint continued from and whether the level promises the ``same_bits``; null
        where the attempt began at the first step.

    Returns
    -------
    Path
        The manifest.

    Raises
    ------
    DataRefused
        If the trace is damaged.
    """
    known = {"first_cause": None, **results, "digests": sums(run_dir)}
    if (run_dir / TRACE).exists():
        known["trace"] = trace_digest(run_dir / TRACE)
    path = run_dir / MANIFEST
    write_bytes(path, canonical_json(build(blocks, known, attempts)))
    return path


def build(
    blocks: Mapping[str, Any],
    results: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a complete manifest with its ``id``.

    Parameters
    ----------
    blocks : mapping
        ``requested``, ``code``, ``image``, ``data``, ``seeds``, ``numerics``, ``parallel``,
        ``hardware``, ``software`` as dictionaries, and optionally ``rerun_of``. A field not given
        becomes an error saying so; argv and the first cause are redacted here, but for subjects
        (see `boldcast.record.requested`); numbers that JSON cannot hold become an error (not
        finite) or text (over 53 bits).
    results, attempts
        See `seal`.

    Raises
    ------
    ValueError
        If a block is unknown or a field is of the wrong kind.
    """
    given = {**blocks, "results": results}
    if unknown := set(given) - {*fields.BLOCKS, "rerun_of"}:
        raise ValueError(f"unknown blocks: {sorted(unknown)}")
    manifest: dict[str, Any] = {
        "schema": fields.SCHEMA,
        "rerun_of": given.get("rerun_of"),
        "attempts": _exact(list(attempts)),
    }
    for block in fields.BLOCKS:
        names = (field.name for field in fields.FIELDS if field.block == block)
        manifest[block] = {**dict.fromkeys(names, _NOT_RECORDED), **_exact(given.get(block, {}))}
    requested = manifest["requested"]
    if isinstance(requested["argv"], list):
        requested["argv"] = redact_argv(requested["argv"])
    if isinstance(cause := manifest["results"]["first_cause"], str):
        manifest["results"]["first_cause"] = hidden(cause)
    manifest["id"] = manifest_id(manifest)
    if wrong := fields.problems(manifest):
        raise ValueError("; ".join(wrong))
    return manifest


def manifest_id(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of everything in ``manifest`` but ``id``."""
    return sha256_bytes(canonical_json({k: v for k, v in manifest.items() if k != "id"}))


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the digest of a configuration as recorded, floats taken as hexadecimal text."""
    return sha256_bytes(canonical_json(_hexed(config)))


def load(path: Path) -> dict[str, Any]:
    """Read a manifest that may come from a stranger.

    Only its form is checked; that its digests hold is for `boldcast.record.verify.verify`. Nothing
    in it is executed, imported or opened.

    Parameters
    ----------
    path : Path
        A manifest, or the run folder that holds one.

    Raises
    ------
    DataRefused
        If it is missing, too large, not canonical JSON, or not of the form of the schema.
    """
    path = inside(path, MANIFEST) if strict.is_folder(path) else path
    manifest = strict.read(path)
    if wrong := fields.problems(manifest):
        shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise DataRefused(
            f"`{path.name}` must be a {fields.SCHEMA} manifest, but is not: {shown}. "
            "Take the file that boldcast wrote, unchanged."
        )
    return dict(manifest)


def _exact(value: Any) -> Any:
    """Return ``value`` in the types that canonical JSON holds without loss."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(key): _exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    if isinstance(value, numbers.Integral):
        return int(value) if abs(int(value)) < 2**53 else str(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {"error": f"not finite: {number}"}
    raise TypeError(f"a manifest cannot hold a {type(value).__name__}")


def _hexed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hexed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hexed(item) for item in value]
    return value.hex() if isinstance(value, float) else value
