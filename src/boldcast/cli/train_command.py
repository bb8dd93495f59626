"""``boldcast train``: start the ranks, train on each, and seal the record of what happened.

The process that the user starts makes sure that the folder is this run's, exports the environment
and either becomes the only rank or puts torchrun to work. A rank joins the others, trains, and
rank 0 writes the record: open at the start, sealed at the end, whatever the end was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from boldcast.cli import run_folder
from boldcast.cli.places import data_root, store_cache
from boldcast.config.resolve import check_world
from boldcast.config.schema import Config
from boldcast.errors import AcceptanceMissed, BoldcastError, UsageRefused
from boldcast.launch import environment, local, outcome
from boldcast.parallel.place import started_by_torchrun


def train(
    config: Config,
    *,
    argv: Sequence[str],
    run_dir: Path | None,
    nproc: int | None,
    data: Path | None,
    as_json: bool,
) -> int:
    """Train ``config`` and return the exit code.

    Parameters
    ----------
    argv : sequence of str
        The command line as received, without the program.
    run_dir : Path or None
        Where the run lives; None for the default.
    nproc : int or None
        Ranks to start; None for one per visible GPU, or one.
    data : Path or None
        Folder of the data.
    as_json : bool
        Print the result as JSON.
    """
    run_dir = run_dir or run_folder.default_run_dir(config)
    if started_by_torchrun():
        outcome.end_rank(_rank(config, argv, run_dir, data))
    if run_folder.state(run_dir, config) == "complete":
        print(f"{run_dir}: already complete.", file=sys.stderr)
        return _show(run_dir, as_json)
    nproc = nproc or _default_nproc(config)
    if problems := check_world(config, nproc):
        raise UsageRefused(problems)
    env = environment.merged(config)
    try:
        if nproc > 1:
            local.run(nproc, local.module("boldcast", argv), env)
        else:
            os.environ.update(env)
            _rank(config, argv, run_dir, data)
    except AcceptanceMissed:
        _show(run_dir, as_json)
        raise
    return _show(run_dir, as_json)


def _rank(config: Config, argv: Sequence[str], run_dir: Path, data: Path | None) -> int:
    """Be one rank of the run; return the process's exit code."""
    from boldcast.train.stop import StopRequest

    stop = StopRequest().listen()
    number = int(os.environ.get("RANK", "0"))
    try:
        from boldcast.cli import rank

        root = data_root(data)
        rank.run(config, argv, run_dir, root, store_cache(root), stop)
    except Exception as error:
        shared = error if isinstance(error, BoldcastError) and error.on_every_rank else None
        if outcome.leave(error, number):
            # torchrun reports any code but 0 at length; an end that all ranks share needs none
            return 0 if shared else 1
        if shared and number:
            return shared.exit_code  # rank 0 says it
        raise
    return 0


def _default_nproc(config: Config) -> int:
    return 1 if config.train.device == "cpu" else max(1, environment.visible_gpus())


def _show(run_dir: Path, as_json: bool) -> int:
    """Print where the results are; return 0."""
    manifest: dict[str, Any] = orjson.loads((run_dir / "manifest.json").read_bytes())
    results = manifest["results"]
    if as_json:
        print(
            orjson.dumps(
                {"run_dir": str(run_dir), "id": manifest["id"], "results": results},
                option=orjson.OPT_INDENT_2,
            ).decode()
        )
        return 0
    scores = results.get("scores") or {}
    print(f"run       {run_dir}")
    print(f"status    {results['status']} after {results['steps']} steps")
    if "held_out_mse" in scores:
        print(f"held-out  MSE {scores['held_out_mse']:.4f}")
    print(f"report    {run_dir / 'report.html'}")
    print(f"manifest  {run_dir / 'manifest.json'}")
    return 0
