"""The command line: words are checked, one command runs, and its outcome becomes an exit code.

The order is the safety: help and refusals come from ``specs`` and the schema alone, in a fraction
of a second and without torch; only a command line that is right in every word reaches fire, which
finds and calls the function in ``commands``.

Example
-------
>>> run(["--version"])
boldcast 0.1.0
0
"""

from __future__ import annotations

import io
import os
import select
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from boldcast import __version__
from boldcast.cli import help as texts
from boldcast.cli.argv import Request, find_command, parse, unknown_command
from boldcast.cli.specs import COMMANDS
from boldcast.cli.tables import printable
from boldcast.errors import BoldcastError, UsageRefused

INTERRUPTED = 130
_PIPE_CLOSED = 141
_INTERNAL = 1
_HELP = ("--help", "-h")


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A locale without × or … must not turn a finished run into an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    if "RANK" in os.environ:
        # the process group of a rank that failed is still up, and would keep it from ending
        from boldcast.launch.outcome import end_rank

        end_rank(code)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; messages go to stderr.

    Parameters
    ----------
    argv : sequence of str
        The words behind ``boldcast``.
    """
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except BoldcastError as outcome:
        _explain(outcome)
        return outcome.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except Exception as error:
        from boldcast.launch.outcome import in_words

        told = in_words(error)
        if isinstance(told, BoldcastError):
            _explain(told)
            return told.exit_code
        traceback.print_exc()
        return _INTERNAL
    return code


def _dispatch(argv: Sequence[str]) -> int:
    if any(word in _HELP for word in argv):
        return _help([word for word in argv if not word.startswith("-")])
    if list(argv) == ["--version"]:
        print(f"boldcast {__version__}")
        return 0
    if not argv or _is_group(argv):
        print(texts.overview(argv[0] if argv else ""), file=sys.stderr)
        return UsageRefused.exit_code
    return _call(parse(argv), argv)


def _is_group(words: Sequence[str]) -> bool:
    return len(words) == 1 and words[0] in {c.path[0] for c in COMMANDS if len(c.path) > 1}


def _help(words: Sequence[str]) -> int:
    """Print the help of the command that was named, or the overview."""
    command, _ = find_command(words)
    if command is not None:
        print(texts.of_command(command))
    elif not words or _is_group(words[:1]):
        print(texts.overview(words[0] if words else ""))
    else:
        raise UsageRefused(unknown_command(words))
    return 0


def _call(request: Request, argv: Sequence[str]) -> int:
    """Hand a checked command line to fire; return the command's exit code."""
    import fire

    from boldcast.cli.commands import Commands

    # `serialize` keeps fire from printing the exit code, which the command returns.
    code: int = fire.Fire(
        Commands(argv), command=request.words(), name="boldcast", serialize=lambda _: None
    )
    return code


def _explain(outcome: BoldcastError) -> None:
    """Print why a command ended as it did, one problem a line."""
    if isinstance(outcome, UsageRefused):
        count = len(outcome.problems)
        print(
            f"boldcast: refused, nothing was started ({count} problem{'s' if count > 1 else ''})",
            file=sys.stderr,
        )
        for problem in outcome.problems:
            print(f"- {printable(problem)}", file=sys.stderr)
    else:
        print(f"boldcast: {printable(str(outcome))}", file=sys.stderr)


def _broken_pipe() -> int:
    """Leave quietly if our own output was closed; any other broken pipe is a bug to be seen."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in output.poll(0)):
        # The interpreter flushes again at exit; let it write to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    traceback.print_exc()
    return _INTERNAL
