"""``boldcast train``: start the ranks, train on each, and seal the record of what happened.

The process that the user starts makes sure that the folder is this run's, exports the environment
and either becomes the only rank or puts torchrun to work. A rank joins the others, trains, and
rank 0 writes the record: open at the start, sealed at the end, whatever the end was.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from boldcast.cli import run_folder
from boldcast.cli.nproc import Nproc, default_nproc, usable_gpus, world_sizes
from boldcast.cli.places import data_root, store_cache
from boldcast.config.schema import Config
from boldcast.errors import AcceptanceMissed, BoldcastError, StoppedOnRequest
from boldcast.launch import elastic, environment, local, outcome
from boldcast.parallel.place import started_by_torchrun
from boldcast.train.stop import BEGAN, StopRequest


def train(
    config: Config,
    *,
    argv: Sequence[str],
    run_dir: Path | None,
    nproc: Nproc | None,
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
    nproc : Nproc or None
        Ranks to start; the fewest and the most to go on with fewer when one is lost; None for
        one per visible GPU, or one.
    data : Path or None
        Folder of the data.
    as_json : bool
        Print the result as JSON.
    """
    stop = StopRequest().listen()
    os.environ.setdefault(BEGAN, str(time.monotonic()))
    run_dir = run_dir or run_folder.default_run_dir(config)
    prints = not started_by_torchrun() or _prints()
    try:
        if started_by_torchrun():
            code, trained = _rank(config, argv, run_dir, data, stop)
        else:
            code, trained = 0, run_folder.state(run_dir, config) != "complete"
            if trained:
                _train_here(config, argv, run_dir, nproc, data, stop)
    except AcceptanceMissed:
        if prints:
            _show(run_dir, as_json)
        raise
    if prints and trained is not None:
        _show(run_dir, as_json, anew=trained)
    return code


def _prints() -> bool:
    """Tell whether a rank prints the result: rank 0, if no launching process of ours does."""
    return os.environ["RANK"] == "0" and outcome.folder() is None


def _train_here(
    config: Config,
    argv: Sequence[str],
    run_dir: Path,
    nproc: Nproc | None,
    data: Path | None,
    stop: StopRequest,
) -> None:
    """Be the only rank, or put torchrun to work, until the run has ended well."""
    env = environment.merged(config)

    def start(size: int) -> None:
        local.run(size, local.module("boldcast", argv), env, stop, run_dir)

    if isinstance(nproc, tuple):
        elastic.run(
            _that_can_be_had(world_sizes(config, nproc), config),
            start,
            lambda: _newest_step(run_dir),
            lambda line: print(f"boldcast: {line}", file=sys.stderr),
            stop,
        )
        return
    size = world_sizes(config, nproc)[0] if nproc else default_nproc(config)
    if size > 1:
        start(size)
    else:
        os.environ.update(env)
        _rank(config, argv, run_dir, data, stop)


def _rank(
    config: Config, argv: Sequence[str], run_dir: Path, data: Path | None, stop: StopRequest
) -> tuple[int, bool | None]:
    """Be one rank of the run.

    Returns
    -------
    int
        The process's exit code.
    bool or None
        Whether it trained; None if the run has not come to its end.
    """
    number = int(os.environ.get("RANK", "0"))
    if started_by_torchrun():
        local.die_with_parent()  # before torch is imported, which takes seconds
        outcome.enter(number)
    try:
        from boldcast.cli import rank

        root = data_root(data)
        trained = rank.run(config, argv, run_dir, root, store_cache(root), stop)
    except Exception as caught:
        error = outcome.in_words(caught)
        shared = error if isinstance(error, BoldcastError) and error.on_every_rank else None
        _keep(error, run_dir, number)
        if outcome.leave(error, number):
            # torchrun reports any code but 0 at length; an end that all ranks share needs none
            return (0 if shared else 1), None
        if shared and number:
            return _code_by_hand(shared), None  # rank 0 says it
        if shared and not _code_by_hand(shared):
            print(f"boldcast: {shared}", file=sys.stderr)
            return 0, None
        raise error from error.__cause__
    outcome.leave(None, number)
    return 0, trained


def _code_by_hand(shared: BoldcastError) -> int:
    """Return the code of a rank under a torchrun started by hand, which hides it anyway.

    One that may restart its ranks would take any code but 0 for a failure, and start again a run
    that was asked to stop.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or "0")
    return 0 if restarts and isinstance(shared, StoppedOnRequest) else shared.exit_code


def _keep(error: Exception, run_dir: Path, number: int) -> None:
    """Keep the traceback in the run's folder, unless its message says everything."""
    explained = isinstance(error, BoldcastError) and error.exit_code != BoldcastError.exit_code
    if not explained and (run_dir / "config.toml").exists():
        outcome.keep(run_dir, number, "".join(traceback.format_exception(error)))


def _newest_step(run_dir: Path) -> int:
    """Return the step of the newest checkpoint, damaged or not; 0 if there is none."""
    names = [p.name for p in (run_dir / "checkpoints").glob("step_*") if p.name[5:].isdecimal()]
    return max((int(name[5:]) for name in names), default=0)


def _that_can_be_had(sizes: list[int], config: Config) -> list[int]:
    """Leave out numbers of ranks for which there are too few GPUs, if a smaller one will do."""
    n_gpus = usable_gpus(config)
    return [size for size in sizes if not n_gpus or size <= n_gpus] or sizes[-1:]


def _show(run_dir: Path, as_json: bool, *, anew: bool = True) -> None:
    """Print where the results are; of a run that was complete before, also which bars it missed."""
    manifest: dict[str, Any] = orjson.loads((run_dir / "manifest.json").read_bytes())
    results = manifest["results"]
    scores = results.get("scores") or {}
    if not anew:
        print(f"{run_dir}: already complete.", file=sys.stderr)
        if missed := scores.get("missed"):
            print(f"boldcast: the run is complete, but: {' '.join(missed)}", file=sys.stderr)
    if as_json:
        print(
            orjson.dumps(
                {"run_dir": str(run_dir), "id": manifest["id"], "results": results},
                option=orjson.OPT_INDENT_2,
            ).decode()
        )
        return
    print(f"run       {run_dir}")
    print(f"status    {results['status']} after {results['steps']} steps")
    if "held_out_mse" in scores:
        print(f"held-out  MSE {scores['held_out_mse']:.4f}")
    print(f"report    {run_dir / 'report.html'}")
    print(f"manifest  {run_dir / 'manifest.json'}")
