"""Go on with fewer ranks when one is lost.

The number of ranks is not part of the result at the level ``exact``, so a run that loses a rank
need not end: it is started again on as many as are left, from its newest checkpoint, to the same
bits. It is given up only when restarts bring it no further.

Example
-------
>>> fewer([4, 3, 2, 1], size=4, n_lost=2)
2
>>> fewer([4, 2], size=2, n_lost=1)
2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from boldcast.errors import StoppedOnRequest
from boldcast.launch.outcome import RankLost
from boldcast.launch.supervise import AGAIN, Stop

MAX_IN_VAIN = 3
"""Restarts in a row that may end without a newer checkpoint."""


def fewer(sizes: Sequence[int], size: int, n_lost: int) -> int:
    """Return the largest of ``sizes`` that ``size`` ranks less ``n_lost`` can be, or the least."""
    return max((n for n in sizes if n <= size - n_lost), default=min(sizes))


def run(
    sizes: Sequence[int],
    start: Callable[[int], None],
    newest_step: Callable[[], int],
    say: Callable[[str], None],
    stop: Stop,
) -> None:
    """Start on the largest number of ranks, and again on fewer whenever ranks are lost.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of ranks that will do.
    start : callable
        Runs that many ranks to their end.
    newest_step : callable
        Returns the step of the newest checkpoint.
    say : callable
        Takes the one line printed at each restart.
    stop : Stop
        Nothing is restarted once a stop was asked for.

    Raises
    ------
    RankLost
        The last loss, if the run made no progress through ``MAX_IN_VAIN`` restarts, or if an
        internal error came a second time: with fewer ranks it comes again.
    StoppedOnRequest
        If a rank was lost while the run was being stopped.
    """
    size, restarts = max(sizes), 0
    bugs: set[str] = set()
    while True:
        before = newest_step()
        try:
            start(size)
            return
        except RankLost as lost:
            after = newest_step()
            restarts = 0 if after > before else restarts
            if stop.requested:
                raise StoppedOnRequest(f"Stopped on request; a rank was lost. {AGAIN}") from lost
            if restarts == MAX_IN_VAIN or lost.bug in bugs:
                raise
            bugs |= {lost.bug} if lost.bug is not None else set()
            restarts += 1
            size = fewer(sizes, size, lost.n_lost)
            say(_in_a_line(lost, size, after))


def _in_a_line(lost: RankLost, size: int, step: int) -> str:
    cause = str(lost).partition("\n")[0].removesuffix(AGAIN).strip()
    return f"{cause} Restarting on {size} rank{'s' if size > 1 else ''} from step {step}."
