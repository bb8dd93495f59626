"""What a crate names by digest alone: scan files, checkpoints and the image stay where they are.

Example
-------
>>> by_digest("#scan-0", "Scan file", "0" * 64)["identifier"][:10]
'sha256:000'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SHA256 = re.compile(r"[0-9a-f]{64}")

Entity = dict[str, Any]


def scans(manifest: Mapping[str, Any]) -> Iterator[Entity]:
    """Yield what went in: scan files by digest, or the packed data where no file is known."""
    files = manifest["data"]["files"]
    known = [
        entry["sha256"]
        for entry in (files if isinstance(files, list) else [])
        if isinstance(entry.get("sha256"), str) and SHA256.fullmatch(entry["sha256"])
    ]
    for digest in sorted(set(known)):
        yield by_digest(f"#scan-{digest[:16]}", "Scan file", digest)
    packed = manifest["data"]["digest"]
    if not known and isinstance(packed, str) and SHA256.fullmatch(packed):
        yield by_digest(f"#scan-data-{packed[:16]}", "Packed data", packed)


def elsewhere(manifest: Mapping[str, Any], parts: list[str]) -> Iterator[Entity]:
    """Yield what came out and is not in the crate, by digest."""
    for name, digest in sorted(manifest["results"]["digests"].items()):
        if name not in parts:
            yield by_digest(f"#result-{digest[:16]}-{len(name)}", f"{name} (not here)", digest)


def by_digest(identifier: str, name: str, digest: str) -> Entity:
    """Return an entity that stands for bytes which are elsewhere."""
    return {
        "@id": identifier,
        "@type": "CreativeWork",
        "name": name,
        "identifier": f"sha256:{digest}",
    }


def image(manifest: Mapping[str, Any]) -> Iterator[Entity]:
    """Yield the container image, if its digest is known."""
    block = manifest["image"]
    for field, kind in (("oci_digest", "DockerImage"), ("sif_sha256", "SIFImage")):
        value = block[field]
        digest = value.removeprefix("sha256:") if isinstance(value, str) else ""
        if SHA256.fullmatch(digest):
            yield {
                "@id": f"#image-{digest[:16]}",
                "@type": "ContainerImage",
                "additionalType": {"@id": f"https://w3id.org/ro/terms/workflow-run#{kind}"},
                "name": "boldcast",
                "sha256": digest,
            }
            return
