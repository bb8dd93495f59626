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

from boldcast.config.render import digest
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
    plain = Config()
    sections = {
        section: dataclasses.replace(
            getattr(config, section),
            **{name: getattr(getattr(plain, section), name) for name in names},
        )
        for section, names in INDIFFERENT.items()
    }
    return digest(dataclasses.replace(config, parallel=plain.parallel, **sections))
