"""What a run says while it trains: the console, TensorBoard and W&B. Rank 0 alone speaks.

On a terminal a progress bar runs; on a pipe plain lines come at ``train.log_every`` steps. All of
it goes to stderr: stdout belongs to results.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from boldcast.config.schema import LogConfig
from boldcast.files import write_bytes


class RunLog:
    """Lines, a progress bar and optional loggers for one process.

    Parameters
    ----------
    config : LogConfig
    run_dir : Path
    name : str
        Of the run, for W&B.
    quiet : bool
        Say nothing at all: every rank but 0.
    log_every : int
        Steps between plain lines.
    """

    def __init__(
        self, config: LogConfig, run_dir: Path, name: str, *, quiet: bool, log_every: int
    ) -> None:
        self.quiet = quiet
        self.log_every = log_every
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._config = config
        self._run_dir = run_dir
        self._name = name
        self._tensorboard: Any = None
        self._wandb: Any = None
        self._clock = (0, time.monotonic())

    def say(self, line: str) -> None:
        """Print one line."""
        if not self.quiet:
            self._console.print(line, markup=False)

    def begin(self, step: int, steps: int) -> None:
        """Start showing progress at ``step`` of ``steps``; what was logged after it is void."""
        self._clock = (step, time.monotonic())
        if self.quiet:
            return
        if self._config.tensorboard:
            self._tensorboard = _tensorboard(self._run_dir, step)
        if self._config.wandb:
            self._wandb = _wandb(self._config, self._run_dir, self._name)
        if not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=steps, completed=step)

    def step(self, step: int, steps: int, values: dict[str, float], tokens_per_step: float) -> None:
        """Show and log optimizer step ``step`` (from 1)."""
        if self.quiet:
            return
        self._log({f"train/{name}": value for name, value in values.items()}, step)
        if step % self.log_every and step != steps:
            return
        before, since = self._clock
        now = time.monotonic()
        pace = (now - since) / max(1, step - before)
        self._clock = (step, now)
        text = (
            f"loss {values['loss']:.4f}  lr {values['lr']:.2e}  |g| {values['grad_norm']:.3f}  "
            f"{tokens_per_step / max(pace, 1e-9):,.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        else:
            self.say(f"step {step}/{steps}  {text}  {_left((steps - step) * pace)} left")

    def validation(self, step: int, mse: float, per_horizon: dict[int, float]) -> None:
        """Show and log a held-out loss."""
        parts = "  ".join(f"h={h} {value:.4f}" for h, value in per_horizon.items())
        self.say(f"step {step}  held-out MSE {mse:.4f}  ({parts})")
        self._log({"val/mse": mse} | {f"val/mse_h{h}": v for h, v in per_horizon.items()}, step)

    def close(self) -> None:
        """Take the bar down and finish the loggers."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _log(self, values: dict[str, float], step: int) -> None:
        if self.quiet:
            return
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)


def _tensorboard(run_dir: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)


def _wandb(config: LogConfig, run_dir: Path, name: str) -> Any:
    import wandb

    return wandb.init(
        project=config.wandb_project,
        name=name,
        id=_wandb_id(run_dir),
        resume="allow",
        dir=str(run_dir),
        mode=config.wandb_mode,
    )


def _wandb_id(run_dir: Path) -> str:
    """Return the folder's own random identity: every restart goes on in the same W&B run."""
    path = run_dir / ".wandb_id"
    if not path.exists():
        write_bytes(path, secrets.token_hex(8).encode())
    return path.read_text()


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
