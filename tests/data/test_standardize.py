"""Standardization against the definition, and the causal one against the future."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from boldcast.data.standardize import CAUSAL_START, causal_zscore, scan_zscore


def test_scan_zscore_equals_scipys(scans) -> None:
    x = 9500 + 30 * scans(0)
    np.testing.assert_allclose(scan_zscore(x), scipy.stats.zscore(x, axis=0), atol=1e-9)


def test_causal_zscore_is_the_last_row_of_each_beginning(scans) -> None:
    x = 9500 + scans(3)
    scores, observed = causal_zscore(x)
    for t in range(CAUSAL_START - 1, len(x)):
        expected = scipy.stats.zscore(x[: t + 1], axis=0)[-1]
        np.testing.assert_allclose(scores[t], expected, atol=1e-8)
    assert observed.tolist() == [False] * 15 + [True] * (len(x) - 15)
    assert not scores[:15].any()


@pytest.mark.parametrize("changed", [20, 40, 59])
def test_causal_zscore_knows_nothing_of_the_future(scans, changed: int) -> None:
    x = scans(4)
    other = x.copy()
    other[changed:] += 1e6
    assert np.array_equal(causal_zscore(x)[0][:changed], causal_zscore(other)[0][:changed])
    assert not np.allclose(scan_zscore(x)[:changed], scan_zscore(other)[:changed])


def test_a_region_that_has_not_moved_yet_is_zero() -> None:
    x = np.full((40, 1), 3.3)
    x[30:] = np.arange(10)[:, None]
    scores, _ = causal_zscore(x)
    assert not scores[:30].any()
    assert np.isfinite(scores).all()
    assert not scan_zscore(np.full((5, 1), 0.1)).any()
