"""Where one process stands among the ranks, and the process group that joins them.

``torchrun`` says the place in the environment; without it there is one rank. NCCL carries
collectives between GPUs and Gloo between CPU processes, both through ``env://``.

Example
-------
>>> World.from_env({}).world_size
1
>>> World.from_env({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
...                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}).rank
1
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from boldcast.errors import UsageRefused
from boldcast.parallel.place import started_by_torchrun
from boldcast.parallel.preflight import join


@dataclass(frozen=True)
class World:
    """The place of one process.

    Attributes
    ----------
    rank, local_rank : int
        Number of this process among all, and among those of its node.
    world_size, local_world_size : int
        How many processes there are, and how many on this node.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> World:
        """Read the place that torchrun wrote into ``env``; one rank if it wrote none.

        Raises
        ------
        UsageRefused
            If only some of the variables are set, or one is not a sensible number.
        """
        if not started_by_torchrun(env):
            return cls()
        try:
            world = cls(
                rank=int(env["RANK"]),
                local_rank=int(env["LOCAL_RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_world_size=int(env["LOCAL_WORLD_SIZE"]),
            )
        except ValueError as error:
            raise UsageRefused(f"The environment's rank variables are damaged: {error}.") from None
        if not (0 <= world.rank < world.world_size and 0 <= world.local_rank <= world.rank):
            raise UsageRefused(
                f"`RANK` must be at least 0 and below `WORLD_SIZE` ({world.world_size}), but is "
                f"{world.rank} (`LOCAL_RANK` {world.local_rank}). Start through torchrun."
            )
        return world

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, n: int) -> range:
        """Return this rank's contiguous part of ``range(n)``; parts differ by at most one."""
        return share(n, self.world_size, self.rank)

    def device(self, wanted: str) -> torch.device:
        """Return the device that this rank trains on.

        Parameters
        ----------
        wanted : {"auto", "cpu", "cuda"}
            The configuration's `train.device`.

        Raises
        ------
        UsageRefused
            If CUDA is wanted and there is no GPU for this rank.
        """
        visible = torch.cuda.device_count() if wanted != "cpu" else 0
        if wanted == "cpu" or (wanted == "auto" and visible == 0):
            return torch.device("cpu")
        if self.local_rank >= visible:
            raise UsageRefused(
                f"`train.device` is {wanted}, so every rank needs a GPU of its own, but this node "
                f"has {visible} for {self.local_world_size} ranks. Lower `--nproc` or set "
                "`train.device` to cpu."
            )
        return torch.device("cuda", self.local_rank)

    @contextmanager
    def process_group(
        self, device: torch.device, timeout_s: float, preflight_timeout_s: float = 60.0
    ) -> Iterator[None]:
        """Join the ranks for the body's time; with one rank and no torchrun, do nothing.

        The group is left as it is if the body raises: to take it apart, NCCL may wait for ranks
        that are gone, and the rank could not say why it ends. It has to leave by ``os._exit``.

        Parameters
        ----------
        device : torch.device
            This rank's.
        timeout_s, preflight_timeout_s : float
            See ``preflight.join``.

        Raises
        ------
        BoldcastError
            If the ranks do not find each other.
        """
        if not started_by_torchrun():
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        join(self.rank, self.world_size, device, timeout_s, preflight_timeout_s)
        yield
        dist.destroy_process_group()


def share(n: int, parts: int, part: int) -> range:
    """Return the ``part``-th of ``parts`` contiguous, nearly equal pieces of ``range(n)``."""
    return range(n * part // parts, n * (part + 1) // parts)


def is_rank_zero() -> bool:
    """Tell whether this process is rank 0 of the process group, or alone.

    For code that has no ``World`` at hand, such as a user's own; before the ranks have joined,
    every process counts as alone.
    """
    return not dist.is_initialized() or dist.get_rank() == 0
