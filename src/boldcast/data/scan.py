"""One scan in the canonical form: volumes down, regions across, one repetition time.

Example
-------
>>> import numpy as np
>>> scan = Scan(series=np.zeros((4, 2), np.float32), t_r=0.72, regions=("a", "b"), subject="01",
...             session="", scan="rest", family=None, observed=np.ones(4, bool), path="x.npy",
...             sha256="")
>>> scan.n_volumes, scan.n_regions
(4, 2)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan ready to be packed.

    Attributes
    ----------
    series : float32 array, shape (n_volumes, n_regions)
        The signal.
    t_r : float
        Repetition time in seconds.
    regions : tuple of str
        Region names, one a column.
    subject, session, scan : str
        Identifiers, always strings; empty where there is none.
    family : str or None
        Family of the subject, None where unknown.
    observed : bool array, shape (n_volumes,)
        False where a volume was censored.
    path : str
        Where it came from, as the scan list writes it.
    sha256 : str
        Digest of that file's bytes.
    """

    series: NDArray[np.float32]
    t_r: float
    regions: tuple[str, ...]
    subject: str
    session: str
    scan: str
    family: str | None
    observed: NDArray[np.bool_]
    path: str
    sha256: str

    def __post_init__(self) -> None:
        """Refuse a shape that the names or the mask contradict."""
        if self.series.ndim != 2 or self.series.shape != (len(self.observed), len(self.regions)):
            raise ValueError(
                f"series has shape {self.series.shape}, but there are {len(self.observed)} volumes "
                f"and {len(self.regions)} regions"
            )

    @property
    def n_volumes(self) -> int:
        """Volumes of the scan."""
        return int(self.series.shape[0])

    @property
    def n_regions(self) -> int:
        """Regions of a volume."""
        return int(self.series.shape[1])
