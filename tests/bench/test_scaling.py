"""A real measurement on two ranks, its JSON checked by arithmetic of its own; and the refusals."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from boldcast.bench import scaling
from boldcast.cli import run as command_line
from boldcast.config.resolve import digest, preset, resolve
from boldcast.errors import AcceptanceMissed, BoldcastError, MeasurementInvalid, UsageRefused

OPTIONS = {"world_sizes": (1, 2), "steps": 50, "warmup": 3, "out": None, "as_json": False}
REPORT = {
    "backend": "gloo",
    "device": "cpu",
    "n_regions": 6,
    "n_windows": 9,
    "parameters": 5,
    "ranks": [
        {"rank": 0, "device": "cpu", "steps_s": [0.5, 0.5], "finite": True},
        {"rank": 1, "device": "cpu", "steps_s": [0.5, 1.5], "finite": True},
    ],
}


@pytest.fixture
def tiny():
    return resolve(preset("tiny"), {"train.global_batch_size": "1", "model.n_layer": "1"})


@pytest.fixture
def nothing_starts(monkeypatch):
    def start(*args):
        raise AssertionError("something was started")

    monkeypatch.setattr(scaling.local, "run", start)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure one and two ranks with a bar that no machine reaches; return error and JSON."""
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    config = resolve(preset("tiny"), {"train.global_batch_size": "1", "model.n_layer": "1"})
    with pytest.raises(AcceptanceMissed) as missed:
        scaling.run(config, **{**OPTIONS, "out": out}, threshold=100.0)
    return missed.value, json.loads(out.read_bytes())


def test_a_missed_bar_exits_4_after_the_result_is_written(measured):
    error, result = measured
    assert error.exit_code == 4
    assert "thr2 / (2 * thr1)" in str(error)
    assert not result["efficiency"][0]["reached"]


def test_efficiency_is_that_of_the_measured_throughputs(measured):
    _, result = measured
    one, two = (point["tokens_per_s"] for point in result["points"])
    assert [each["value"] for each in result["efficiency"]] == [two / (2 * one)]


def test_throughput_is_cells_over_the_slowest_ranks_time(measured):
    _, result = measured
    for n, point in zip((1, 2), result["points"], strict=True):
        # tiny: windows of 24 volumes x 6 regions, one window a rank
        assert point["tokens_per_step"] == n * 24 * 6
        assert point["global_batch_size"] == n
        assert point["per_rank_batch_size"] == 1
        totals = [rank["total_s"] for rank in point["ranks"]]
        assert len(totals) == n
        assert point["tokens_per_s"] == pytest.approx(50 * n * 24 * 6 / max(totals), rel=1e-12)
        assert (point["fastest_rank_s"], point["slowest_rank_s"]) == (min(totals), max(totals))
        step = point["step_s"]
        assert 0 < step["min"] <= step["median"] <= step["p95"] <= step["max"]
        # a step of all is as long as its slowest rank's, so it never lasts less than a rank's own
        assert all(rank["step_s"]["median"] <= step["median"] for rank in point["ranks"])


def test_the_ranks_are_real(measured):
    _, result = measured
    for point in result["points"]:
        assert point["backend"] == "gloo"
        assert [rank["rank"] for rank in point["ranks"]] == list(range(point["world_size"]))
        assert all(rank["finite"] and rank["peak_memory_gib"] > 0 for rank in point["ranks"])


def test_the_result_says_what_was_measured_and_on_what(measured):
    _, result = measured
    assert result["scaling"].startswith("weak")
    assert (result["steps"], result["warmup"]) == (50, 3)
    assert result["config"]["data"]["source"] == "synthetic"
    assert result["config"]["numerics"]["threads"] == 1
    cpu = result["hardware"]["nodes"][0]["cpu"]
    assert cpu["usable_threads"] == len(os.sched_getaffinity(0))
    assert any("nothing about GPUs" in note for note in result["notes"])


def test_weak_scaling_keeps_the_batch_of_a_rank():
    config = resolve(preset("example"), {})
    plans = {n: scaling.scaled(config, n) for n in (1, 2, 4)}
    batches = {n: plan.train.global_batch_size for n, plan in plans.items()}
    assert batches == {1: 16, 2: 32, 4: 64}
    assert {plan.train.micro_batch_size for plan in plans.values()} == {4}
    assert {plan.data.source for plan in plans.values()} == {"synthetic"}


def test_only_what_names_real_data_is_changed(tiny):
    assert digest(scaling.scaled(tiny, 1)) == digest(tiny)
    real = replace(tiny, data=replace(tiny.data, source="scans.tsv", held_out=("7",)))
    assert digest(scaling.scaled(real, 1)) == digest(tiny)


@pytest.mark.parametrize(("steps", "warmup"), [(49, 3), (50, 2), (0, 0)])
def test_too_few_steps_are_no_measurement(tiny, nothing_starts, steps, warmup):
    with pytest.raises(MeasurementInvalid, match="at least 50 after 3") as refused:
        scaling.run(tiny, **{**OPTIONS, "steps": steps, "warmup": warmup}, threshold=0.7)
    assert refused.value.exit_code == 6


@pytest.mark.parametrize("words", [["--steps", "49"], ["--warmup", "2"]])
def test_the_command_line_refuses_too_few_steps(nothing_starts, capsys, words):
    assert command_line(["bench", *words]) == 2
    assert f"`{words[0]}` must be an integer, at least" in capsys.readouterr().err


def test_more_threads_than_cores_are_no_measurement(tiny, nothing_starts):
    threads = len(os.sched_getaffinity(0))
    many = replace(tiny, numerics=replace(tiny.numerics, threads=threads))
    with pytest.raises(MeasurementInvalid, match=f"2 x {threads}"):
        scaling.run(many, **OPTIONS, threshold=0.7)


def test_a_limit_of_the_control_group_counts_as_cores():
    assert scaling._cores({"limits": {"cpus": 1.5}}) == 1
    assert scaling._cores({"limits": {"cpus": None}}) == len(os.sched_getaffinity(0))
    assert scaling._cores({"limits": {"error": "?"}}) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("gpus", "device"), [(1, "auto"), (1, "cuda"), (0, "cuda")])
def test_more_ranks_than_gpus_are_refused(tiny, nothing_starts, monkeypatch, gpus, device):
    monkeypatch.setattr(scaling.environment, "visible_gpus", lambda: gpus)
    config = replace(tiny, train=replace(tiny.train, device=device))
    with pytest.raises(UsageRefused, match=f"visible GPUs, {gpus}, but is 2"):
        scaling.run(config, **OPTIONS, threshold=0.7)


def test_a_strategy_for_one_rank_is_refused(tiny, nothing_starts):
    single = replace(tiny, parallel=replace(tiny.parallel, strategy="single"))
    with pytest.raises(UsageRefused, match="parallel.strategy"):
        scaling.run(single, **OPTIONS, threshold=0.7)


def test_a_point_is_computed_from_the_ranks_reports(tiny):
    plan = replace(tiny, train=replace(tiny.train, global_batch_size=4))
    point = scaling.point(plan, json.loads(json.dumps(REPORT)))
    # 2 steps x 4 windows x 24 volumes x 6 regions in 2.0 s
    assert point["tokens_per_s"] == 2 * 4 * 24 * 6 / 2.0
    assert point["per_rank_batch_size"] == 2
    assert [rank["total_s"] for rank in point["ranks"]] == [1.0, 2.0]


def test_a_loss_that_is_not_finite_makes_the_measurement_invalid(tiny):
    report = json.loads(json.dumps(REPORT))
    report["ranks"][1]["finite"] = False
    with pytest.raises(MeasurementInvalid, match="on rank 1"):
        scaling.point(tiny, report)


def test_the_bar_is_that_of_the_largest_world_size():
    def each(value, reached):
        return {"formula": "f", "threshold": 0.7, "value": value, "reached": reached}

    scaling._judge({"efficiency": [each(0.6, False), each(0.8, True)]})
    scaling._judge({"efficiency": []})
    with pytest.raises(AcceptanceMissed, match=r"at least 0\.7, but is 0\.600"):
        scaling._judge({"efficiency": [each(0.8, True), each(0.6, False)]})


def test_a_refusal_of_a_rank_comes_back_as_it_is(tiny, tmp_path, capfd):
    # the GPU that is not there is only looked for by the rank itself
    absent = replace(tiny, train=replace(tiny.train, device="cuda"))
    with pytest.raises(BoldcastError) as refused:
        scaling._measure(absent, 1, Path(tmp_path), steps=50, warmup=3)
    assert isinstance(refused.value, UsageRefused)
    assert "`train.device` is cuda" in str(refused.value)
