"""What a run's loggers are told."""

import sys
from types import SimpleNamespace

import pytest

from boldcast.config.schema import LogConfig
from boldcast.train.log import RunLog


@pytest.fixture
def begun(monkeypatch):
    """Every call of ``wandb.init``."""
    calls = []

    def init(**options):
        calls.append(options)
        return SimpleNamespace(log=lambda *args, **kwargs: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return calls


def begin(run_dir, quiet=False):
    run_dir.mkdir(parents=True, exist_ok=True)
    log = RunLog(LogConfig(wandb=True), run_dir, "name", quiet=quiet, log_every=1)
    log.begin(0, 1)
    log.close()


def test_a_folder_has_one_wandb_identity_that_no_other_folder_shares(tmp_path, begun):
    begin(tmp_path / "here" / "run")
    begin(tmp_path / "here" / "run")
    begin(tmp_path / "there" / "run")
    first, again, other = (options["id"] for options in begun)
    assert first == again != other
    assert first == (tmp_path / "here" / "run" / ".wandb_id").read_text()
    # it moves with the folder
    (tmp_path / "here" / "run").rename(tmp_path / "moved")
    begin(tmp_path / "moved")
    assert begun[-1]["id"] == first


def test_only_rank_zero_makes_one(tmp_path, begun):
    begin(tmp_path, quiet=True)
    assert begun == []
    assert list(tmp_path.iterdir()) == []
