"""The self-test's report, study and driver, each on its own."""

import math
import signal
import sys
import time

import numpy as np
import orjson
import pytest

from boldcast import selftest
from boldcast.config.schema import SyntheticConfig
from boldcast.data.scan_list import read_scan_list
from boldcast.selftest import driver as module
from boldcast.selftest import study, table
from boldcast.selftest.driver import Command, Driver, environment
from boldcast.selftest.report import NotOk, Report

SIZES = SyntheticConfig(n_subjects=4, n_volumes=20, n_regions=3)


def fail(error):
    raise error


def test_any_exception_makes_a_check_not_ok():
    report = Report()
    assert report.check("right", lambda: "seen")
    assert not report.check("wrong", lambda: fail(NotOk("other bits")))
    assert not report.check("broken", lambda: fail(FileNotFoundError("no such file")))
    assert [(c.ok, c.detail) for c in report.checks] == [
        (True, "seen"),
        (False, "other bits"),
        (False, "FileNotFoundError: no such file"),
    ]
    assert not report.ok


def test_a_report_without_checks_proves_nothing():
    assert not Report().ok


def test_the_table_counts_what_does_not_hold(tmp_path):
    report = Report()
    report.check("a", lambda: "fine")
    assert "1 checks, all hold" in table.text(report, None)
    report.check("bbb", lambda: fail(NotOk("differs")))
    text = table.text(report, tmp_path)
    assert "2 checks, 1 do NOT hold" in text
    assert text.splitlines()[2].split() == ["bbb", "NOT", "OK", "0.0", "differs"]
    assert str(tmp_path) in text


@pytest.mark.parametrize("holds", [True, False])
def test_the_verdict_is_the_exit_code_and_a_failure_keeps_its_folder(
    monkeypatch, tmp_path, capsys, holds
):
    def run(driver, report):
        driver.start("version", "--version")
        report.check("planted", lambda: "fine" if holds else fail(NotOk("differs")))

    monkeypatch.setattr(selftest.plan, "run", run)
    monkeypatch.setattr(selftest.tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "out.json"
    assert selftest.run(out, as_json=True) == (0 if holds else 1)
    found = orjson.loads(out.read_bytes())
    assert found["ok"] is holds
    assert orjson.loads(capsys.readouterr().out) == found
    (folder,) = list(tmp_path.glob("boldcast-selftest-*")) or [None]
    assert found["kept"] == (None if holds else str(folder))


def test_the_study_is_what_a_user_would_have(tmp_path):
    entries = read_scan_list(study.write(tmp_path / "plain", SIZES))
    assert [entry.split for entry in entries] == ["train"] * 3 + ["held_out"]
    assert [np.load(entry.path).shape for entry in entries] == [(20, 3)] * 4


def test_one_number_is_planted_in_a_copy(tmp_path):
    entries = read_scan_list(study.write(tmp_path / "plain", SIZES))
    name = entries[1].path.name
    study.plant(tmp_path / "plain", tmp_path / "nan", name, volume=5, region=2, value=math.nan)
    changed = [
        np.argwhere(
            ~(np.load(tmp_path / "plain" / e.path.name) == np.load(tmp_path / "nan" / e.path.name))
        )
        for e in entries
    ]
    assert [c.tolist() for c in changed] == [[], [[5, 2]], [], []]
    assert np.isnan(np.load(tmp_path / "nan" / name)[5, 2])


def test_one_bit_is_flipped(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"ab\x06")
    study.flip_bit(file)
    assert file.read_bytes() == b"ab\x07"


def test_commands_see_this_installation_and_no_other_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {
        "PYTHONPATH": "lib",
        "RANK": "1",
        "BOLDCAST_DATA": "x",
        "BOLDCAST_RUNS": "x",
        "TORCHELASTIC_RUN_ID": "x",
        "HOME": "h",
    }
    env = environment(given, tmp_path)
    package = str(module.Path(selftest.__file__).resolve().parents[2])
    assert env == {
        "PYTHONPATH": f"{package}:{tmp_path / 'lib'}",
        "HOME": "h",
        "CUDA_VISIBLE_DEVICES": "",
        "BOLDCAST_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def sleeper(folder, seconds):
    return Command([sys.executable, "-c", f"import time; time.sleep({seconds})"], "s", folder, {})


def test_lanes_go_on_when_their_conditions_hold_and_not_in_turn(tmp_path):
    seen = []
    ready = {"slow": False}

    def slow():
        yield lambda: ready["slow"]
        seen.append("slow")

    def fast():
        seen.append("fast")
        yield lambda: True
        ready["slow"] = True
        seen.append("fast again")

    Driver(tmp_path).run([slow(), fast()])
    assert seen == ["fast", "fast again", "slow"]


def test_a_condition_that_fails_is_the_failure_of_its_lane(tmp_path):
    seen = []

    def lane():
        try:
            yield lambda: fail(OSError("gone"))
        except OSError as error:
            seen.append(str(error))

    Driver(tmp_path).run([lane()])
    assert seen == ["gone"]


def test_a_command_that_takes_too_long_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
    command = sleeper(tmp_path, 600)
    while not command.ended():
        time.sleep(0.01)
    assert command.code == -signal.SIGKILL


def test_leaving_ends_what_still_runs(tmp_path):
    with Driver(tmp_path) as driver:
        command = sleeper(tmp_path, 600)
        driver._commands.append(command)
        assert command.code is None
    assert command.code == -signal.SIGKILL


def test_an_installation_on_which_nothing_runs_fails_whatever_needs_a_command(
    tmp_path, monkeypatch
):
    def start(self, name, *words, python=()):
        line = [sys.executable, "-c", "import sys; sys.exit('broken')"]
        self._commands.append(Command(line, name, self.logs, {}))
        return self._commands[-1]

    monkeypatch.setattr(Driver, "start", start)
    report = Report()
    with Driver(tmp_path) as driver:
        selftest.plan.run(driver, report)
    held = [check.name for check in report.checks if check.ok]
    assert held == ["order of windows, 1 rank", "order of windows, 2 ranks"]
    details = {check.name: check.detail for check in report.checks}
    assert details["trains on one rank"] == "exit code 1 instead of 0; it said: broken"
    assert "could not go on" in details["part `interrupted`"]
