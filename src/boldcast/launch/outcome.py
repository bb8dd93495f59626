"""How a worker tells the launching process how it ended; torchrun hides its workers' codes.

The launching process makes a folder and names it in ``BOLDCAST_OUTCOME``. A rank writes its process
id there when it begins, and a note when it ends in anything but success, so that a rank that is
gone without a note was killed, and one that is there without a note hangs. A stop request travels
the other way, as the file ``stop``: a file cannot arrive too early, a signal can.

Tracebacks are kept in the run's folder ``errors``, one file a rank, for every attempt.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import orjson

from boldcast.errors import BoldcastError, UsageRefused
from boldcast.files import write_bytes

VARIABLE = "BOLDCAST_OUTCOME"
STOP = "stop"
LAUNCHER = "launcher"

_LOST_CONTACT = re.compile(
    r"connection (closed|reset|refused)|time(d )?[ -]?out|broken pipe|got 0 bytes"
    r"|remote (process|error)|nccl(System|Remote)Error",
    re.IGNORECASE,
)

_NOT_TO_BE_HAD = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


@dataclass(frozen=True)
class Note:
    """How one rank ended."""

    rank: int
    code: int
    message: str
    details: str
    """The traceback of an internal error, else empty."""

    time_ns: int

    lost_contact: bool = False
    """Whether the rank only noticed that another one was gone or silent."""

    shared: bool = False
    """Whether all ranks end for this reason, each by itself."""


class LostContact(BoldcastError):
    """Another rank is gone or silent; what happened to it, this rank cannot know."""

    def __init__(self) -> None:
        super().__init__(
            "Contact with another rank was lost: it was killed, hangs, or cannot be reached. The "
            "same command continues from the last checkpoint."
        )


class RankLost(BoldcastError):
    """A rank was killed, hangs or failed; a new start can continue, with fewer ranks if need be.

    Attributes
    ----------
    n_lost : int
        How many ranks the machine has fewer, as far as is known.
    bug : str or None
        What the internal error said for which the rank ended; None if it was killed or hung.
    """

    def __init__(self, message: str, n_lost: int = 1, bug: str | None = None) -> None:
        self.n_lost = max(1, n_lost)
        self.bug = bug
        super().__init__(message)


def lost_contact(error: BaseException) -> bool:
    """Tell whether ``error`` says no more than that another rank is gone or silent.

    Known by the words of torch's back ends, for which there is no class of exception.
    """
    kind = type(error)
    if kind is LostContact:
        return True
    is_torchs = kind is RuntimeError or kind.__name__.startswith("Dist")
    return is_torchs and bool(_LOST_CONTACT.search(str(error)))


def in_words(error: Exception) -> Exception:
    """Return ``error``, or what to say in its place.

    That is so for what torch says of a rank that is gone, and for a file or folder that cannot be
    had, which is a user's matter.
    """
    told: BoldcastError
    if isinstance(error, _NOT_TO_BE_HAD) and error.filename is not None:
        told = BoldcastError(
            f"{error.filename} cannot be used: {error.strerror}. Correct the path, or the "
            "permissions of its folder."
        )
    elif lost_contact(error) and not isinstance(error, LostContact):
        told = LostContact()
    else:
        return error
    told.__cause__ = error
    return told


def folder() -> Path | None:
    """Return the folder that the launching process reads, or None if there is none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def enter(rank: int) -> None:
    """Tell the launching process which process is ``rank``; end if it is there no more.

    A launching process that hangs up on a rank asks for its Python stack first, by SIGUSR2.
    """
    if (place := folder()) is None:
        return
    try:
        os.kill(int((place / LAUNCHER).read_text()), 0)
        stack = os.open(place / f"stack_{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        faulthandler.register(signal.SIGUSR2, file=stack)
        write_bytes(place / f"pid_{rank}", str(os.getpid()).encode())
    except OSError:
        end_rank(BoldcastError.exit_code)


def leave(error: BaseException | None, rank: int) -> bool:
    """Note how ``rank`` ended, None for success; tell whether someone listens."""
    place = folder()
    if place is None:
        return False
    if error is None:
        (place / f"pid_{rank}").unlink(missing_ok=True)
        return True
    known = isinstance(error, BoldcastError)
    note = Note(
        rank=rank,
        code=error.exit_code if isinstance(error, BoldcastError) else 1,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        details="" if known else "".join(traceback.format_exception(error)),
        time_ns=time.time_ns(),
        lost_contact=lost_contact(error),
        shared=isinstance(error, BoldcastError) and error.on_every_rank,
    )
    write_bytes(place / f"rank_{rank}.json", orjson.dumps(asdict(note)))
    return True


def keep(run_dir: Path, rank: int, text: str) -> None:
    """Append what ended ``rank`` to the run's ``errors``; a disk that is full must not hide it."""
    try:
        (run_dir / "errors").mkdir(exist_ok=True)
        with (run_dir / "errors" / f"rank_{rank}.txt").open("a") as stream:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            stream.write(f"{now} process {os.getpid()}\n{text.rstrip()}\n\n")
    except OSError as error:
        print(f"boldcast: the error of rank {rank} could not be kept: {error}", file=sys.stderr)


def end_rank(code: int) -> NoReturn:
    """End this rank at once, without the interpreter's own way out.

    Gloo's threads may still be letting go of a tensor, for which they need an interpreter: met by
    one that is ending, they abort the process, and torchrun ends the other ranks for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def notes(place: Path) -> list[Note]:
    """Return all notes in ``place``, the earliest first."""
    found = [Note(**orjson.loads(path.read_bytes())) for path in place.glob("rank_*.json")]
    return sorted(found, key=lambda note: note.time_ns)


def pids(place: Path) -> dict[int, int]:
    """Return the process of every rank that began and did not end in success."""
    found = {}
    for path in place.glob("pid_*"):
        name = path.name.removeprefix("pid_")
        try:
            found[int(name)] = int(path.read_text())
        except (OSError, ValueError):  # a part-named file, or one just removed
            continue
    return found


def first_cause(place: Path) -> Note | None:
    """Return the earliest note that says more than that contact was lost, else the earliest."""
    found = notes(place)
    return next((note for note in found if not note.lost_contact), next(iter(found), None))


def as_error(note: Note) -> BoldcastError:
    """Return the error that a rank noted, of the class of its exit code."""
    if note.code == BoldcastError.exit_code:
        if note.details:
            return RankLost(f"{note.message} (rank {note.rank})\n{note.details}", bug=note.message)
        return (RankLost if note.lost_contact else BoldcastError)(note.message)
    kinds = {kind.exit_code: kind for kind in BoldcastError.__subclasses__()}
    if note.code == UsageRefused.exit_code:
        return UsageRefused(note.message.splitlines())
    return kinds[note.code](note.message)
