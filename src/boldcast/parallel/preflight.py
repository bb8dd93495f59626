"""Join the ranks, and find out at once, not after ten minutes, that they cannot talk.

Before any data are prepared every rank says in the rendezvous store that it is there, waits for the
others to say so, and takes part in one small sum. What goes wrong in that short time is a rank that
never started, an interface that nobody else can reach, a firewall or a container without the
host's network; the message says which ranks are missing and what to try.

Example
-------
::

    join(rank, world_size, torch.device("cpu"), timeout_s=600.0, preflight_timeout_s=60.0)
    torch.distributed.all_reduce(tensor)
"""

from __future__ import annotations

import datetime
import os
import time
from typing import NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _set_pg_timeout

from boldcast.errors import BoldcastError

_POLL_S = 0.005
_ADVICE = (
    "Try: `{variable}` set to the interface that the nodes share (`ip -br addr` lists them; `lo` "
    "on one machine); a firewall that lets TCP through between the nodes; in a container, the "
    "host's network, and /dev/infiniband bound where there is one{more}."
)


def join(
    rank: int, world_size: int, device: torch.device, timeout_s: float, preflight_timeout_s: float
) -> None:
    """Make the process group and try it out.

    Parameters
    ----------
    rank, world_size : int
        This process's place.
    device : torch.device
        NCCL joins GPUs, Gloo CPU processes, at the place that the environment names.
    timeout_s : float
        How long a collective waits for a missing rank, from then on, in s.
    preflight_timeout_s : float
        How long to wait for the other ranks here, in s.

    Raises
    ------
    BoldcastError
        If a rank does not come, or the ranks cannot reach each other.
    """
    patience = datetime.timedelta(seconds=preflight_timeout_s)
    began = time.monotonic()
    try:
        store = _meeting_place(rank, world_size, patience)
    except (RuntimeError, OSError) as error:
        _refuse(f"Rank {rank} found no rendezvous within {preflight_timeout_s:g} s", device, error)
    # torchrun may keep one store through its restarts: what an earlier attempt left must not count
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"boldcast/{attempt}", store)
    _await_arrivals(store, rank, world_size, patience)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=patience,
            device_id=device if device.type == "cuda" else None,
        )
        _sum_of_ones(world_size, device, began + preflight_timeout_s)
    except (RuntimeError, OSError) as error:
        _refuse(
            f"All {world_size} ranks arrived, but a first small sum over them failed within "
            f"{preflight_timeout_s:g} s (`parallel.preflight_timeout_s`)",
            device,
            error,
        )
    _set_pg_timeout(datetime.timedelta(seconds=timeout_s))


def _meeting_place(rank: int, world_size: int, patience: datetime.timedelta) -> Store:
    """Return the store that ``env://`` names, without its silent wait for all to come."""
    torchrun_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        host_name=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        world_size=world_size,
        is_master=rank == 0 and not torchrun_has_it,
        timeout=patience,
        wait_for_workers=False,
        multi_tenant=not torchrun_has_it,
    )


def _await_arrivals(store: Store, rank: int, world_size: int, patience: datetime.timedelta) -> None:
    keys = [f"arrived/{other}" for other in range(world_size)]
    store.set(keys[rank], "1")
    try:
        store.wait(keys, patience)
    except (RuntimeError, OSError):
        missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        if missing:
            raise BoldcastError(
                f"Rank {', '.join(missing)} of {world_size} did not arrive within "
                f"{patience.total_seconds():g} s (`parallel.preflight_timeout_s`); rank {rank} "
                "waited. Look at that rank's own messages and at its machine; if it was only "
                "slow to start, raise the setting."
            ) from None


def _sum_of_ones(world_size: int, device: torch.device, deadline: float) -> None:
    ones = torch.ones(1, device=device)
    work = dist.all_reduce(ones, async_op=True)
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise RuntimeError("no answer")
        time.sleep(_POLL_S)
    work.wait()
    if ones.item() != world_size:
        raise RuntimeError(f"{world_size} ones add up to {ones.item()}")


def _refuse(what: str, device: torch.device, error: Exception) -> NoReturn:
    on_gpu = device.type == "cuda"
    advice = _ADVICE.format(
        variable="NCCL_SOCKET_IFNAME" if on_gpu else "GLOO_SOCKET_IFNAME",
        more="; NCCL_DEBUG=INFO for the details" if on_gpu else "",
    )
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    raise BoldcastError(f"{what}: {reason}. {advice}") from error
