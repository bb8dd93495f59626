"""Run the ranks of one machine under torchrun, and raise what ended them.

A stop request (SIGTERM, Ctrl-C) to the launching process is passed on; a second Ctrl-C ends
everything at once. If the launching process is killed, its ranks are, too: a run never outlives
the command that started it. ``supervise`` watches the ranks meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from boldcast.errors import StoppedOnRequest
from boldcast.launch import outcome
from boldcast.launch.supervise import AGAIN, Stop, Supervisor

SAVE_TIME_S = 300
"""How long torchrun lets the other ranks end after one has failed, before it kills them."""

_PR_SET_PDEATHSIG = 1


def command(nproc: int, program: Sequence[str], logs: Path) -> list[str]:
    """Return the torchrun command that starts ``program`` on ``nproc`` ranks.

    Parameters
    ----------
    nproc : int
        Ranks.
    program : sequence of str
        A script and its arguments, or what ``module`` returns.
    logs : Path
        Where torchrun makes its folders, which it would leave in the system's temporary one; what
        the ranks print is not redirected there.
    """
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nnodes=1",
        f"--nproc-per-node={nproc}",
        "--local-addr=127.0.0.1",
        f"--shutdown-timeout={SAVE_TIME_S}",
        f"--log-dir={logs}",
        *program,
    ]


def module(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the program ``python -m NAME ARGUMENTS...``, as torchrun wants it written."""
    # without the dashes argparse would take the worker's flags for torchrun's
    return ["-m", "--", name, *arguments]


def run(
    nproc: int,
    program: Sequence[str],
    env: Mapping[str, str],
    stop: Stop | None = None,
    run_dir: Path | None = None,
) -> None:
    """Run ``program`` on ``nproc`` ranks.

    Parameters
    ----------
    nproc : int
        Ranks.
    program : sequence of str
        See ``command``.
    env : mapping
        The whole environment of the ranks.
    stop : Stop, optional
        Passed on to the ranks as a file, which cannot come too early; torchrun and the ranks hold
        back stop signals that reach them until the ranks listen. Without it, the ranks do not
        listen, and an interrupt ends them.
    run_dir : Path, optional
        Where what hanging ranks were doing is kept.

    Raises
    ------
    BoldcastError
        The first cause for which the ranks ended, if they did not succeed; a ``RankLost`` if
        another start may do better.
    """
    if stop is not None and stop.requested:
        raise StoppedOnRequest(f"Stopped on request before the ranks were started. {AGAIN}")
    with tempfile.TemporaryDirectory(prefix="boldcast-") as folder:
        (Path(folder) / outcome.LAUNCHER).write_text(str(os.getpid()))
        process = subprocess.Popen(
            command(nproc, program, Path(folder) / "torchrun"),
            env={**env, outcome.VARIABLE: folder},
            start_new_session=True,
            preexec_fn=die_with_parent if stop is None else _hold_back_and_die_with_parent,
        )
        supervisor = Supervisor(process, Path(folder), stop)
        try:
            if stop is not None:
                stop.at_once = supervisor.kill
            cause = supervisor.wait()
        finally:
            if process.poll() is None:
                supervisor.kill()
                process.wait()
    if run_dir is not None:
        _keep_stacks(supervisor, run_dir)
    if cause is not None:
        raise cause


def _keep_stacks(supervisor: Supervisor, run_dir: Path) -> None:
    for rank, stack in supervisor.stacks.items():
        outcome.keep(run_dir, rank, f"Ended by the launching process. {stack or 'No stack.'}")


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _hold_back_and_die_with_parent() -> None:
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
