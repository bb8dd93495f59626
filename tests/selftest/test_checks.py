"""Every check of the self-test, shown something right and something wrong: each must tell."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import orjson
import pytest

from boldcast.record.trace import TraceWriter
from boldcast.selftest import checks
from boldcast.selftest.report import NotOk

STEPS = 6
LOSSES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def ended(code=0, out="", err=""):
    return SimpleNamespace(code=code, out=out, err=err)


@pytest.fixture
def run(tmp_path):
    """Make a folder that looks like a run; return its path."""

    def make(name, *, losses=LOSSES, status="completed", weights=b"w", checkpoints=(3, 6), **facts):
        folder = tmp_path / name
        for step in checkpoints:
            (folder / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)
            (folder / "checkpoints" / f"step_{step:08d}" / "optimizer.safetensors").write_bytes(
                b"o"
            )
        folder.mkdir(exist_ok=True)
        with TraceWriter(folder / "trace.jsonl") as trace:
            for step, loss in enumerate(losses, start=1):
                trace.append(step, loss=loss, grad_norm=1.0, lr=0.1)
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "report.html").write_text("report")
        manifest = {
            "results": {"status": status},
            "requested": {"config_digest": facts.get("config", "c")},
            "data": {"digest": facts.get("data", "d")},
        }
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        return folder

    return make


def test_a_run_that_trained_is_seen(run):
    assert checks.trains(ended(), run("a"), STEPS) == "6 steps, loss 0.900 to 0.600"


def test_a_run_that_did_not_train_is_seen(run):
    with pytest.raises(NotOk, match="exit code 1 instead of 0; it said: boom"):
        checks.trains(ended(1, err="boom"), run("a"), STEPS)
    with pytest.raises(NotOk, match="did not fall"):
        checks.trains(ended(), run("b", losses=LOSSES[::-1]), STEPS)
    with pytest.raises(NotOk, match="did not fall"):
        checks.trains(ended(), run("c", losses=[1.0] * 6), STEPS)
    with pytest.raises(NotOk, match="5 of 6 steps"):
        checks.trains(ended(), run("d", losses=LOSSES[:5]), STEPS)
    with pytest.raises(NotOk, match="says open"):
        checks.trains(ended(), run("e", status="open"), STEPS)
    (run("f") / "report.html").unlink()
    with pytest.raises(NotOk, match=r"report\.html not there"):
        checks.trains(ended(), run("g").with_name("f"), STEPS)


def test_equal_runs_are_equal(run):
    assert checks.same_bits(run("a"), run("b"), STEPS).endswith("all 6 steps equal")


def test_one_bit_in_weights_optimizer_or_trace_is_seen(run):
    plain = run("a")
    with pytest.raises(NotOk, match="weights differ; every step of the trace is equal"):
        checks.same_bits(plain, run("b", weights=b"v"), STEPS)
    other = run("c")
    file = other / "checkpoints" / "step_00000006" / "optimizer.safetensors"
    file.write_bytes(b"n")
    with pytest.raises(NotOk, match="optimizer differ"):
        checks.same_bits(plain, other, STEPS)
    losses = (*LOSSES[:3], np.nextafter(LOSSES[3], 1), *LOSSES[4:])
    with pytest.raises(NotOk, match="trace differ; the traces part at step 4 in loss"):
        checks.same_bits(plain, run("d", losses=losses), STEPS)


def test_traces_of_different_lengths_differ(run):
    short = run("b", losses=LOSSES[:4])
    assert checks.first_difference(run("a"), short) == "one trace has 6 steps, one 4"
    assert checks.first_difference(short, short) is None


IMPORTS = "import time:       120 |        300 | boldcast.cli\nimport time: 1 | 2 |   orjson\n"
REFUSED = "- `--stepz` must be an option, but is not known. Did you mean `--train.steps`?\n"


def flag(code=2, err=IMPORTS + REFUSED):
    return checks.refuses_flag(ended(code, err=err), "--stepz", "train.steps")


def test_a_refused_flag_is_seen():
    assert flag() == "exit 2, names train.steps, torch is not imported"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"code": 0}, "exit code 0 instead of 2"),
        ({"err": IMPORTS + "import time: 1 | 2 |     torch._C\n" + REFUSED}, "torch._C was"),
        ({"err": IMPORTS + "import time: 1 | 2 | fire\n" + REFUSED}, "fire was imported"),
        ({"err": REFUSED}, "could not be read"),
        ({"err": IMPORTS + "usage"}, "does not name `--stepz`, `--train.steps`"),
        ({"err": IMPORTS.replace("orjson", "train.steps") + "- `--stepz` no"}, "`--train.steps`"),
    ],
)
def test_a_flag_that_was_not_refused_well_is_seen(case, why):
    with pytest.raises(NotOk, match=why):
        flag(**case)


NAN = "`x/a.npy` must be finite, but region `S003` (column 2) is NaN at volume 17, the first of 1"


def nan(folder, code=3, err=NAN):
    return checks.refuses_nan(ended(code, err=err), folder, file="a.npy", region="S003", volume=17)


def test_a_refused_nan_is_seen(tmp_path):
    assert nan(tmp_path) == "exit 3, names a.npy, region S003, volume 17"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"code": 0}, "exit code 0 instead of 3"),
        ({"err": NAN.replace("17", "170")}, "does not name volume 17"),
        ({"err": NAN.replace("S003", "S0034")}, "does not name `S003`"),
        ({"err": NAN.replace("a.npy", "b.npy")}, r"does not name a\.npy"),
    ],
)
def test_a_nan_that_was_not_refused_well_is_seen(tmp_path, case, why):
    with pytest.raises(NotOk, match=why):
        nan(tmp_path, **case)


@pytest.mark.parametrize("trace", ["trace.jsonl", "checkpoints"])
def test_a_nan_refused_too_late_is_seen(tmp_path, trace):
    (tmp_path / trace).touch()
    with pytest.raises(NotOk, match="training began"):
        nan(tmp_path)


def test_a_kill_in_the_middle_is_told_from_other_ends(run):
    killed = ended(-signal.SIGKILL)
    middle = {"status": "open", "checkpoints": (3,)}
    assert "checkpoint of step 3" in checks.was_killed(killed, run("a", **middle), STEPS)
    with pytest.raises(NotOk, match="exit code 0 instead of -9"):
        checks.was_killed(ended(0), run("b"), STEPS)
    with pytest.raises(NotOk, match="says completed"):
        checks.was_killed(killed, run("c"), STEPS)
    with pytest.raises(NotOk, match="of step 6"):
        checks.was_killed(killed, run("d", status="open"), STEPS)
    with pytest.raises(NotOk, match="of step 0"):
        checks.was_killed(killed, run("e", status="open", checkpoints=()), STEPS)


def test_a_stop_on_request_is_told_from_other_ends(run):
    err = "Continuing from step_00000002.\n"
    middle = {"status": "stopped", "checkpoints": (2, 4)}
    found = checks.was_stopped(ended(75, err=err), run("a", **middle), 2, STEPS)
    assert found == "went on from step 2, exit 75 at step 4"
    with pytest.raises(NotOk, match="exit code 0 instead of 75"):
        checks.was_stopped(ended(0, err=err), run("b", **middle), 2, STEPS)
    with pytest.raises(NotOk, match="does not name Continuing"):
        checks.was_stopped(ended(75), run("c", **middle), 2, STEPS)
    with pytest.raises(NotOk, match="says open"):
        checks.was_stopped(ended(75, err=err), run("d", status="open"), 2, STEPS)
    for name, checkpoints in (("e", (2,)), ("f", (2, 6))):
        folder = run(name, status="stopped", checkpoints=checkpoints)
        with pytest.raises(NotOk, match="it had begun at 2"):
            checks.was_stopped(ended(75, err=err), folder, 2, STEPS)


def test_unfinished_checkpoints_do_not_count(tmp_path):
    assert checks.newest_checkpoint(tmp_path) == 0
    for name in ("step_00000006", "step_00000012.part"):
        os.makedirs(tmp_path / "checkpoints" / name)
    assert checks.newest_checkpoint(tmp_path) == 6


TABLE = "ok  name  detail\nok  manifest id  ab\nok  config digest  cd\n"


def test_what_verify_says_is_read():
    assert checks.verifies(ended(0, TABLE)) == "2 digests and facts hold"
    with pytest.raises(NotOk, match="exit code 5"):
        checks.verifies(ended(5, TABLE))


def test_a_flipped_bit_must_be_found_by_name():
    out = "ok      name               detail\nNOT OK  model.safetensors  recorded a, computed b\n"
    assert (
        checks.finds_flipped(ended(5, out), "model.safetensors")
        == "exit 5, names model.safetensors"
    )
    with pytest.raises(NotOk, match="exit code 0 instead of 5"):
        checks.finds_flipped(ended(0, out), "model.safetensors")
    with pytest.raises(NotOk, match="names nothing"):
        checks.finds_flipped(ended(5, TABLE), "model.safetensors")
    with pytest.raises(NotOk, match=r"names model\.safetensors, config instead"):
        checks.finds_flipped(ended(5, out + "NOT OK  config  x\n"), "model.safetensors")


def test_a_planted_change_must_part_the_traces_and_be_told(run):
    plain, other = run("a"), (0.9, *LOSSES[1:])
    planted = run("b", losses=other, data="e")
    cause = ("data", "digest")
    assert checks.notices(ended(), plain, planted, cause) == (
        "the traces part at step 1 in loss; the records differ in data.digest"
    )
    with pytest.raises(NotOk, match="exit code 1"):
        checks.notices(ended(1), plain, planted, cause)
    with pytest.raises(NotOk, match="the traces of both runs are equal"):
        checks.notices(ended(), plain, run("c", data="e"), cause)
    with pytest.raises(NotOk, match=r"differ in nothing, not in data\.digest"):
        checks.notices(ended(), plain, run("d", losses=other), cause)
    with pytest.raises(NotOk, match=r"differ in requested\.config_digest, data\.digest, not"):
        checks.notices(ended(), plain, run("e", losses=other, data="e", config="k"), cause)


EPOCHS = [0, 1, 2, 3, 3, 1, 0, 2, 1, 0]


def dealt(stream, n_ranks, per_rank=1):
    """Deal a stream of windows to ranks, as many a rank and step as said."""
    step = n_ranks * per_rank
    return [
        [stream[s + r * per_rank :][:per_rank] for s in range(0, len(stream), step)]
        for r in range(n_ranks)
    ]


@pytest.mark.parametrize(("n_ranks", "per_rank"), [(1, 1), (1, 5), (2, 1), (2, 5), (5, 1)])
def test_whole_epochs_in_new_orders_are_seen(n_ranks, per_rank):
    assert checks.shares_out(4, dealt(EPOCHS, n_ranks, per_rank)).startswith("2 whole epochs of 4")


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ([0, 1, 2, 2, 3, 1, 0, 2], "in epoch 0 1 windows never come, such as 3"),
        ([0, 1, 2, 3, 3, 3, 0, 0], "in epoch 1 2 windows never come, such as 1"),
        ([0, 1, 2, 3, 0, 1, 2, 3], "2 epochs have only 1 orders"),
        ([0, 1, 2, 3, 3, 1], "not two epochs"),
    ],
)
def test_an_order_with_a_fault_is_seen(stream, why):
    with pytest.raises(NotOk, match=why):
        checks.shares_out(4, dealt(stream, 2))


def test_ranks_with_seeds_of_their_own_are_seen():
    # the classical mistake: each rank strides a permutation of its own
    orders = [np.random.default_rng(rank) for rank in range(2)]
    streams = [
        [int(w) for _ in range(3) for w in order.permutation(36)[rank::2]]
        for rank, order in enumerate(orders)
    ]
    with pytest.raises(NotOk, match="windows never come"):
        checks.shares_out(36, [[[w] for w in stream] for stream in streams])
