"""Read and write distributed state as safetensors, which hold no code.

torch's own checkpoint format pickles its index; this one is made of safetensors files alone, in
the layout that torch's ``HuggingFaceStorageReader`` reads: each file says in its header where its
tensors lie in the whole ones. State that every rank holds is written by rank 0 alone, so its files
have the same bytes on any number of ranks; slices are written by the ranks that hold them.

Example
-------
::

    writer = ShardWriter(open_folder=lambda: folder, publish=lambda: None)
    dcp.save(tensors, storage_writer=writer, planner=planner())
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future


def planner() -> DefaultSavePlanner:
    """Return the plan maker: one flat table of tensors, what all hold written by rank 0."""
    return DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)


class ShardWriter(StorageWriter):
    """Writes ``model*.safetensors`` and ``optimizer*.safetensors``.

    A tensor whose name has a ``/`` belongs to the optimizer. An error of any rank in any of these
    methods is raised on all of them by torch's ``save``.

    Parameters
    ----------
    part : Path
        The folder that is filled; the same on every rank.
    begin : callable
        Makes ``part``, empty; called on rank 0 before any rank writes.
    publish : callable
        Called on rank 0 when all ranks have written.
    """

    def __init__(self, part: Path, begin: Callable[[], Any], publish: Callable[[], Any]) -> None:
        self._part = part
        self._begin = begin
        self._publish = publish

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: a writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder."""
        if is_coordinator:
            self._begin()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank the ending of its file names."""
        n = len(plans)
        alone = sum(bool(plan.items) for plan in plans) == 1
        return [
            dataclasses.replace(plan, storage_data="" if alone else f"-{rank:05d}-of-{n:05d}")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors and flush them to the disk."""
        kinds: dict[str, list[WriteItem]] = {"model": [], "optimizer": []}
        for item in plan.items:
            kinds["optimizer" if "/" in item.index.fqn else "model"].append(item)
        for kind, items in kinds.items():
            if items:
                _write(self._part / f"{kind}{plan.storage_data}.safetensors", items, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Let rank 0 complete the folder."""
        self._publish()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Say that it is not chosen by name."""
        return False


def _write(path: Path, items: list[WriteItem], planner: SavePlanner) -> None:
    tensors: dict[str, Tensor] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for item in items:
        name, offset = item.index.fqn, list(item.index.offset or [])
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, Tensor), f"{name} is not a tensor"
        tensors[name] = tensor.detach().cpu().contiguous()
        offsets[name] = {"saved_offsets": offset or [0] * tensor.ndim}
    cut = any(any(each["saved_offsets"]) for each in offsets.values()) or "-of-" in path.name
    save_file(tensors, path, {"DCP_SHARDING_INFO": json.dumps(offsets)} if cut else None)
    # the library makes files for their owner alone; the folder follows the user's umask
    path.chmod(path.parent.stat().st_mode & 0o666)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
