"""State that goes from strategy to strategy and from world size to world size, over real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from boldcast.launch.local import command
from boldcast.record.trace import read_trace
from boldcast.train.kept import find_damage

WORKER = Path(__file__).with_name("elastic_worker.py")
END = 9


def stage(run_dir, n_ranks, level, strategy, stop_at=END, *more):
    """Continue the run in ``run_dir`` to ``stop_at`` and return every rank's result."""
    arguments = [str(WORKER), str(run_dir), level, strategy, str(stop_at), *map(str, more)]
    line = (
        command(n_ranks, arguments, run_dir / "logs")
        if n_ranks > 1
        else [sys.executable, *arguments]
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    warned = [text for text in done.stderr.splitlines() if "Warning: " in text]
    assert all("Grad strides" in text for text in warned), done.stderr[-3000:]
    lines = [text[7:] for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    results = sorted((json.loads(line) for line in lines), key=lambda result: result["rank"])
    assert len(results) == n_ranks
    assert len({(r["status"], r["step"], r.get("ended"), r["loaded"]) for r in results}) == 1
    return results


def losses(run_dir):
    return [float.fromhex(line["loss"]) for line in read_trace(run_dir / "trace.jsonl")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("undisturbed")
    return run_dir, stage(run_dir, 1, "exact", "auto")[0]


def test_ddp_then_fsdp2_then_one_process_end_in_the_bits_of_one(tmp_path, undisturbed):
    """At `exact`; shares of 6 micro-batches are even on 2 and 3 ranks."""
    first = stage(tmp_path, 2, "exact", "ddp", 3)[0]
    second = stage(tmp_path, 3, "exact", "fsdp2", 6)
    slices_say_where_they_lie(tmp_path / "checkpoints" / "step_00000006")
    third = stage(tmp_path, 1, "exact", "single")[0]
    assert [first["step"], second[0]["step"], third["step"]] == [3, 6, END]
    assert second[0]["loaded"] == first["ended"]
    assert third["loaded"] == second[0]["ended"]
    assert (third["status"], third["ended"]) == ("completed", undisturbed[1]["ended"])
    assert losses(tmp_path) == losses(undisturbed[0])
    assert third["val_loss"] == undisturbed[1]["val_loss"]
    # the ranks share the weights out, and together hold each once
    assert sum(rank["held"] for rank in second) == first["held"]
    assert max(rank["held"] for rank in second) < first["held"]
    assert second[0]["resumed_from"] == first["place"] | {"same_bits": True}
    assert (first["place"]["world_size"], first["place"]["strategy"]) == (2, "ddp")
    assert not [line for line in second[0]["said"] if line.startswith("note:")]


def slices_say_where_they_lie(path):
    assert find_damage(path) is None
    assert {p.name for p in path.iterdir()} == {"digests.json", "state.json"} | {
        f"{kind}-{rank:05d}-of-00003.safetensors"
        for kind in ("model", "optimizer")
        for rank in range(3)
    }
    with safe_open(path / "model-00001-of-00003.safetensors", "pt") as shard:
        offsets = json.loads(shard.metadata()["DCP_SHARDING_INFO"])
        # embed.weight is (8, 5): rows 0 to 2, 3 to 5, 6 and 7
        assert list(shard.get_tensor("body.embed.weight").shape) == [3, 5]
    assert offsets["body.embed.weight"] == {"saved_offsets": [3, 0]}


def test_uneven_shares_under_fsdp2_give_the_bits_of_one(tmp_path, undisturbed):
    """Six micro-batches on four ranks: 1, 2, 1, 2; validation is 5 windows, 1, 1, 1, 2."""
    ended = stage(tmp_path, 4, "exact", "fsdp2")[0]["ended"]
    assert ended == undisturbed[1]["ended"]
    assert losses(tmp_path) == losses(undisturbed[0])


def test_ddp_writes_the_bytes_of_one_process(tmp_path, undisturbed):
    stage(tmp_path, 2, "exact", "ddp")
    for name in ("model.safetensors", "optimizer.safetensors"):
        mine, theirs = (
            folder / "checkpoints" / f"step_{END:08d}" / name
            for folder in (tmp_path, undisturbed[0])
        )
        assert mine.read_bytes() == theirs.read_bytes()


def test_where_no_bits_are_promised_the_state_is_and_the_change_is_said(tmp_path):
    level = "deterministic"
    first = stage(tmp_path, 3, level, "ddp", 3)[0]
    second = stage(tmp_path, 2, level, "fsdp2", 6)[0]
    third = stage(tmp_path, 1, level, "auto")[0]
    assert second["loaded"] == first["ended"]
    assert third["loaded"] == second["ended"]
    note = "note: 3 ranks (ddp) wrote it and 2 ranks (fsdp2) go on: at the level " + level
    assert [line for line in second["said"] if line.startswith(note)]
    assert second["resumed_from"] == first["place"] | {"same_bits": False}
    alone = tmp_path / "alone"
    alone.mkdir()
    undisturbed = stage(alone, 1, level, "auto")[0]
    assert undisturbed["resumed_from"] is None
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-4)
    assert third["val_loss"] == pytest.approx(undisturbed["val_loss"], rel=1e-4)


def test_the_same_place_promises_the_same_bits_and_says_nothing(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    stage(parts, 2, "deterministic", "fsdp2", 4)
    second = stage(parts, 2, "deterministic", "fsdp2")[0]
    assert second["ended"] == stage(whole, 2, "deterministic", "fsdp2")[0]["ended"]
    assert second["resumed_from"]["same_bits"]
    assert not [line for line in second["said"] if line.startswith("note:")]


def test_a_save_that_fails_on_one_rank_is_raised_on_all_and_the_last_one_stands(tmp_path):
    """Rank 1's disk is full from step 4 on; only slices make rank 1 write at all."""
    results = stage(tmp_path, 2, "exact", "fsdp2", END, 4)
    for result in results:
        assert result["status"] == "failed"
        assert "step 4 could not be written: No space left on device (rank 1)" in result["cause"]
    # step 4's failure is raised at a boundary after it, before the run's end
    assert 4 <= results[0]["step"] < END
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "step_00000002",
        "step_00000003",
    ]
    again = stage(tmp_path, 1, "exact", "auto", 4)[0]
    assert again["resumed_from"] == results[0]["place"] | {"same_bits": True}
