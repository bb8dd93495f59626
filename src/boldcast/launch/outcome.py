"""How a worker tells the launching process how it ended; torchrun hides its workers' codes.

The launching process makes a folder and names it in ``BOLDCAST_OUTCOME``; every rank that ends in
anything but success leaves a note in it. The earliest note is the first cause.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import orjson

from boldcast.errors import BoldcastError, UsageRefused
from boldcast.files import write_bytes

VARIABLE = "BOLDCAST_OUTCOME"


@dataclass(frozen=True)
class Note:
    """How one rank ended."""

    rank: int
    code: int
    message: str
    details: str
    """The traceback of an internal error, else empty."""

    time_ns: int


def leave(error: BaseException, rank: int) -> bool:
    """Note ``error`` for the launching process; tell whether there is one that listens."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return False
    known = isinstance(error, BoldcastError)
    note = Note(
        rank=rank,
        code=error.exit_code if isinstance(error, BoldcastError) else 1,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        details="" if known else "".join(traceback.format_exception(error)),
        time_ns=time.time_ns(),
    )
    write_bytes(Path(folder) / f"rank_{rank}.json", orjson.dumps(asdict(note)))
    return True


def end_rank(code: int) -> NoReturn:
    """End this rank at once, without the interpreter's own way out.

    Gloo's threads may still be letting go of a tensor, for which they need an interpreter: met by
    one that is ending, they abort the process, and torchrun ends the other ranks for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def first_cause(folder: Path) -> Note | None:
    """Return the earliest note in ``folder``, or None."""
    notes = [Note(**orjson.loads(path.read_bytes())) for path in folder.glob("rank_*.json")]
    return min(notes, key=lambda note: note.time_ns, default=None)


def as_error(note: Note) -> BoldcastError:
    """Return the error that a rank noted, of the class of its exit code."""
    if note.code == BoldcastError.exit_code:
        place = f" (rank {note.rank})\n{note.details}" if note.details else ""
        return BoldcastError(note.message + place)
    kinds = {kind.exit_code: kind for kind in BoldcastError.__subclasses__()}
    if note.code == UsageRefused.exit_code:
        return UsageRefused(note.message.splitlines())
    return kinds[note.code](note.message)
