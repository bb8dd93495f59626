"""Save the state of a run whole or not at all, and find the newest state that is whole.

A checkpoint is the folder ``checkpoints/step_00000500`` with ``model.safetensors``,
``optimizer.safetensors``, ``state.json`` and ``digests.json``, the digest of each of the others.
It holds tensors and plain values only, so loading one can run no code, and it knows nothing of
ranks or wrappers. It is written under a part name, flushed and then renamed; a kill at any moment
leaves the former ones as they were.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from boldcast.errors import BoldcastError
from boldcast.files import PART, canonical_json, sha256_file, whole_folder, write_bytes

FOLDER = "checkpoints"
DIGESTS = "digests.json"


def save(
    run_dir: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of ``step``; only rank 0 calls this.

    Parameters
    ----------
    model : nn.Module
        Unwrapped.
    state : mapping
        JSON values: counters, history, configuration digest.

    Raises
    ------
    BoldcastError
        If the disk refuses; earlier checkpoints are untouched.
    """
    path = run_dir / FOLDER / f"step_{step:08d}"
    if path.exists():  # left by a run that was resumed from before it
        _remove(path)
    try:
        with whole_folder(path) as part:
            save_file(_contiguous(model.state_dict()), part / "model.safetensors")
            save_file(optimizer_tensors(model, optimizer), part / "optimizer.safetensors")
            write_bytes(part / "state.json", canonical_json(dict(state)))
            digests = {file.name: sha256_file(file) for file in sorted(part.iterdir())}
            write_bytes(part / DIGESTS, canonical_json(digests))
    except OSError as error:
        raise BoldcastError(
            f"The checkpoint of step {step} could not be written: {error.strerror or error}. "
            f"Earlier checkpoints in {path.parent} are whole; make room and start the same "
            "command again."
        ) from error
    return path


def newest(run_dir: Path, report: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint whose every digest holds, or None.

    Damaged ones are reported and passed over; part-written ones are removed.
    """
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return None
    for part in folder.glob(f"*{PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    for path in sorted(folder.glob("step_*"), reverse=True):
        damage = find_damage(path)
        if damage is None:
            return path
        report(f"Checkpoint {path.name} is damaged ({damage}); it is passed over.")
    return None


def find_damage(path: Path) -> str | None:
    """Say what is wrong with a checkpoint folder, or return None if its digests all hold."""
    try:
        digests = orjson.loads((path / DIGESTS).read_bytes())
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            if sha256_file(path / name) != digests[name]:
                return f"{name} does not have its recorded digest"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint's tensors into ``model`` and ``optimizer`` and return its state.

    Raises
    ------
    BoldcastError
        If the tensors do not fit the model by name and shape.
    """
    device = next(model.parameters()).device
    try:
        model.load_state_dict(load_file(path / "model.safetensors", device=str(device)))
        tensors = load_file(path / "optimizer.safetensors", device=str(device))
        _load_optimizer(model, optimizer, tensors)
    except (RuntimeError, KeyError) as error:
        raise BoldcastError(
            f"Checkpoint {path} does not fit this model: {error}. It was written by another "
            "configuration or version; use a new `--run_dir`."
        ) from error
    state: dict[str, Any] = orjson.loads((path / "state.json").read_bytes())
    return state


def prune(run_dir: Path, keep: int, best_step: int | None) -> None:
    """Remove all but the ``keep`` newest checkpoints and the best one."""
    paths = sorted(p for p in (run_dir / FOLDER).glob("step_*") if not p.name.endswith(PART))
    for path in paths[:-keep]:
        if path.name != f"step_{best_step or 0:08d}":
            _remove(path)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named ``parameter/quantity``."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{quantity}": value.contiguous()
        for parameter, quantities in optimizer.state.items()
        for quantity, value in quantities.items()
    }


def _load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        name, quantity = key.rsplit("/", 1)
        # AdamW keeps its step counters on the CPU, whatever the parameters' device
        optimizer.state[parameters[name]][quantity] = value.cpu() if quantity == "step" else value


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _remove(path: Path) -> None:
    part = path.with_name(path.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    path.rename(part)  # a kill in the middle must not leave half of it under its final name
    shutil.rmtree(part)
