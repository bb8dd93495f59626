"""Throughput and efficiency, against numbers worked out by hand and by NumPy."""

import numpy as np
import pytest

from boldcast.bench import summary
from boldcast.errors import MeasurementInvalid


def test_the_efficiency_of_two_ranks_is_thr2_over_twice_thr1():
    assert summary.efficiency(100.0, 140.0, base=1, n=2) == 140.0 / (2 * 100.0)


@pytest.mark.parametrize(
    ("base", "n", "gain", "expected"),
    [
        (1, 1, 1, 1.0),
        (1, 2, 2, 1.0),
        (1, 4, 2, 0.5),
        (2, 4, 2, 1.0),
        (2, 8, 2, 0.5),
        (2, 3, 1, 2 / 3),
    ],
)
def test_efficiency_is_the_gain_over_the_ideal_gain(base, n, gain, expected):
    found = summary.efficiency(7.0, 7.0 * gain, base=base, n=n)
    assert found == pytest.approx(expected, rel=1e-15)


def test_throughput_counts_all_ranks_over_the_slowest_ones_time():
    # One rank takes 50 x 0.1 s, the other 50 x 0.25 s, for 50 x 800 tokens of both together.
    point = summary.summarize([[0.1] * 50, [0.25] * 50], tokens_per_step=800)
    assert point["tokens_per_s"] == pytest.approx(50 * 800 / 12.5)
    assert point["slowest_rank_s"] == pytest.approx(12.5)
    assert point["fastest_rank_s"] == pytest.approx(5.0)


def test_a_step_takes_as_long_as_its_slowest_rank():
    rng = np.random.default_rng(0)
    steps = rng.uniform(0.1, 0.9, (3, 57))
    point = summary.summarize(steps.tolist(), tokens_per_step=1)
    slowest = steps.max(axis=0)
    assert point["step_s"] == {
        "median": pytest.approx(np.median(slowest)),
        "p95": pytest.approx(np.percentile(slowest, 95)),
        "min": slowest.min(),
        "max": slowest.max(),
    }
    for rank, each in enumerate(point["ranks"]):
        assert each["total_s"] == pytest.approx(steps[rank].sum())
        assert each["step_s"]["p95"] == pytest.approx(np.percentile(steps[rank], 95))


@pytest.mark.parametrize(
    "steps",
    [[[0.1, 0.1], [0.1]], [[]], [], [[0.1, 0.0]], [[0.1, -0.1]], [[0.1, float("nan")]]],
)
def test_what_is_no_measurement_is_invalid(steps):
    with pytest.raises(MeasurementInvalid) as refused:
        summary.summarize(steps, tokens_per_step=1)
    assert refused.value.exit_code == 6


def test_every_larger_world_size_is_compared_with_the_first():
    points = [
        {"world_size": 1, "tokens_per_s": 100.0},
        {"world_size": 2, "tokens_per_s": 180.0},
        {"world_size": 4, "tokens_per_s": 200.0},
    ]
    two, four = summary.efficiencies(points, threshold=0.7)
    assert (two["formula"], two["value"], two["reached"]) == ("thr2 / (2 * thr1)", 0.9, True)
    assert (four["formula"], four["value"], four["reached"]) == ("thr4 / (4 * thr1)", 0.5, False)
    (from_two,) = summary.efficiencies(points[1:], threshold=0.5)
    assert from_two["formula"] == "thr4 / (4 / 2 * thr2)"
    assert from_two["value"] == pytest.approx(200 / (4 / 2 * 180))


def test_one_world_size_has_no_efficiency():
    assert summary.efficiencies([{"world_size": 2, "tokens_per_s": 1.0}], 0.7) == []


def test_the_threshold_itself_is_reached():
    points = [{"world_size": n, "tokens_per_s": t} for n, t in ((1, 10.0), (2, 14.0))]
    assert summary.efficiencies(points, threshold=0.7)[0]["reached"]


def point(n, device="cpu", median=1.0, p95=1.1):
    return {"world_size": n, "device": device, "step_s": {"median": median, "p95": p95}}


def notes(*points, load=0.0):
    return summary.notes(points, load_before=load, cores=2)


def test_numbers_of_a_cpu_come_with_a_warning():
    (note,) = notes(point(1), point(2))
    assert "say nothing about GPUs" in note
    assert notes(point(1, "cuda"), point(2, "cuda")) == []


def test_a_busy_machine_is_said_to_be_one():
    assert (
        "About 1.2 other processes were running on 2 cores"
        in notes(point(1), point(2), load=1.2)[0]
    )
    assert len(notes(point(1), load=1.2)) == 1  # a core was free for it
    assert notes(point(2, "cuda"), load=9.0) == []


def test_a_disturbed_measurement_is_said_to_be_one():
    assert "At world size 2" in notes(point(1, "cuda"), point(2, "cuda", 0.1, 0.21))[0]
    assert notes(point(1, "cuda", 0.1, 0.2)) == []
