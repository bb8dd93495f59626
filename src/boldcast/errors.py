"""The ways a run can end that are not success, one class and one exit code each.

Raise the class whose sentence fits; ``cli`` turns it into its exit code and prints the message
without a traceback. Anything else that escapes is a bug in boldcast and exits 1 with one.
"""

from __future__ import annotations

from collections.abc import Sequence


class BoldcastError(Exception):
    """Base of every outcome that is explained to the user by its message alone.

    Attributes
    ----------
    exit_code : int
        What the command returns.
    on_every_rank : bool
        Whether all ranks raise it together; one that a rank raises alone must bring the others
        down, because they wait for it.
    """

    exit_code = 1
    on_every_rank = False


class UsageRefused(BoldcastError):
    """The command line or the configuration is wrong; nothing was started.

    Parameters
    ----------
    problems : str or sequence of str
        Every problem found, one complete sentence each.
    """

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataRefused(BoldcastError):
    """The data are missing, damaged, ambiguous or unfit; the message names file and place."""

    exit_code = 3


class AcceptanceMissed(BoldcastError, AssertionError):
    """A run finished but did not reach a bar that its configuration set."""

    exit_code = 4


class NotTheSame(BoldcastError):
    """Two things that had to be equal bit for bit are not."""

    exit_code = 5


class MeasurementInvalid(BoldcastError):
    """A measurement was taken under conditions that make its number meaningless."""

    exit_code = 6


class Diverged(BoldcastError):
    """A loss or a gradient stopped being finite; the last checkpoint is good."""

    exit_code = 7
    on_every_rank = True


class StoppedOnRequest(BoldcastError):
    """The run was asked to stop, saved its state and can be resumed by the same command."""

    exit_code = 75
    on_every_rank = True
