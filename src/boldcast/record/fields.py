"""Every field of the manifest, once: from this table come the check, the schema and the README.

A field holds one of its kinds or, unless it is required, ``{"error": text}``; it is never missing.
Blocks may hold further fields, which are digested but not checked.

Example
-------
>>> problems({"schema": "boldcast/manifest/1"})[0]
'`id` must be there, but is missing'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SCHEMA = "boldcast/manifest/1"
STATUSES = ("open", "completed", "stopped", "failed", "diverged")
_HEX = "^[0-9a-f]{64}$"
_PART = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*"
RELATIVE = f"^{_PART}(/{_PART})*$"
"""Paths of artifacts: relative, no part empty or hidden, no backslash, no control character."""

KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "SHA-256": {"type": "string", "pattern": _HEX},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "list of text": {"type": "array", "items": {"type": "string"}},
    "list of objects": {"type": "array", "items": {"type": "object"}},
    "status": {"enum": list(STATUSES)},
    "this schema": {"const": SCHEMA},
    "digest by path": {
        "type": "object",
        "propertyNames": {"pattern": RELATIVE},
        "additionalProperties": {"type": "string", "pattern": _HEX},
    },
}
"""Kind to the piece of JSON Schema that means it."""

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Field:
    """One field: block (empty for the top level), name, kinds it may be, and its sentence."""

    block: str
    name: str
    kinds: tuple[str, ...]
    doc: str
    required: bool = False

    @property
    def path(self) -> str:
        """Name with its block, as in messages."""
        return f"{self.block}.{self.name}" if self.block else self.name


def _rows() -> Iterator[Field]:
    block = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith("["):
            block = line.strip("[]")
            continue
        name, kinds, doc = (part.strip() for part in line.split("|"))
        required = name.endswith("!")
        yield Field(block, name.rstrip("!"), tuple(kinds.split(" or ")), doc, required)


# name (with ! when an error may not stand for it) | kinds | meaning
_TABLE = """
schema! | this schema | Name and version of this form.
id! | SHA-256 | SHA-256 of the canonical JSON of everything but `id`.
rerun_of! | SHA-256 or null | `id` of the record that this run repeats.
[requested]
argv! | list of text | Command line; secrets, absolute paths, user name and subjects replaced.
config! | object | Resolved configuration, every setting; subjects and absolute paths replaced.
config_digest! | SHA-256 | SHA-256 of the true configuration's canonical JSON, floats as hex.
[code]
origin | text | `git`, `image`, `vcs install` or `wheel`.
version | text | Version of boldcast.
commit | text | Git commit.
dirty | boolean | Whether tracked files, or new ones in the package, differ from the commit.
diff_digest | SHA-256 or null | SHA-256 of `git diff HEAD`; null when clean.
source_digest | SHA-256 | SHA-256 of what `sha256sum` prints for the package's `.py` files, by path.
[image]
kind | text | `none`, `docker`, `podman`, `apptainer` or `container`.
oci_digest | text or null | Digest of the OCI image, passed in by BOLDCAST_OCI_DIGEST.
sif_sha256 | text or null | SHA-256 of the SIF, passed in by BOLDCAST_SIF_SHA256.
base_digest | text or null | Digest of the base image, from the build record or a label.
labels | object or null | Labels of the image, without times and absolute paths.
runtime | text or null | What started, or built, the container, with its version.
[data]
digest | text | Digest of the packed store: all series, regions and splits.
files | list of objects | Per scan file: `sha256`, `shape`, `t_r` (s), hashed `subject`, `split`.
splits | object | Per split: counts and digest.
notes | list of text | Remarks on the data that the user was shown.
[seeds]
seed | integer or text | The one seed; further fields hold what was derived from it.
[numerics]
level | text | `exact`, `deterministic` or `fast`.
dtype | text | Autocast type of the forward pass.
flags | object | Switches of torch that change bits, as found in effect.
environment | object | Allow-listed variables, each `unset`, `empty` or `set` with its value.
kernels | object or text | Back end of the scan and of the convolution.
autotune | object or null | How Triton's configurations are chosen; null without a GPU.
nccl | object or null | Version and environment of NCCL; null where NCCL is not used.
[parallel]
strategy | text | How ranks work together.
world_size | integer | Number of ranks.
global_batch_size | integer | Windows per optimizer step, over all ranks.
micro_batch_size | integer | Windows per forward pass.
grad_accum_steps | integer or list of objects or object | Forward passes of a rank per step.
ranks | list of objects | Per rank: its device.
[hardware]
nodes | list of objects | Per node: `cpu`, `memory_gib`, `numa`, `limits`, `kernel`, `gpu`.
[software]
python | object | Version, implementation and compiler of the interpreter.
platform | object | Operating system and architecture.
libc | text | C library and its version.
packages | object | Version of each package that matters; null: not installed.
[results]
status! | status | `open` until sealed; a killed run stays `open`.
steps | integer | Optimizer steps done.
digests! | digest by path | SHA-256 of every artifact in the run folder.
trace | SHA-256 | Last link of the trace's chain.
weights | text | Digest of the final weights.
optimizer | text | Digest of the final optimizer state.
scores | object | Held-out scores and baselines.
first_cause | text or null | Why it failed or stopped.
"""

_ATTEMPT = (
    "`first_step`, `last_step`, `world_size`, `strategy`, `end`, and `resumed_from`: the "
    "`world_size` and `strategy` before, and whether the level promises the `same_bits`"
)

FIELDS: tuple[Field, ...] = tuple(_rows())
BLOCKS: tuple[str, ...] = tuple(dict.fromkeys(field.block for field in FIELDS if field.block))


def problems(manifest: Any) -> list[str]:
    """Return what is wrong with the form of ``manifest``, one sentence each."""
    if not isinstance(manifest, dict):
        return ["the manifest must be an object"]
    known = {*BLOCKS, "attempts", *(field.name for field in FIELDS if not field.block)}
    found = [f"`{name[:60]}` must be a known block" for name in sorted(set(manifest) - known)]
    found += [
        f"`{block}` must be an object"
        for block in BLOCKS
        if not isinstance(manifest.get(block, {}), dict)
    ]
    attempts = manifest.get("attempts")
    if not _is_kind(attempts, "list of objects"):
        found.append("`attempts` must be a list of objects")
    for field in FIELDS:
        place = manifest.get(field.block) if field.block else manifest
        if isinstance(place, dict) or place is None:
            found += _field_problem(place or {}, field)
    return found


def _field_problem(place: dict[str, Any], field: Field) -> list[str]:
    if field.name not in place:
        return [f"`{field.path}` must be there, but is missing"]
    value = place[field.name]
    if any(_is_kind(value, kind) for kind in field.kinds):
        return []
    if not field.required and _is_error(value):
        return []
    return [f"`{field.path}` must be {' or '.join(field.kinds)}, but is {repr(value)[:60]}"]


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["error"] and isinstance(value["error"], str)


def _is_kind(value: Any, kind: str) -> bool:
    rule = KINDS[kind]
    if "enum" in rule:
        return value in rule["enum"]
    if "const" in rule:
        return bool(value == rule["const"])
    if not _is_type(value, rule["type"]):
        return False
    if "pattern" in rule:
        return matches(value, rule["pattern"])
    if "items" in rule:
        return all(_is_type(item, rule["items"]["type"]) for item in value)
    if kind == "digest by path":
        return all(
            matches(path, RELATIVE) and isinstance(digest, str) and matches(digest, _HEX)
            for path, digest in value.items()
        )
    return True


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    types: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": int | float,
        "null": type(None),
        "object": dict,
        "array": list,
    }
    return name in types and isinstance(value, types[name])


def matches(text: str, pattern: str) -> bool:
    """Say whether the whole of ``text`` is what ``pattern`` describes."""
    # `$` in Python also matches before a last newline, in JSON Schema it does not.
    return "\n" not in text and re.search(pattern, text) is not None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the manifest; ``manifests/schema.json`` holds it."""
    top = {field.name: _schema_of(field) for field in FIELDS if not field.block}
    for block in BLOCKS:
        inside = [field for field in FIELDS if field.block == block]
        top[block] = {
            "type": "object",
            "required": [field.name for field in inside],
            "properties": {field.name: _schema_of(field) for field in inside},
        }
    top["attempts"] = {
        **KINDS["list of objects"],
        "description": f"Per start of the run: {_ATTEMPT}.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "boldcast run manifest",
        "type": "object",
        "required": sorted(top),
        "properties": top,
        "additionalProperties": False,
    }


def _schema_of(field: Field) -> dict[str, Any]:
    options = [KINDS[kind] for kind in field.kinds] + ([] if field.required else [_ERROR])
    if len(options) == 1:
        return {"description": field.doc, **options[0]}
    return {"description": field.doc, "anyOf": options}


def table() -> str:
    """Return the fields as a Markdown table; ``manifests/README.md`` holds it."""
    rows = ["| field | holds | meaning |", "|---|---|---|"]
    for field in FIELDS:
        kinds = " or ".join(field.kinds) + ("" if field.required else " or error")
        rows.append(f"| `{field.path}` | {kinds} | {field.doc} |")
    rows.append(f"| `attempts` | list of objects | Per start: {_ATTEMPT}. |")
    return "\n".join(rows) + "\n"
