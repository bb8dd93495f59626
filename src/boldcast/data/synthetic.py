"""A generator for machines that can fetch nothing: scans with the statistics of resting BOLD.

Latent networks follow a stable vector autoregression of order 2 (each driven by its own past and,
weakly, by its neighbour's); one of them reaches every region. A region is a mix of the common and
its own network plus white noise, with a signal-to-noise ratio of its own. Over many regions and
1,200 volumes at 0.72 s the lag-1 autocorrelation is about 0.58, 28 % of the power lies over
0.2 Hz and the mean correlation of two regions is about 0.28.

Everything is element-wise arithmetic in a fixed order: no matrix product, whose bits could depend
on the number of threads.

Example
-------
>>> from boldcast.config.schema import SyntheticConfig
>>> generate(SyntheticConfig(n_subjects=2, n_volumes=16, n_regions=3), seed=0)[1].series.shape
(16, 3)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boldcast.config.schema import SyntheticConfig
from boldcast.data.scan import Scan
from boldcast.data.split import Split
from boldcast.files import sha256_bytes

VERSION = 1
"""Raised with any change of the numbers generated."""

NOTE = (
    "SYNTHETIC DATA: every number comes from a random generator, not from a brain. Nothing here "
    "is a finding about BOLD signals."
)
_NETWORKS = 8
_BURN_IN = 200
_SIGNAL = (0.30, 0.92)
_COMMON = 0.387


def generate(cfg: SyntheticConfig, seed: int) -> list[Scan]:
    """Return one scan a subject, the same for the same ``cfg`` and ``seed`` on any machine.

    Parameters
    ----------
    cfg : SyntheticConfig
        Sizes and repetition time.
    seed : int
        The run's seed; networks and noise levels are the same in all its subjects.
    """
    return [generate_scan(cfg, seed, subject) for subject in range(cfg.n_subjects)]


def splits(cfg: SyntheticConfig) -> tuple[Split, ...]:
    """Return the side of each subject: the last quarter, at least one, is held out."""
    first_held_out = cfg.n_subjects - max(1, cfg.n_subjects // 4)
    return tuple("train" if i < first_held_out else "held_out" for i in range(cfg.n_subjects))


def generate_scan(cfg: SyntheticConfig, seed: int, subject: int) -> Scan:
    """Return the scan of one subject, independently of how many others there are."""
    design = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, VERSION))))
    chance = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence((seed, VERSION, subject + 1)))
    )
    latent = _networks(design, chance, cfg.n_volumes)
    own = 1 + design.permutation(np.arange(cfg.n_regions) % (_NETWORKS - 1))
    share = design.permutation(_spread(*_SIGNAL, cfg.n_regions))
    signal = np.sqrt(_COMMON) * latent[:, :1] + np.sqrt(1 - _COMMON) * latent[:, own]
    noise = chance.standard_normal((cfg.n_volumes, cfg.n_regions))
    series = (np.sqrt(share) * signal + np.sqrt(1 - share) * noise).astype(np.float32)
    name = f"synthetic-{subject + 1:02d}"
    return Scan(
        series=series,
        t_r=cfg.t_r,
        regions=tuple(f"S{index + 1:03d}" for index in range(cfg.n_regions)),
        subject=name,
        session="",
        scan="",
        family=None,
        observed=np.ones(cfg.n_volumes, np.bool_),
        path=name,
        sha256=sha256_bytes(series.astype("<f4").tobytes()),
    )


def _networks(
    design: np.random.Generator, chance: np.random.Generator, n_volumes: int
) -> NDArray[np.float64]:
    # Roots inside the unit circle: second < 0.75 and first < 1 - second keep every one stable,
    # and the coupling is a chain without a cycle, which leaves the roots where they are.
    first = design.uniform(1.58, 1.68, _NETWORKS)
    second = np.full(_NETWORKS, -0.72)
    coupling = design.uniform(-0.05, 0.05, _NETWORKS)
    coupling[0] = 0.0
    driven = chance.standard_normal((_BURN_IN + n_volumes, _NETWORKS))
    latent = np.zeros_like(driven)
    for t in range(2, len(latent)):
        neighbour = np.concatenate(([0.0], latent[t - 1, :-1]))
        latent[t] = (
            first * latent[t - 1] + second * latent[t - 2] + coupling * neighbour + driven[t]
        )
    kept = np.ascontiguousarray(latent[_BURN_IN:])
    kept = kept - kept.mean(axis=0)
    return np.asarray(kept / np.sqrt((kept * kept).mean(axis=0)))


def _spread(low: float, high: float, count: int) -> NDArray[np.float64]:
    if count == 1:
        return np.array([(low + high) / 2])
    return low + (high - low) * np.arange(count) / (count - 1)
