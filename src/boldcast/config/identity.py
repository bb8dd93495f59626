"""Which settings a run is known by: those that can change a bit of its result.

How often to save, how long to wait for a rank or how many loader processes to use may differ from
one start of a run to the next. So may, at every level, the ranks and how they work together: where
that can change bits, the run that continues says so.

Example
-------
>>> from boldcast.config.schema import Config, DataConfig, ParallelConfig
>>> run_digest(Config(data=DataConfig(num_workers=4))) == run_digest(Config())
True
>>> run_digest(Config(parallel=ParallelConfig(strategy="fsdp2"))) == run_digest(Config())
True
>>> run_digest(Config(seed=1)) == run_digest(Config())
False
"""

from __future__ import annotations

import dataclasses
from typing import Any

from boldcast.config.render import as_dict, digest
from boldcast.config.schema import Config

INDIFFERENT = {
    "data": ("num_workers",),
    "train": (
        "time_budget_s",
        "checkpoint_every",
        "keep_checkpoints",
        "async_checkpoint",
        "log_every",
    ),
    "log": ("tensorboard", "wandb", "wandb_project", "wandb_mode"),
}
"""Settings by section that cannot change a bit of the result at any level.

The section ``parallel`` does not count as a whole.
"""


def run_digest(config: Config) -> str:
    """Return the digest of ``config`` with every setting that does not count at its default."""
    return digest(_decisive(config))


def differences(mine: Config, theirs: Config) -> list[str]:
    """Return ``name is VALUE there, VALUE here`` for every setting that makes another run."""
    here, there = _flat(_decisive(mine)), _flat(_decisive(theirs))
    return [
        f"`{name}` is {there[name]!r} there, {here[name]!r} here"
        for name in here
        if here[name] != there[name]
    ]


def _flat(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in as_dict(config).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{leaf}": inner for leaf, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _decisive(config: Config) -> Config:
    plain = Config()
    sections = {
        section: dataclasses.replace(
            getattr(config, section),
            **{name: getattr(getattr(plain, section), name) for name in names},
        )
        for section, names in INDIFFERENT.items()
    }
    return dataclasses.replace(config, parallel=plain.parallel, **sections)
