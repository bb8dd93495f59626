"""Where two runs part, by how much, and why: their traces, weights and records side by side.

Two runs are the same if every step of their traces and the digests of their final state agree. A
run that ended earlier is not the same as one that went on, however far they agree.

Example
-------
>>> compare(Path("runs/a"), Path("runs/b")).verdict   # doctest: +SKIP
'parted at step 37: first tensor blocks.0.mixer.in_proj.weight'
"""

from __future__ import annotations

import filecmp
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused
from boldcast.record.artifacts import inside
from boldcast.record.causes import Cause, ranked
from boldcast.record.manifest import TRACE, load, manifest_id
from boldcast.record.parting import FirstTensor, Parting, Traces, along
from boldcast.record.weights import TensorDifference, differing_tensors

_CHECKPOINT = re.compile(r"step_[0-9]{8,15}")
_FINAL = ("trace", "weights", "optimizer")


@dataclass(frozen=True)
class WeightsCompared:
    """The first state that both runs kept and that differs."""

    place: str
    tensors: tuple[TensorDifference, ...]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; ``same`` is the verdict, the rest explains it."""

    same: bool
    verdict: str
    steps: tuple[int, int]
    """Steps that each record covers."""
    parting: Parting | None
    tensor: FirstTensor | None
    weights: WeightsCompared | None
    causes: tuple[Cause, ...]
    notes: tuple[str, ...]


def compare(a: Path, b: Path) -> Comparison:
    """Compare two runs by what they left.

    Parameters
    ----------
    a, b : Path
        Run folders, or manifests with or without their ``trace.jsonl`` beside them.

    Raises
    ------
    DataRefused
        If one is no record of a run, a trace is damaged, or the records hold nothing to compare.
    """
    records = [load(path) for path in (a, b)]
    folders = [path if path.is_dir() else path.parent for path in (a, b)]
    files = [_regular(folder, TRACE) for folder in folders]
    notes = [note for side in zip("AB", records, files, strict=True) for note in _sealed(*side)]
    traces = None
    if files[0] and files[1]:
        traces = along(files[0], files[1])
        notes += _belongs(records, traces)
    weights = _first_weights(folders[0], folders[1])
    # the walk along the traces ends where they part
    walked = traces is not None and traces.parting is None
    steps = traces.steps if traces and walked else (_steps(records[0]), _steps(records[1]))
    parted = _verdict(records, traces, weights, steps)
    return Comparison(
        same=parted is None,
        verdict=parted or f"the same run: {steps[0]} steps, every digest equal",
        steps=steps,
        parting=traces.parting if traces else None,
        tensor=traces.tensor if traces else None,
        weights=weights,
        causes=tuple(ranked(records[0], records[1])),
        notes=tuple(notes),
    )


def _verdict(
    records: list[dict[str, Any]],
    traces: Traces | None,
    weights: WeightsCompared | None,
    steps: tuple[int, int],
) -> str | None:
    """Return the sentence for runs that are not the same, or None."""
    if traces and traces.parting:
        return f"parted at step {traces.parting.step}: {_what(traces.parting, traces.tensor)}"
    if steps[0] != steps[1]:
        shorter = "A" if steps[0] < steps[1] else "B"
        agree = "the same" if traces else "perhaps the same"
        return f"{agree} up to step {min(steps)}, where {shorter} ends; the other has {max(steps)}"
    differing, n_known = _final_digests(records, traces)
    if differing:
        upto = f"the traces agree on all {steps[0]} steps, but the " if traces else "the "
        return f"parted: {upto}final digests differ: {', '.join(differing)}"
    if weights:
        return f"parted: the weights differ in {weights.place}"
    if not n_known and not (traces and steps[0]):
        raise DataRefused(
            "Two records must hold a trace or digests of a result to be compared, but these hold "
            "none: no step was done, or none was recorded. Give the folders of two runs."
        )
    return None


def _what(parting: Parting, tensor: FirstTensor | None) -> str:
    if tensor and tensor.step == parting.step:
        return f"first tensor {tensor.name}"
    return f"first quantity {parting.quantity}"


def _final_digests(records: list[dict[str, Any]], traces: Traces | None) -> tuple[list[str], int]:
    """Return the digests of the final state that differ, and how many both records hold."""
    pairs = {name: [record["results"][name] for record in records] for name in _FINAL}
    known = {n: p for n, p in pairs.items() if all(isinstance(value, str) for value in p)}
    # Where the lines were compared, a link can differ only by what one side alone recorded.
    compared = {name: pair for name, pair in known.items() if not (name == "trace" and traces)}
    return [name for name, (one, other) in compared.items() if one != other], len(known)


def _steps(record: dict[str, Any]) -> int:
    steps = record["results"]["steps"]
    return steps if isinstance(steps, int) else 0


def _sealed(name: str, record: dict[str, Any], trace: Path | None) -> Iterator[str]:
    if record["id"] != manifest_id(record):
        yield f"{name}: the manifest was changed after it was sealed; see `boldcast verify`"
    if record["results"]["status"] == "open":
        yield f"{name}: the run is open (still running, or killed); its record is not sealed"
    if trace is None:
        yield f"{name}: no trace beside the manifest, so steps cannot be compared"


def _belongs(records: list[dict[str, Any]], traces: Traces) -> Iterator[str]:
    if traces.parting:  # then the walk ended before the last link
        return
    for name, record, chain in zip("AB", records, traces.chains, strict=True):
        recorded = record["results"]["trace"]
        if isinstance(recorded, str) and recorded != chain:
            yield f"{name}: the trace is not the one its manifest was sealed over"


def _regular(folder: Path, relative: str) -> Path | None:
    """Return a regular file inside ``folder``, None if there is none; links are not followed."""
    try:
        file = inside(folder, relative)
        return file if file.is_file() else None
    except (DataRefused, OSError):
        return None


def _first_weights(a: Path, b: Path) -> WeightsCompared | None:
    """Compare the states that both folders hold, oldest first, the final weights last."""
    for place in [*_kept_by_both(a, b), "model.safetensors"]:
        one, other = _regular(a, place), _regular(b, place)
        if one and other and not filecmp.cmp(one, other, shallow=False):
            return WeightsCompared(place, tuple(differing_tensors(one, other)))
    return None


def _kept_by_both(a: Path, b: Path) -> list[str]:
    """Return the checkpoint files under both folders, by step, weights before optimizer."""
    kept = [
        {
            f"checkpoints/{step.name}/{file.name}"
            for step in _plain_folder(folder / "checkpoints")
            if _CHECKPOINT.fullmatch(step.name)
            for file in _plain_folder(step)
            if file.suffix == ".safetensors"
        }
        for folder in (a, b)
    ]
    return sorted(kept[0] & kept[1])


def _plain_folder(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder, nothing where there is none or a link to one."""
    if folder.is_dir() and not folder.is_symlink():
        yield from folder.iterdir()
