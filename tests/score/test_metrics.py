import json

import numpy as np
import pytest
from scipy.stats import pearsonr

from boldcast.files import canonical_json
from boldcast.score.metrics import evaluate_forecasts

HORIZONS = (1, 3)


def scans(n=3, n_volumes=40, n_regions=5, first=6, seed=0, past_the_end=False):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        truth = rng.standard_normal((n_volumes, n_regions)) * 2 + rng.standard_normal(n_regions)
        n_origins = n_volumes - first - (0 if past_the_end else max(HORIZONS))
        noise = rng.standard_normal((n_origins, n_regions, len(HORIZONS)))
        guess = np.zeros_like(noise)
        for index, h in enumerate(HORIZONS):
            rows = truth[first + h : first + h + n_origins]
            guess[: len(rows), :, index] = 0.7 * rows
        yield truth, {"model": guess + noise}, first


def cells(parts, index, region=None):
    """All scored (target, forecast, scan mean) of a horizon, gathered by loops."""
    out = []
    for truth, forecasts, first in parts:
        guess = forecasts["model"]
        for k in range(len(guess)):
            v = first + k + HORIZONS[index]
            for r in range(truth.shape[1]):
                if v < len(truth) and region in (None, r) and np.isfinite(truth[v, r]):
                    out.append((truth[v, r], guess[k, r, index], np.nanmean(truth[:, r])))
    return np.array(out).T


NAMES = tuple("abcde")
ALL = np.ones(5, bool)


@pytest.mark.parametrize("past_the_end", [False, True])
def test_pooled_scores_agree_with_loops_and_scipy(past_the_end):
    parts = list(scans(past_the_end=past_the_end))
    parts[1][0][20:23] = np.nan
    result = evaluate_forecasts(parts, HORIZONS, ALL, NAMES)
    for index, score in enumerate(result["scores"]["model"]):
        x, y, mean = cells(parts, index)
        assert score["cells"] == len(x)
        assert score["mse"] == pytest.approx(np.mean((x - y) ** 2))
        assert score["r2"] == pytest.approx(1 - np.sum((x - y) ** 2) / np.sum((x - mean) ** 2))
        assert score["r"] == pytest.approx(pearsonr(x - mean, y - mean).statistic)
        each = [cells(parts, index, region) for region in range(5)]
        rs = [pearsonr(x - m, y - m).statistic for x, y, m in each]
        assert score["r_region_mean"] == pytest.approx(np.mean(rs))


def test_region_skill_agrees_with_loops():
    parts = list(scans())
    result = evaluate_forecasts(parts, HORIZONS, ALL, NAMES)
    for region, value in enumerate(result["region_r2"]["model"]):
        x, y, mean = cells(parts, 0, region)
        assert value == pytest.approx(1 - np.sum((x - y) ** 2) / np.sum((x - mean) ** 2))


def test_closed_forms_of_the_references():
    # A square wave of period 2: persistence is off by 2 at h=1, exact at h=2.
    wave = np.tile([1.0, -1.0], 10)[:, None]
    guess = np.zeros((16, 1, 2))
    result = evaluate_forecasts([(wave, {"model": guess}, 2)], (1, 2), np.ones(1, bool), ["w"])
    scores = result["scores"]
    assert [row["mse"] for row in scores["persistence"]] == [4.0, 0.0]
    assert [row["r2"] for row in scores["persistence"]] == [-3.0, 1.0]
    assert [row["r"] for row in scores["persistence"]] == pytest.approx([-1.0, 1.0])
    assert [row["r2"] for row in scores["scan_mean"]] == [0.0, 0.0]
    assert scores["scan_mean"][0]["r"] is None
    assert scores["model"][0]["mse"] == 1.0


def test_scores_do_not_move_when_scans_are_shifted_by_constants():
    parts = list(scans())
    shift = [1e4, -3e3, 0.0]
    moved = [(t + s, {"model": f["model"] + s}, o) for (t, f, o), s in zip(parts, shift)]  # noqa: B905
    a = evaluate_forecasts(parts, HORIZONS, ALL, NAMES)["scores"]
    b = evaluate_forecasts(moved, HORIZONS, ALL, NAMES)["scores"]
    for name in ("model", "persistence"):
        for row_a, row_b in zip(a[name], b[name], strict=True):
            assert [row_b[k] for k in ("mse", "r2", "r")] == pytest.approx(
                [row_a[k] for k in ("mse", "r2", "r")], rel=1e-9
            )


def test_masked_regions_change_nothing_and_are_named():
    mask = np.array([True, False, True, True, True])
    parts = list(scans())
    for truth, forecasts, _ in parts:
        truth[:, 1] = np.nan
        forecasts["model"][:, 1] = np.nan
    result = evaluate_forecasts(parts, HORIZONS, mask, NAMES)
    cut = [(t[:, mask], {"model": f["model"][:, mask]}, o) for t, f, o in parts]
    alone = evaluate_forecasts(cut, HORIZONS, np.ones(4, bool), "acde")
    assert result["masked_regions"] == ["b"]
    assert result["regions"] == list("acde")
    assert result["scores"] == alone["scores"]


def test_the_error_of_each_scan_averages_to_the_pooled_one():
    result = evaluate_forecasts(list(scans()), HORIZONS, ALL, NAMES)
    means = np.mean(result["scan_mse"]["model"], axis=0)
    assert means == pytest.approx([row["mse"] for row in result["scores"]["model"]])


def test_the_excerpt_lays_forecasts_under_the_volumes_they_are_about():
    truth = np.arange(300.0)[:, None] * np.ones(4) + np.array([0.0, 0.1, 0.2, 0.3])
    n = 290
    guess = np.stack([truth[6 + h : 6 + h + n] for h in (1, 3)], axis=2)
    result = evaluate_forecasts([(truth, {"model": guess}, 6)], (1, 3), np.ones(4, bool), "abcd")
    excerpt = result["excerpt"]
    assert {row["role"] for row in excerpt["regions"]} == {"best", "median", "worst"}
    for row in excerpt["regions"]:
        assert len(row["observed"]) == 120
        assert row["observed"] == row["forecast"][0] == row["forecast"][1]
    assert int(excerpt["regions"][0]["observed"][0]) == excerpt["first_volume"]


def test_shown_regions_are_best_to_worst():
    parts = list(scans(n_regions=9))
    names = [str(i) for i in range(9)]
    result = evaluate_forecasts(parts, HORIZONS, np.ones(9, bool), names)
    skill = dict(zip(names, result["region_r2"]["model"], strict=True))
    ranked = sorted(names, key=lambda name: -skill[name])
    shown = {row["role"]: row["name"] for row in result["excerpt"]["regions"]}
    assert shown == {
        "best": ranked[0],
        "upper quartile": ranked[2],
        "median": ranked[4],
        "worst": ranked[8],
    }


def test_a_constant_region_leaves_no_nan_in_the_file():
    truth = np.random.default_rng(0).standard_normal((40, 2))
    truth[:, 1] = 5.0
    guess = np.full((30, 2, 1), 5.0)
    notes = ["careful"]
    result = evaluate_forecasts(
        [(truth, {"model": guess}, 4)], (1,), np.ones(2, bool), "ab", t_r=0.72, notes=notes
    )
    assert result["region_r2"]["model"][1] is None
    assert json.loads(canonical_json(result)) == result
    assert (result["t_r"], result["notes"]) == (0.72, notes)


@pytest.mark.parametrize("level", [0.1, 0.3, 0.7, 1.1])
def test_a_forecast_that_never_moves_has_no_correlation_not_a_rounding_error(level):
    truth = np.random.default_rng(0).standard_normal((41, 1))
    guess = np.full((36, 1, 1), level)
    result = evaluate_forecasts([(truth, {"model": guess}, 4)], (1,), np.ones(1, bool), "a")
    assert result["scores"]["model"][0]["r"] is None
    assert result["scores"]["model"][0]["r_region_mean"] is None


def test_misfits_are_refused():
    truth = np.zeros((10, 2))
    good = np.zeros((4, 2, 1))
    for guess, first, word in (
        (good[:, :1], 0, "must be"),
        (good, 8, "do not lie"),
        (good * np.nan, 0, "finite"),
    ):
        with pytest.raises(ValueError, match=word):
            evaluate_forecasts([(truth, {"model": guess}, first)], (1,), np.ones(2, bool), "ab")
    with pytest.raises(ValueError, match="no scan"):
        evaluate_forecasts([], (1,), np.ones(2, bool), "ab")
