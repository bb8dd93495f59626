import errno

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from boldcast.errors import BoldcastError
from boldcast.train import checkpoint


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


def test_a_loaded_state_goes_on_to_the_same_bits(tmp_path):
    path = checkpoint.save(tmp_path, 3, *trained(), {"step": 3})
    model, optimizer = trained(seed=1)
    assert checkpoint.load(path, model, optimizer) == {"step": 3}
    for mine, theirs in zip(go_on(model, optimizer), go_on(*trained()), strict=True):
        assert torch.equal(mine, theirs)


def test_names_are_the_plain_models(tmp_path):  # pytorch#41048
    path = checkpoint.save(tmp_path, 1, *trained(), {})
    assert set(load_file(path / "model.safetensors")) == {"weight", "bias"}
    assert set(load_file(path / "optimizer.safetensors")) == {
        f"{name}/{quantity}"
        for name in ("weight", "bias")
        for quantity in ("step", "exp_avg", "exp_avg_sq")
    }


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_newest_one_is_reported_and_passed_over(tmp_path, name, harm):
    good = checkpoint.save(tmp_path, 1, *trained(), {"step": 1})
    bad = checkpoint.save(tmp_path, 2, *trained(), {"step": 2})
    data = bytearray((bad / name).read_bytes())
    if harm == "remove":
        (bad / name).unlink()
    else:
        data[len(data) // 2] ^= 1
        (bad / name).write_bytes(data if harm == "flip" else data[:-1])
    said = []
    assert checkpoint.newest(tmp_path, said.append) == good
    assert len(said) == 1
    assert "step_00000002 is damaged" in said[0]


def test_missing_or_foreign_digests_are_damage(tmp_path):
    path = checkpoint.save(tmp_path, 1, *trained(), {})
    (path / "digests.json").write_text("[1, 2]")
    assert checkpoint.newest(tmp_path, lambda line: None) is None
    (path / "digests.json").unlink()
    assert checkpoint.newest(tmp_path, lambda line: None) is None


def test_a_save_cut_short_leaves_no_final_name(tmp_path, monkeypatch):  # Lightning#688
    good = checkpoint.save(tmp_path, 1, *trained(), {})

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("boldcast.train.checkpoint.save_file", full)
    with pytest.raises(BoldcastError, match="step 2 could not be written: No space left"):
        checkpoint.save(tmp_path, 2, *trained(), {})
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [good.name]


def test_leftovers_of_a_kill_are_removed_and_never_loaded(tmp_path):
    good = checkpoint.save(tmp_path, 1, *trained(), {})
    left = tmp_path / "checkpoints" / "step_00000002.part"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(tmp_path, pytest.fail) == good
    assert not left.exists()


def test_a_step_that_stands_already_is_replaced(tmp_path):
    checkpoint.save(tmp_path, 1, *trained(), {"round": 1})
    path = checkpoint.save(tmp_path, 1, *trained(), {"round": 2})
    assert checkpoint.load(path, *trained()) == {"round": 2}


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in (1, 2, 3, 4, 5):
        checkpoint.save(tmp_path, step, *trained(), {})
    checkpoint.prune(tmp_path, keep=2, best_step=2)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_00000002", "step_00000004", "step_00000005"]


def test_another_model_is_refused_in_words(tmp_path):
    path = checkpoint.save(tmp_path, 1, *trained(), {})
    with pytest.raises(BoldcastError, match=r"(?s)does not fit this model.*--run_dir"):
        checkpoint.load(path, *trained(width=4))


def test_no_checkpoint_is_no_error(tmp_path):
    assert checkpoint.newest(tmp_path, pytest.fail) is None
