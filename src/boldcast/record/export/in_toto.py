"""A run as an in-toto Statement v1 with an SLSA Provenance v1 predicate, unsigned.

The subjects are the artifacts by digest, the resolved dependencies what went in: code, image, data
and libraries. Sign it with the tool of your choice; the statement holds no key and no time.

Source: in-toto attestation framework, Statement v1; SLSA Provenance v1.

Example
-------
>>> statement(Path("runs/demo/manifest.json"))["predicateType"]   # doctest: +SKIP
'https://slsa.dev/provenance/v1'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from boldcast.files import sha256_file
from boldcast.record.fields import SCHEMA
from boldcast.record.manifest import MANIFEST, load

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"urn:{SCHEMA.replace('/', ':')}"
"""What the predicate's parameters mean: the manifest's own blocks, named by its schema."""

_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def statement(path: Path) -> dict[str, Any]:
    """Return the statement of a manifest, as JSON values.

    Parameters
    ----------
    path : Path
        Manifest file, or the run folder that holds it.

    Raises
    ------
    DataRefused
        If it is no manifest.
    """
    manifest = load(path)
    file = path / MANIFEST if path.is_dir() else path
    own = {"name": MANIFEST, "digest": {"sha256": sha256_file(file)}}
    digests = manifest["results"]["digests"]
    artifacts = [{"name": n, "digest": {"sha256": d}} for n, d in sorted(digests.items())]
    return {
        "_type": STATEMENT,
        "subject": [own, *(a for a in artifacts if a["name"] != MANIFEST)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "argv": manifest["requested"]["argv"],
                    "config": manifest["requested"]["config"],
                },
                "internalParameters": {
                    "numerics": manifest["numerics"],
                    "parallel": manifest["parallel"],
                    "seeds": manifest["seeds"],
                },
                "resolvedDependencies": list(_dependencies(manifest)),
            },
            "runDetails": {
                "builder": {
                    "id": "urn:boldcast:train",
                    "version": {"boldcast": str(manifest["code"]["version"])},
                },
                "metadata": {"invocationId": f"urn:sha256:{manifest['id']}"},
            },
        },
    }


def _dependencies(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    code, data, image = manifest["code"], manifest["data"], manifest["image"]
    yield from _digested("boldcast source files", "sha256", code["source_digest"])
    if isinstance(code["commit"], str) and _COMMIT.fullmatch(code["commit"]):
        yield {"name": "boldcast commit", "digest": {"gitCommit": code["commit"]}}
    yield from _digested("changes to the commit", "sha256", code["diff_digest"])
    yield from _digested("OCI image", "sha256", image["oci_digest"])
    yield from _digested("SIF image", "sha256", image["sif_sha256"])
    yield from _digested("packed data", "sha256", data["digest"])
    files = data["files"] if isinstance(data["files"], list) else []
    for index, entry in enumerate(files):
        yield from _digested(f"scan file {index}", "sha256", entry.get("sha256"))
    packages = manifest["software"]["packages"]
    for name, version in sorted(packages.items()) if isinstance(packages, dict) else ():
        if isinstance(version, str) and re.fullmatch(r"[\w.-]+", name):
            yield {"name": name, "uri": f"pkg:pypi/{name}@{_quoted(version)}"}


def _digested(name: str, algorithm: str, value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, str) and (match := _SHA256.fullmatch(value)):
        yield {"name": name, "digest": {algorithm: match[1]}}


def _quoted(version: str) -> str:
    from urllib.parse import quote

    return quote(version, safe="")
