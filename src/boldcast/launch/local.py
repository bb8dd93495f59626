"""Run the ranks of one machine under torchrun, and raise what ended them.

A stop request (SIGTERM, Ctrl-C) to the launching process is passed on; a second Ctrl-C ends
everything at once. If the launching process is killed, its ranks are, too: a run never outlives
the command that started it.
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
from types import FrameType

from boldcast.errors import BoldcastError
from boldcast.launch import outcome

SAVE_TIME_S = 300
"""How long torchrun lets the ranks save after a stop request before it kills them."""

_PR_SET_PDEATHSIG = 1


def command(nproc: int, program: Sequence[str]) -> list[str]:
    """Return the torchrun command that starts ``program`` on ``nproc`` ranks.

    Parameters
    ----------
    nproc : int
        Ranks.
    program : sequence of str
        A script and its arguments, or what ``module`` returns.
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
        *program,
    ]


def module(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the program ``python -m NAME ARGUMENTS...``, as torchrun wants it written."""
    # without the dashes argparse would take the worker's flags for torchrun's
    return ["-m", "--", name, *arguments]


def run(nproc: int, program: Sequence[str], env: Mapping[str, str]) -> None:
    """Run ``program`` on ``nproc`` ranks.

    Parameters
    ----------
    nproc : int
        Ranks.
    program : sequence of str
        See ``command``.
    env : mapping
        The whole environment of the ranks.

    Raises
    ------
    BoldcastError
        The first cause for which the ranks ended, if they did not succeed.
    """
    with tempfile.TemporaryDirectory(prefix="boldcast-") as folder:
        process = subprocess.Popen(
            command(nproc, program),
            env={**env, outcome.VARIABLE: folder},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        _pass_on_stop_requests(process)
        code = process.wait()
        note = outcome.first_cause(Path(folder))
    if note is not None:
        raise outcome.as_error(note)
    if code:
        raise BoldcastError(
            f"A rank ended without a word (torchrun exit {code}): killed, or out of memory. "
            "The same command continues from the last checkpoint."
        )


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _pass_on_stop_requests(process: subprocess.Popen[bytes]) -> None:
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and seen:
            os.killpg(process.pid, signal.SIGKILL)
        elif not seen:
            process.send_signal(signal.SIGTERM)
        seen.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, pass_on)
