"""Save the state of a run whole or not at all, and load it (``kept`` finds the newest).

A checkpoint is the folder ``checkpoints/step_00000500`` with the tensors in ``*.safetensors``
(``shards``), ``state.json`` and ``digests.json``, the digest of each of the others. It holds
tensors and plain values only, so loading one can run no code. Names and shapes are those of the
plain model whatever its wrapper, and every rank count and strategy reads what any other wrote. It
is written under a part name, flushed and then renamed; a kill at any moment leaves the former ones
as they were.

Example
-------
::

    checkpoints = Checkpoints(run_dir, model, optimizer, world, keep=2, written_by={})
    checkpoints.save(500, {"step": 500}, best_step=450)   # writes while training goes on
    checkpoints.wait()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from boldcast.errors import BoldcastError
from boldcast.files import PART, canonical_json, sha256_file, whole_folder, write_bytes
from boldcast.parallel.world import World
from boldcast.train.kept import DIGESTS, place_of, prune, set_aside
from boldcast.train.shards import ShardWriter, planner


class Checkpoints:
    """Saves and loads one run's state; every rank makes one and calls the same methods.

    A save copies the state, which is all that training waits for, and writes the copy from a
    thread; at most one is under way. The ranks agree on its outcome among themselves.

    Parameters
    ----------
    run_dir : Path
    model : nn.Module
        Wrapped or not.
    optimizer : torch.optim.Optimizer
        Over the model's parameters.
    world : World
    keep : int
        Newest checkpoints to keep, beside the best.
    written_by : mapping
        JSON values that are recorded for the reader and never used, such as the strategy.
    background : bool
        Write while training goes on; else ``save`` returns when the checkpoint stands.
    timeout_s : float
        Seconds that a rank waits for the others' part of a save.
    """

    def __init__(
        self,
        run_dir: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        *,
        keep: int,
        written_by: Mapping[str, Any],
        background: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        self._run_dir = run_dir
        self._model = model
        self._optimizer = optimizer
        self._keep = keep
        self._written_by = dict(written_by)
        self._background = background
        self._alone = world.world_size == 1
        if self._alone:  # torch warns of what is meant here; a thread cannot filter for itself
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        # a group of its own: the thread's messages must not mix with those of training
        patience = timedelta(seconds=timeout_s)
        self._group = None if self._alone else dist.new_group(timeout=patience, backend="gloo")
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether the save under way has failed; ``wait`` says how, on every rank."""
        done = self._under_way is not None and self._under_way.done()
        return done and self._under_way.exception() is not None  # type: ignore[union-attr]

    def save(self, step: int, state: Mapping[str, Any], best_step: int | None = None) -> None:
        """Begin to write the checkpoint of ``step``, when the one before stands.

        Parameters
        ----------
        state : mapping
            JSON values: counters and history.
        best_step : int, optional
            Checkpoint to keep beside the newest.

        Raises
        ------
        BoldcastError
            If the one before, or without ``background`` this one, could not be written.
        """
        self.wait()
        tensors = self._stager.stage(state_tensors(self._model, self._optimizer))
        assert isinstance(tensors, dict)
        text = canonical_json({**state, "written_by": self._written_by})
        self._under_way = self._thread.submit(self._write, step, tensors, text, best_step)
        if not self._background:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way.

        Raises
        ------
        BoldcastError
            On every rank, if it failed on any; earlier checkpoints are untouched.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def settle(self, report: Callable[[str], None]) -> None:
        """Wait for the save under way on the way out; a failure is reported, not raised."""
        try:
            self.wait()
        except BoldcastError as error:
            report(str(error))

    def load(self, path: Path) -> dict[str, Any]:
        """Put a checkpoint's tensors into the model and the optimizer and return its state.

        Raises
        ------
        BoldcastError
            If the tensors do not fit the model by name and shape.
        """
        weights, moments = get_state_dict(self._model, self._optimizer)
        wanted = _flat(weights, moments)
        reader = HuggingFaceStorageReader(str(path))
        try:
            found = reader.read_metadata().state_dict_metadata
            if parted := sorted(set(found) ^ set(wanted)):
                raise ValueError(f"{', '.join(parted[:3])} on one side only")
            load(wanted, storage_reader=reader, process_group=self._group, no_dist=self._alone)
        except (CheckpointException, ValueError) as error:
            raise BoldcastError(
                f"Checkpoint {path} does not fit this model: {_cause(error)}. It was written by "
                "another configuration or version; use a new `--run_dir`."
            ) from error
        # the tensors above are the optimizer's own; this call also restores what hangs on them
        set_state_dict(
            self._model, self._optimizer, model_state_dict=weights, optim_state_dict=moments
        )
        state: dict[str, Any] = orjson.loads((path / "state.json").read_bytes())
        return state

    def _write(self, step: int, tensors: dict[str, Any], text: bytes, best: int | None) -> None:
        path = place_of(self._run_dir, step)
        part = path.with_name(path.name + PART)
        try:
            with ExitStack() as folder:  # rank 0's: nothing is left of it if any rank fails

                def begin() -> None:
                    folder.enter_context(whole_folder(path))

                def publish() -> None:
                    write_bytes(part / "state.json", text)
                    digests = {file.name: sha256_file(file) for file in sorted(part.iterdir())}
                    write_bytes(part / DIGESTS, canonical_json(digests))
                    with set_aside(path):  # one is there after a resume from before it
                        folder.pop_all().close()
                    prune(self._run_dir, step, self._keep, best)

                save(
                    tensors,
                    storage_writer=ShardWriter(part, begin, publish),
                    planner=planner(),
                    process_group=self._group,
                    no_dist=self._alone,
                )
        except CheckpointException as error:
            failure = BoldcastError(
                f"The checkpoint of step {step} could not be written: {_cause(error)}. Earlier "
                f"checkpoints in {path.parent} are whole; make room and start the same command "
                "again."
            )
            failure.on_every_rank = True
            raise failure from None


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and buffers by their plain names, and moments as ``name/quantity``."""
    return _flat(*get_state_dict(model, optimizer))


def _flat(weights: Mapping[str, Any], moments: Mapping[str, Any]) -> dict[str, Any]:
    return {**weights} | {
        f"{name}/{quantity}": value
        for name, quantities in moments["state"].items()
        for quantity, value in quantities.items()
    }


def _cause(error: BaseException) -> str:
    """Return the first rank's own words for what failed."""
    if not isinstance(error, CheckpointException):
        return str(error)
    rank, (cause, _) = min(error.failures.items())
    words = str(cause)
    if isinstance(cause, OSError):
        words = cause.strerror or words
    elif isinstance(cause, SafetensorError):  # "Error while serializing: I/O error: ..."
        words = words.rpartition("I/O error: ")[2]
    return words if not dist.is_initialized() else f"{words} (rank {rank})"
