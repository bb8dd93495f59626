"""What was checked, whether it holds, and how long it took.

Example
-------
>>> report = Report()
>>> report.check("adds up", lambda: "1 + 1 = 2")
True
>>> report.checks[0].ok, report.checks[0].detail
(True, '1 + 1 = 2')
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


class NotOk(Exception):
    """A check does not hold; the message says what was found instead."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    ok: bool
    detail: str
    seconds: float
    """Time since the command that the check is about was started."""


class Report:
    """Collects checks.

    Parameters
    ----------
    say : callable, optional
        Called with a line as each check ends.
    """

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.checks: list[Check] = []
        self._say = say
        self._began = time.monotonic()

    @property
    def ok(self) -> bool:
        """Whether anything was checked and all of it holds."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def seconds(self) -> float:
        """Time since the report was made."""
        return time.monotonic() - self._began

    def check(self, name: str, look: Callable[[], str], since: float | None = None) -> bool:
        """Add what ``look`` returns, or the reason why it raised.

        Parameters
        ----------
        look : callable
            Returns what it saw, or raises ``NotOk``. Anything else that it raises, a missing
            file for one, counts as not ok, too.
        since : float, optional
            ``time.monotonic()`` at which the checked command was started; default: now.
        """
        began = time.monotonic() if since is None else since
        try:
            ok, detail = True, look()
        except NotOk as error:
            ok, detail = False, str(error)
        except Exception as error:
            ok, detail = False, f"{type(error).__name__}: {error}"
        self.checks.append(Check(name, ok, detail, time.monotonic() - began))
        self._say(f"{'ok' if ok else 'NOT OK':<6}  {name}: {detail}")
        return ok
