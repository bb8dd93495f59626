"""The linear models that every report sets beside the network: they are the ones to beat.

A per-region AR(8) and, where the regions are few enough for its normal equations, a ridge VAR(2),
alone and of the AR's residual, which is the strongest of the three.

Source: Nozari et al. 2024, 10.1038/s41551-023-01117-y, and Paugam et al. 2024,
10.1162/imag_a_00228: for resting-state signals linear models forecast as well as any.

Example
-------
>>> import numpy as np
>>> series = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
>>> made = LinearForecasts.fit([series], (1,), np.array([True, True]))
>>> sorted(made.forecast(series))
['ar8', 'ar8_var2', 'var2']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boldcast.score.baselines import Floats, ar_forecast, fit_ar
from boldcast.score.var import Var, fit_var, var_forecast

AR_LAGS = 8
MOST_VAR_REGIONS = 256
"""Above it the VAR's fit would take minutes."""


@dataclass(frozen=True)
class LinearForecasts:
    """Fitted linear forecasters of all regions, those masked out forecast as zero."""

    mask: NDArray[np.bool_]
    n_horizons: int
    ar: Floats
    var: Var | None
    residual_var: Var | None

    @classmethod
    def fit(
        cls,
        series: Sequence[NDArray[np.float32]],
        horizons: Sequence[int],
        region_mask: NDArray[np.bool_],
    ) -> LinearForecasts:
        """Fit on training scans.

        Parameters
        ----------
        series : sequence of arrays (n_volumes, R)
            Gapless training scans, standardized as the model sees them.
        horizons : sequence of int
            Volumes ahead.
        region_mask : bool array (R,)
            Regions that are scored.
        """
        kept = [scan[:, region_mask] for scan in series]
        few = int(region_mask.sum()) <= MOST_VAR_REGIONS
        ar = fit_ar(kept, horizons, AR_LAGS)
        explained = [ar_forecast(ar, scan) for scan in kept]
        return cls(
            mask=region_mask,
            n_horizons=len(horizons),
            ar=ar,
            var=fit_var(kept, horizons) if few else None,
            residual_var=fit_var(kept, horizons, explained=explained) if few else None,
        )

    def forecast(self, series: NDArray[np.float32]) -> dict[str, Floats]:
        """Forecast from every volume of a scan (n_volumes, R); each (n_volumes, R, H)."""
        kept = series[:, self.mask]
        made = {"ar8": ar_forecast(self.ar, kept)}
        if self.var is not None and self.residual_var is not None:
            made["var2"] = var_forecast(self.var, kept)
            made["ar8_var2"] = made["ar8"] + var_forecast(self.residual_var, kept)
        return {name: self._everywhere(forecasts) for name, forecasts in made.items()}

    def _everywhere(self, forecasts: Floats) -> Floats:
        full = np.zeros((len(forecasts), len(self.mask), self.n_horizons))
        full[:, self.mask] = forecasts
        return full
