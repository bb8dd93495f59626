import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boldcast.config.schema import Config, NumericsConfig
from boldcast.errors import (
    AcceptanceMissed,
    BoldcastError,
    DataRefused,
    Diverged,
    StoppedOnRequest,
    UsageRefused,
)
from boldcast.launch import environment, local, outcome


def test_a_users_own_setting_is_kept():
    env = environment.merged(Config(), {"OMP_NUM_THREADS": "7", "HOME": "/h"})
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["HOME"] == "/h"
    assert env["MAMBA_DETERMINISTIC"] == "1"


def test_a_wait_in_vain_raises_where_the_bits_count_and_overlap_is_kept_at_fast():
    assert environment.exports(Config())["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    fast = Config(numerics=NumericsConfig(level="fast"))
    assert "TORCH_NCCL_BLOCKING_WAIT" not in environment.exports(fast)


def test_fast_exports_no_deterministic_kernels():
    names = environment.exports(Config(numerics=NumericsConfig(level="fast", allow_tf32=True)))
    assert not {"MAMBA_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG", "TRITON_F32_DEFAULT"} & set(names)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [("0", 1), ("0,2", 2), ("", 0), ("-1", 0), ("GPU-1a2b, MIG-3c", 2), (None, 3)],
)
def test_gpus_are_counted_without_a_driver(tmp_path, chosen, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    env = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert environment.visible_gpus(env, tmp_path, "2.13.0+cu130") == count
    assert environment.visible_gpus(env, tmp_path, "2.13.0+cpu") == 0


def test_a_torch_for_cpus_alone_is_known_by_the_installed_version(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    for version, count in (("2.13.0", 1), ("2.13.0+cpu", 0)):
        monkeypatch.setattr(environment.metadata, "version", {"torch": version}.get)
        assert environment.visible_gpus({}, tmp_path) == count


def test_torchrun_leaves_no_folder_and_what_ranks_print_is_not_redirected(tmp_path, capfd):
    script = tmp_path / "rank.py"
    script.write_text("print('hello from a rank')")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    local.run(2, [str(script)], os.environ | {"TMPDIR": str(temporary)})
    assert list(temporary.iterdir()) == []
    assert capfd.readouterr().out.count("hello from a rank") == 2


@pytest.mark.parametrize(
    "error",
    [
        UsageRefused(["one", "two"]),
        DataRefused("bad"),
        AcceptanceMissed("missed"),
        Diverged("nan"),
        StoppedOnRequest("stopped"),
        BoldcastError("disk full"),
    ],
)
def test_an_error_comes_back_from_a_rank_as_what_it_was(tmp_path, monkeypatch, error):
    monkeypatch.setenv(outcome.VARIABLE, str(tmp_path))
    assert outcome.leave(error, rank=1)
    back = outcome.as_error(outcome.first_cause(tmp_path))
    assert type(back) is type(error)
    assert back.exit_code == error.exit_code
    assert str(error) in str(back)


def test_the_earliest_note_is_the_first_cause_and_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv(outcome.VARIABLE, str(tmp_path))
    assert outcome.first_cause(tmp_path) is None
    try:
        raise KeyError("the real one")
    except KeyError as error:
        outcome.leave(error, rank=2)
    outcome.leave(RuntimeError("Connection closed by peer"), rank=0)
    note = outcome.first_cause(tmp_path)
    assert (note.rank, note.code) == (2, 1)
    assert "the real one" in note.message
    assert "Traceback" in str(outcome.as_error(note))


def test_without_a_launching_process_nothing_is_noted(monkeypatch):
    monkeypatch.delenv(outcome.VARIABLE, raising=False)
    assert not outcome.leave(DataRefused("bad"), rank=0)


def test_ranks_see_torchruns_place_and_success_is_silent(tmp_path):
    script = tmp_path / "rank script.py"
    script.write_text(
        "import os, pathlib\n"
        "pathlib.Path(__file__).with_name('r' + os.environ['RANK']).write_text(\n"
        "    os.environ['WORLD_SIZE'] + os.environ['MARK'])\n"
    )
    local.run(2, [str(script)], os.environ | {"MARK": "x"})
    assert [(tmp_path / name).read_text() for name in ("r0", "r1")] == ["2x", "2x"]


def test_a_rank_that_dies_without_a_word_is_an_error(tmp_path, capfd):
    script = tmp_path / "rank.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(BoldcastError, match="ended without a word"):
        local.run(2, [str(script)], dict(os.environ))


def test_a_killed_launching_process_takes_its_ranks_along(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, pathlib, time\n"
        "from boldcast.launch.local import die_with_parent\n"
        "die_with_parent()\n"
        "mine = pathlib.Path(__file__).with_name('pid' + os.environ['RANK'])\n"
        "mine.write_text(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os; from boldcast.launch import local; local.run(2, [{str(script)!r}], "
            "dict(os.environ))",
        ]
    )
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    _wait_until(lambda: all(p.exists() and p.read_text() for p in pids))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    _wait_until(lambda: not any(_alive(int(p.read_text())) for p in pids))


def _alive(pid):
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(condition, patience_s=60.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
