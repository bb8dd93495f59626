"""One process's checkpoints: what they hold, what a damaged one and a full disk do."""

import errno
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from boldcast.errors import BoldcastError
from boldcast.parallel.world import World
from boldcast.train import shards
from boldcast.train.checkpoint import Checkpoints
from boldcast.train.kept import find_damage, newest, prune, set_aside

FULL_DISK = Path(__file__).with_name("full_disk_worker.py")


def trained(seed=0, width=3):
    torch.manual_seed(seed)
    model = nn.Linear(width, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    for _ in range(3):
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def go_on(model, optimizer):
    torch.manual_seed(9)
    for _ in range(2):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def checkpoints(run_dir, pair=None, keep=9, background=True):
    return Checkpoints(
        run_dir,
        *(pair or trained()),
        World(),
        keep=keep,
        written_by={"world_size": 1, "strategy": "single"},
        background=background,
    )


def save(run_dir, step, state=None):
    made = checkpoints(run_dir)
    made.save(step, state or {"step": step})
    made.wait()
    return run_dir / "checkpoints" / f"step_{step:08d}"


def names(run_dir):
    return sorted(p.name for p in (run_dir / "checkpoints").iterdir())


def test_a_loaded_state_goes_on_to_the_same_bits(tmp_path):
    path = save(tmp_path, 3)
    pair = trained(seed=1)
    assert checkpoints(tmp_path, pair).load(path)["step"] == 3
    for mine, theirs in zip(go_on(*pair), go_on(*trained()), strict=True):
        assert torch.equal(mine, theirs)


def test_an_optimizer_that_never_stepped_is_filled_too(tmp_path):
    path = save(tmp_path, 3)
    model = nn.Linear(3, 2)
    pair = model, torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    checkpoints(tmp_path, pair).load(path)
    for mine, theirs in zip(go_on(*pair), go_on(*trained()), strict=True):
        assert torch.equal(mine, theirs)


def test_names_are_the_plain_models_and_no_file_holds_code(tmp_path):  # pytorch#41048
    path = save(tmp_path, 1)
    assert {p.name for p in path.iterdir()} == {
        "digests.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }
    assert (path / "model.safetensors").stat().st_mode == (path / "state.json").stat().st_mode
    model, optimizer = trained()
    weights = load_file(path / "model.safetensors")
    assert set(weights) == {"weight", "bias"}
    assert torch.equal(weights["weight"], model.weight)
    moments = load_file(path / "optimizer.safetensors")
    assert set(moments) == {
        f"{name}/{quantity}"
        for name in ("weight", "bias")
        for quantity in ("step", "exp_avg", "exp_avg_sq")
    }
    assert torch.equal(moments["bias/exp_avg_sq"], optimizer.state[model.bias]["exp_avg_sq"])
    state = orjson.loads((path / "state.json").read_bytes())
    assert state == {"step": 1, "written_by": {"world_size": 1, "strategy": "single"}}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_newest_one_is_reported_and_passed_over(tmp_path, name, harm):
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    data = bytearray((bad / name).read_bytes())
    if harm == "remove":
        (bad / name).unlink()
    else:
        data[len(data) // 2] ^= 1
        (bad / name).write_bytes(data if harm == "flip" else data[:-1])
    said = []
    assert newest(tmp_path, said.append) == good
    assert len(said) == 1
    assert "step_00000002 is damaged" in said[0]
    assert name in said[0]


def test_missing_foreign_or_incomplete_digests_are_damage(tmp_path):
    path = save(tmp_path, 1)
    assert find_damage(path) is None
    (path / "more.safetensors").write_bytes(b"")  # torch's reader would take it for a shard
    assert find_damage(path) == "more.safetensors is not recorded"
    (path / "more.safetensors").unlink()
    (path / "digests.json").write_text("{}")
    assert "not recorded" in find_damage(path)
    (path / "digests.json").write_text("[1, 2]")
    assert newest(tmp_path, lambda line: None) is None
    (path / "digests.json").unlink()
    assert newest(tmp_path, lambda line: None) is None


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_library(*args):
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@pytest.mark.parametrize("refuse", [full, full_library])
def test_a_save_cut_short_leaves_no_final_name(tmp_path, monkeypatch, refuse):  # Lightning#688
    good = save(tmp_path, 1)
    monkeypatch.setattr(shards, "save_file", refuse)
    made = checkpoints(tmp_path)
    made.save(2, {"step": 2})
    said = []
    with pytest.raises(BoldcastError, match="step 2 could not be written: No space left") as info:
        made.wait()
    assert info.value.exit_code == 1
    assert info.value.on_every_rank
    assert names(tmp_path) == [good.name]
    made.save(3, {"step": 3})
    made.settle(said.append)  # on the way out of another error it is told, not raised
    assert "step 3 could not be written" in said[0]


@pytest.mark.parametrize("where", ["tmpfs", "limit"])
def test_a_full_disk_leaves_the_old_ones_whole_and_says_so(tmp_path, where):
    """The disk is really full: a small tmpfs, and the kernel's limit on the size of a file."""
    line = [sys.executable, FULL_DISK, tmp_path, *(["limit"] if where == "limit" else [])]
    if where == "tmpfs":
        own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
        if subprocess.run([*own_mounts, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no mount namespace: `unshare --user --mount` is not permitted here")
        line = [*own_mounts, *line]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kind, found, sentence = done.stdout.strip().split("\n", 2)
    assert kind == {"tmpfs": "28", "limit": "27"}[where]  # ENOSPC, EFBIG
    assert found == "step_00000001 whole alone"
    assert sentence.startswith("The checkpoint of step 2 could not be written: ")
    assert "are whole; make room and start the same command again." in sentence


def test_a_step_goes_on_while_the_copy_is_written(tmp_path, monkeypatch):
    """The thread is held back; what is written is the state at the time of the save."""
    begun, go, original = threading.Event(), threading.Event(), shards.save_file

    def held_back(*args):
        begun.set()
        assert go.wait(60)
        original(*args)

    monkeypatch.setattr(shards, "save_file", held_back)
    model, optimizer = trained()
    before = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
    made = checkpoints(tmp_path, (model, optimizer))
    made.save(1, {"step": 1})
    go_on(model, optimizer)  # would not be reached if `save` waited
    assert begun.wait(60)
    assert not made.failed
    assert names(tmp_path) == ["step_00000001.part"]
    go.set()
    made.wait()
    path = tmp_path / "checkpoints" / "step_00000001"
    assert torch.equal(load_file(path / "model.safetensors")["weight"], before[0])
    assert torch.equal(load_file(path / "optimizer.safetensors")["weight/exp_avg"], before[1])
    assert not torch.equal(model.weight, before[0])


def test_one_save_is_under_way_at_a_time_and_the_next_raises_its_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "save_file", full)
    made = checkpoints(tmp_path)
    made.save(1, {"step": 1})
    with pytest.raises(BoldcastError, match="step 1"):
        made.save(2, {"step": 2})
    assert not made.failed  # told once
    monkeypatch.undo()
    made.save(2, {"step": 2})
    made.wait()
    assert names(tmp_path) == ["step_00000002"]


def test_without_background_the_checkpoint_stands_when_save_returns(tmp_path):
    checkpoints(tmp_path, background=False).save(1, {"step": 1})
    assert find_damage(tmp_path / "checkpoints" / "step_00000001") is None


def test_leftovers_of_a_kill_are_removed_and_never_loaded(tmp_path):
    good = save(tmp_path, 1)
    left = tmp_path / "checkpoints" / "step_00000002.part"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert newest(tmp_path, pytest.fail) == good
    assert not left.exists()


def test_a_step_that_stands_already_is_replaced(tmp_path):
    save(tmp_path, 1, {"round": 1})
    path = save(tmp_path, 1, {"round": 2})
    assert checkpoints(tmp_path).load(path)["round"] == 2


def test_a_step_is_replaced_only_by_a_whole_one(tmp_path, monkeypatch):
    """With one kept, a full disk in the middle must not leave none."""
    path = save(tmp_path, 1, {"round": 1})
    monkeypatch.setattr(shards, "save_file", full)
    made = checkpoints(tmp_path, keep=1)
    made.save(1, {"round": 2})
    with pytest.raises(BoldcastError, match="No space left"):
        made.wait()
    assert names(tmp_path) == [path.name]
    assert made.load(newest(tmp_path, pytest.fail))["round"] == 1


def test_a_kill_while_a_step_is_replaced_loses_neither(tmp_path):
    path = save(tmp_path, 1, {"round": 1})

    class Killed(BaseException):
        pass

    def killed():
        with set_aside(path):
            assert names(tmp_path) == ["step_00000001.old.part"]
            raise Killed

    with pytest.raises(Killed):
        killed()
    assert names(tmp_path) == [path.name]  # an error that can still act gives the name back

    path.rename(path.with_name("step_00000001.old.part"))  # as a kill between the renames does
    assert newest(tmp_path, pytest.fail) == path
    assert checkpoints(tmp_path).load(path)["round"] == 1

    path.rename(path.with_name("step_00000001.old.part"))  # and one after both
    new = save(tmp_path, 2)
    new.rename(path)
    assert checkpoints(tmp_path).load(newest(tmp_path, pytest.fail))["step"] == 2
    assert names(tmp_path) == [path.name]


def test_damaged_ones_of_a_future_given_up_do_not_count_as_kept(tmp_path):
    made = checkpoints(tmp_path, keep=1)
    for step in (12, 18):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step_00000018" / "model.safetensors").write_bytes(b"harm")
    said = []
    assert newest(tmp_path, said.append).name == "step_00000012"
    made.save(15, {"step": 15})
    made.wait()
    assert names(tmp_path) == ["step_00000015"]
    assert newest(tmp_path, pytest.fail).name == "step_00000015"


def test_the_ranks_wait_for_each_other_no_longer_than_they_are_told(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("torch.distributed.new_group", lambda **options: asked.append(options))
    two = World(world_size=2, local_world_size=2)
    Checkpoints(tmp_path, *trained(), two, keep=1, written_by={}, timeout_s=7.0)
    assert asked == [{"backend": "gloo", "timeout": timedelta(seconds=7)}]


def test_the_newest_and_the_best_are_kept(tmp_path):
    made = checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        made.save(step, {}, best_step=2)
    made.wait()
    assert names(tmp_path) == ["step_00000002", "step_00000004", "step_00000005"]
    prune(tmp_path, 5, keep=1, best_step=None)
    assert names(tmp_path) == ["step_00000005"]


def test_another_model_is_refused_in_words(tmp_path):
    path = save(tmp_path, 1)
    with pytest.raises(BoldcastError, match=r"(?s)does not fit this model.*--run_dir"):
        checkpoints(tmp_path, trained(width=4)).load(path)
    model = nn.Linear(3, 2, bias=False)
    pair = model, torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(BoldcastError, match=r"does not fit this model: bias, .* one side only"):
        checkpoints(tmp_path, pair).load(path)


def test_no_checkpoint_is_no_error(tmp_path):
    assert newest(tmp_path, pytest.fail) is None
