"""Read what a run left in its folder, for the report: only named files, only inside the folder.

An unfinished run is read as far as it goes. A file that is there but damaged is refused by name,
and its content never appears in a message.

Example
-------
>>> read_run(Path("runs/example")).name      # doctest: +SKIP
'example'
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused, UsageRefused
from boldcast.score.metrics import FORMAT

TRIVIAL = ("zero", "persistence", "window_mean")
"""The forecasts that the second acceptance bar is measured against."""


_SCORES = ("horizon", "mse", "r2", "r", "r_region_mean")


@dataclass(frozen=True)
class RunFolder:
    """The parts of a run that its report shows.

    ``val_horizons`` holds the held-out MSE of each validation and horizon, or nothing;
    ``baselines`` the mean over horizons of each baseline's MSE; ``ended`` is the status
    that the manifest gives the run, if it does.
    """

    config: Mapping[str, Any]
    config_text: str
    steps: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    val_steps: list[int] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_horizons: list[list[float]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None
    ended: str | None = None

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.config.get("name", "run"))

    def setting(self, section: str, name: str, default: Any = None) -> Any:
        """Value of a setting, or ``default`` where the config does not hold it."""
        table = self.config.get(section)
        return table.get(name, default) if isinstance(table, Mapping) else default

    @property
    def horizons(self) -> list[int]:
        """Volumes ahead that the run forecasts."""
        return [int(h) for h in self.setting("data", "horizons", (1,))]

    @property
    def t_r(self) -> float | None:
        """Repetition time in seconds, where known."""
        value = (self.evaluation or {}).get("t_r") or self.setting("data", "t_r")
        return float(value) if value else None

    @property
    def trivial(self) -> dict[str, float]:
        """The baselines that count for the second acceptance bar."""
        return {name: self.baselines[name] for name in TRIVIAL if name in self.baselines}


def read_run(run_dir: Path) -> RunFolder:
    """Read a run folder.

    Parameters
    ----------
    run_dir : Path
        Folder with at least ``config.toml``.

    Raises
    ------
    UsageRefused
        If the folder does not exist or holds no run.
    DataRefused
        If a file in it is damaged or points out of the folder.
    """
    if not run_dir.is_dir():
        raise UsageRefused(
            f"`run` must be an existing run folder, but is {str(run_dir)!r}. "
            "Give the folder that `boldcast train` printed."
        )
    text = _read(run_dir, "config.toml")
    if text is None:
        raise UsageRefused(
            f"`run` must be a run folder with a config.toml, but {str(run_dir)!r} has none. "
            "Give the folder that `boldcast train` printed."
        )
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _damaged(run_dir / "config.toml", "TOML") from error
    steps, loss = _read_trace(run_dir)
    evaluation = _read_json(run_dir, "evaluation.json")
    if evaluation is not None and not _sound(evaluation):
        raise _damaged(run_dir / "evaluation.json", f"an evaluation of format {FORMAT}")
    return RunFolder(
        config,
        text,
        steps,
        loss,
        evaluation=evaluation,
        ended=_ended(_read_json(run_dir, "manifest.json") or {}),
        **_history(run_dir),
    )


def _damaged(path: Path, what: str) -> DataRefused:
    return DataRefused(
        f"`{path.name}` must be {what}, but is not. It is damaged; look at it in {path.parent}."
    )


def _read(run_dir: Path, name: str) -> str | None:
    path = run_dir / name
    if not path.is_file():
        return None
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise DataRefused(
            f"`{name}` must lie in its run folder, but is a link out of it. Copy the file instead."
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, "UTF-8 text") from error


def _read_json(run_dir: Path, name: str) -> dict[str, Any] | None:
    text = _read(run_dir, name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _damaged(run_dir / name, "a JSON object") from error
    if not isinstance(value, dict):
        raise _damaged(run_dir / name, "a JSON object")
    return value


def _number(value: Any) -> float:
    return float.fromhex(value) if isinstance(value, str) else float(value)


def _read_trace(run_dir: Path) -> tuple[list[int], list[float]]:
    """Return steps and losses; a last line torn by a crash is left out."""
    lines = (_read(run_dir, "trace.jsonl") or "").split("\n")
    found: dict[int, float] = {}
    for line in lines[:-1]:
        try:
            record = json.loads(line)
            found[int(record["step"])] = _number(record["loss"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _damaged(run_dir / "trace.jsonl", "one JSON object per step") from error
    steps = sorted(found)
    return steps, [found[step] for step in steps]


def _history(run_dir: Path) -> dict[str, Any]:
    history = _read_json(run_dir, "history.json") or {}
    try:
        steps = [int(step) for step in history.get("step", [])]
        losses = [_number(value) for value in history.get("val_loss", [])]
        rows = [[_number(v) for v in row] for row in history.get("per_horizon", [])]
        baselines = {
            str(name): math.fsum(values) / len(values)
            for name, value in history.get("baselines", {}).items()
            for values in [[_number(v) for v in (value if isinstance(value, list) else [value])]]
        }
        if len(steps) != len(losses):
            raise ValueError("steps and losses differ in number")
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise _damaged(run_dir / "history.json", "lists of validation steps and losses") from error
    if len(rows) != len(steps) or len({len(row) for row in rows}) > 1:
        rows = []
    return {
        "val_steps": steps,
        "val_loss": losses,
        "val_horizons": rows,
        "baselines": baselines,
    }


def _sound(evaluation: Mapping[str, Any]) -> bool:
    """Whether an evaluation has the shape that pictures and tables rely on."""
    try:
        horizons, regions = evaluation["horizons"], evaluation["regions"]
        scores, excerpt = evaluation["scores"], evaluation["excerpt"]
        numbers = [row[k] for rows in scores.values() for row in rows for k in _SCORES]
        numbers += [v for row in evaluation["region_r2"].values() for v in row]
        numbers += [v for rows in evaluation["scan_mse"].values() for row in rows for v in row]
        lengths = [len(rows) == len(horizons) > 0 for rows in scores.values()]
        lengths += [len(row) == len(regions) for row in evaluation["region_r2"].values()]
        lengths += [len(rows) == evaluation["n_scans"] for rows in evaluation["scan_mse"].values()]
        lengths += [evaluation["scan_mse"].keys() == scores.keys() >= {"model"}]
        lengths += [evaluation["region_r2"].keys() == scores.keys()]
        for region in excerpt["regions"] if excerpt else ():
            numbers += [region["r2"], *region["observed"], excerpt["first_volume"]]
            numbers += [v for column in region["forecast"] for v in column]
            lengths += [len(c) == len(region["observed"]) for c in region["forecast"]]
            lengths += [
                len(region["forecast"]) == len(horizons),
                "name" in region,
                "role" in region,
            ]
        lists = [evaluation["notes"], evaluation["masked_regions"]]
    except (KeyError, TypeError, AttributeError):
        return False
    return (
        evaluation.get("format") == FORMAT
        and all(isinstance(h, int) for h in horizons)
        and all(v is None or isinstance(v, int | float) for v in [*numbers, evaluation.get("t_r")])
        and all(lengths)
        and all(isinstance(value, list) for value in lists)
    )


def _ended(manifest: Mapping[str, Any]) -> str | None:
    results = manifest.get("results")
    status = results.get("status") if isinstance(results, Mapping) else manifest.get("status")
    return status if isinstance(status, str) else None
