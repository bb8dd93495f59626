"""Check a manifest against its schema and against the rules that a record must keep.

Whether its digests are those of the files is for `verify`; here only the record itself is read. A
rule that a record breaks means that something else than boldcast wrote it, that it was edited, or
that it says what no record should say.

Example
-------
>>> [f.name for f in lint(Path("runs/demo/manifest.json")) if not f.ok]   # doctest: +SKIP
[]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boldcast.record import fields, strict, unsaid
from boldcast.record.manifest import config_digest, manifest_id
from boldcast.record.requested import stands_for_more
from boldcast.record.unsaid import short
from boldcast.record.verify import Finding

LEVELS = ("exact", "deterministic", "fast")
_HEX = re.compile(r"[0-9a-f]{64}")
_KNOWN_DIGESTS = ("results.weights", "results.optimizer", "data.digest", "code.source_digest")


def lint(path: Path) -> list[Finding]:
    """Apply every rule to a manifest.

    Parameters
    ----------
    path : Path
        The manifest file.

    Raises
    ------
    DataRefused
        If it cannot be read as canonical JSON at all.
    """
    manifest = strict.read(path)
    wrong = fields.problems(manifest)
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        return [Finding("schema", False, "; ".join(wrong[:5]) + more)]
    findings = [Finding("schema", True, f"{len(fields.FIELDS)} fields of {fields.SCHEMA}")]
    for rule in RULES:
        broken = list(rule.broken(manifest))
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        detail = "; ".join(broken[:3]) + more if broken else rule.doc
        findings.append(Finding(rule.name, not broken, detail))
    return findings


@dataclass(frozen=True)
class LintRule:
    """One rule: its name, its sentence, and what finds the places that break it."""

    name: str
    doc: str
    broken: Callable[[dict[str, Any]], Iterator[str]]


def _identity(manifest: dict[str, Any]) -> Iterator[str]:
    if manifest["id"] != manifest_id(manifest):
        yield f"computed {manifest_id(manifest)}"


def _config_identity(manifest: dict[str, Any]) -> Iterator[str]:
    requested = manifest["requested"]
    if stands_for_more(requested["config"]):
        return  # the digest is that of the true settings; `verify` takes it from config.toml
    try:
        computed = config_digest(requested["config"])
    except (TypeError, ValueError) as error:
        yield str(error)[:100]
        return
    if requested["config_digest"] != computed:
        yield f"computed {computed}"


def _digests(manifest: dict[str, Any]) -> Iterator[str]:
    for path in _KNOWN_DIGESTS:
        block, name = path.split(".")
        value = manifest[block][name]
        if isinstance(value, str) and not _HEX.fullmatch(value):
            yield f"{path} is {short(value)}"
    for index, entry in enumerate(_list(manifest["data"]["files"])):
        value = entry.get("sha256")
        if value not in ("", None) and not (isinstance(value, str) and _HEX.fullmatch(value)):
            yield f"data.files[{index}].sha256 is {short(value)}"
    if isinstance(commit := manifest["code"]["commit"], str) and not re.fullmatch(
        "[0-9a-f]{40}([0-9a-f]{24})?", commit
    ):
        yield f"code.commit is {short(commit)}"


def _dirty(manifest: dict[str, Any]) -> Iterator[str]:
    code = manifest["code"]
    if code["dirty"] is False and isinstance(code["diff_digest"], str):
        yield "code.dirty is false, and there is a digest of changes"


def _attempts(manifest: dict[str, Any]) -> Iterator[str]:
    reached = 0
    for index, attempt in enumerate(manifest["attempts"]):
        first, last = attempt.get("first_step"), attempt.get("last_step")
        if not (_is_count(first) and _is_count(last)):
            yield f"attempt {index} has no first and last step"
            continue
        if first > last:
            yield f"attempt {index} ends at step {last}, before its first, {first}"
        # a killed attempt is resumed from its last checkpoint, at or before where it was
        if first > reached:
            yield f"attempt {index} begins at step {first}, but none before reached it"
        size = attempt.get("world_size")
        if not (_is_count(size) and size > 0):
            yield f"attempt {index} has {short(size)} ranks"
        reached = max(reached, last)


def _steps(manifest: dict[str, Any]) -> Iterator[str]:
    results = manifest["results"]
    steps, status = results["steps"], results["status"]
    asked = _setting(manifest, "train", "steps")
    if not _is_count(steps):
        if status != "failed":
            yield f"results.steps is {short(steps)}"
        return
    if status == "completed" and steps != asked:
        yield f"completed after {steps} steps of {short(asked)}"
    if _is_count(asked) and steps > asked:
        yield f"{steps} steps done of {asked} asked for"
    lasts = [a.get("last_step") for a in manifest["attempts"]]
    if status == "completed" and lasts and lasts[-1] != steps:
        yield f"completed at step {steps}, but the last attempt ended at {short(lasts[-1])}"


def _results(manifest: dict[str, Any]) -> Iterator[str]:
    results = manifest["results"]
    if results["status"] == "open" and results["digests"]:
        yield "an open run has sealed artifacts"
    if results["status"] != "completed":
        return
    if isinstance(results["first_cause"], str):
        yield "completed, with a cause of failure"
    for name in ("trace.jsonl", "config.toml", "model.safetensors"):
        if name not in results["digests"]:
            yield f"completed without {name}"
    for name in ("trace", "weights"):
        if not isinstance(results[name], str):
            yield f"completed without a digest of the {name}"


def _level(manifest: dict[str, Any]) -> Iterator[str]:
    numerics = manifest["numerics"]
    level, flags = numerics["level"], numerics["flags"]
    if level not in LEVELS:
        yield f"numerics.level is {short(level)}"
    if level != _setting(manifest, "numerics", "level"):
        yield "numerics.level is not the level that the configuration asks for"
    if level not in ("exact", "deterministic") or not isinstance(flags, Mapping):
        return
    if flags.get("deterministic_algorithms") is False:
        yield f"level {level} with deterministic algorithms off"
    if flags.get("cudnn_benchmark") is True:
        yield f"level {level} with kernels chosen by timing"
    threads, asked = flags.get("threads"), _setting(manifest, "numerics", "threads")
    if _is_count(threads) and _is_count(asked) and threads != asked:
        yield f"level {level} with {threads} threads, asked for {asked}"
    tf32 = flags.get("cuda_matmul_allow_tf32"), flags.get("cudnn_allow_tf32")
    if True in tf32 and _setting(manifest, "numerics", "allow_tf32") is False:
        yield f"level {level} with TF32, which the configuration does not allow"


def _arithmetic(manifest: dict[str, Any]) -> Iterator[str]:
    parallel = manifest["parallel"]
    world, ranks = parallel["world_size"], parallel["ranks"]
    if _is_count(world) and isinstance(ranks, list) and len(ranks) != world:
        yield f"{world} ranks, of which {len(ranks)} are described"
    whole, part = parallel["global_batch_size"], parallel["micro_batch_size"]
    if not (_is_count(whole) and _is_count(part)):
        return
    if part == 0 or whole % part:
        yield f"{whole} windows a step in micro-batches of {part}"
    if whole != _setting(manifest, "train", "global_batch_size"):
        yield "global_batch_size is not the configuration's"
    per_rank = parallel["grad_accum_steps"]
    if isinstance(per_rank, list) and part:
        total = sum(n for n in (r.get("steps") for r in per_rank) if _is_count(n))
        if total * part != whole:
            yield f"{total} micro-batches of {part} are not {whole} windows"


def _seeds(manifest: dict[str, Any]) -> Iterator[str]:
    seed, asked = manifest["seeds"]["seed"], manifest["requested"]["config"].get("seed")
    if not isinstance(seed, dict) and str(seed) != str(asked):
        yield f"seeds.seed is {short(seed)}, the configuration's {short(asked)}"


def _setting(manifest: dict[str, Any], section: str, name: str) -> Any:
    block = manifest["requested"]["config"].get(section)
    return block.get(name) if isinstance(block, dict) else None


def _list(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else []


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


RULES: tuple[LintRule, ...] = (
    LintRule("id", "the SHA-256 of everything else", _identity),
    LintRule(
        "configuration digest", "that of the recorded settings, where none is replaced",
        _config_identity,
    ),
    LintRule("digests", "SHA-256 in hexadecimal, a commit as git writes it", _digests),
    LintRule("changes", "a clean checkout has no changes", _dirty),
    LintRule("attempts", "each goes on from a step that was reached", _attempts),
    LintRule("steps", "as many as asked for, where the run is complete", _steps),
    LintRule("results", "complete where the status says so", _results),
    LintRule("level", "its switches are as the level demands", _level),
    LintRule("batch arithmetic", "micro-batches, ranks and windows add up", _arithmetic),
    LintRule("seeds", "that of the configuration", _seeds),
    LintRule("no times", "nothing says when", unsaid.times),
    LintRule("no hosts or users", "nothing says where or by whom", unsaid.hosts),
    LintRule("no secrets", "nothing looks like a token or a password", unsaid.secrets),
    LintRule("no absolute paths", "nothing points into a machine", unsaid.paths),
    LintRule("no board identifiers", "GPUs are hashed", unsaid.boards),
    LintRule("plain texts", "no control characters, no text over 16 KiB", unsaid.texts),
)  # fmt: skip
"""The rules, in the order of the table that is printed."""
