"""Help, version, exit codes and streams of the whole program."""

import errno
import os
import pty
import subprocess
import sys

import pytest

from boldcast import __version__, cli, errors
from boldcast.cli.specs import COMMANDS
from boldcast.config.docs import field_docs

BOLDCAST = [sys.executable, "-m", "boldcast"]
HEAVY = {"torch", "numpy", "scipy", "nibabel", "nilearn", "matplotlib", "rich", "pandas"}


@pytest.fixture
def run_cli(capsys):
    def call(*argv):
        code = cli.run(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


# ---- help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c.path))
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_every_command_lists_its_options_with_defaults(run_cli, command, flag):
    code, out, err = run_cli(*command.path, flag)
    assert (code, err) == (0, "")
    assert f"Usage: boldcast {' '.join(command.path)}" in out
    text = " ".join(out.split())
    for option in command.options:
        assert f"--{option.name}" in text
        assert f"{option.doc} Default: {option.default}." in text
    if command.operand:
        assert command.operand.doc in text
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.settings], ids=lambda c: c.path[-1])
def test_help_lists_all_settings_where_they_are_taken(run_cli, command):
    text = " ".join(run_cli(*command.path, "--help")[1].split())
    for setting in field_docs():
        assert f"--{setting.name} " in text
        assert setting.doc in text


@pytest.mark.parametrize(
    "argv", [["--help", "train"], ["train", "--help", "--stepz"], ["train", "x.toml", "-h", "-q"]]
)
def test_help_anywhere_wins_over_everything_else(run_cli, argv):
    code, out, _ = run_cli(*argv)
    assert code == 0
    assert "Usage: boldcast train" in out


def test_overview_lists_every_command_and_every_exit_code(run_cli):
    code, out, err = run_cli("--help")
    assert (code, err) == (0, "")
    for command in COMMANDS:
        assert f"  {' '.join(command.path)} " in out
    for number in (0, 1, 2, 3, 4, 5, 6, 7, 75):
        assert f" {number} " in " ".join(out.split())


def test_help_of_a_group_lists_its_commands_only(run_cli):
    code, out, _ = run_cli("data", "--help")
    assert code == 0
    assert "data fetch" in out
    assert "selftest" not in out


def test_help_of_an_unknown_command_is_refused(run_cli):
    code, out, err = run_cli("trian", "--help")
    assert (code, out) == (2, "")
    assert "Did you mean `boldcast train`?" in err


@pytest.mark.parametrize("name", ["rerun", "launch", "submit", "doctor", "help"])
def test_commands_that_do_not_exist_are_unknown(run_cli, name):
    code, out, err = run_cli(name)
    assert (code, out) == (2, "")
    assert f"`{name}` must be a command of boldcast" in err


def test_version(run_cli):
    assert run_cli("--version") == (0, f"boldcast {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["verify", "--run_dir", "x", "y"], "It belongs to `boldcast train`."),
        (["selftest", "--seed", "1"], "It belongs to `boldcast train`, `boldcast bench`"),
        (["verify"], "Write `boldcast verify RUN_OR_MANIFEST [options]`."),
        (["verify", ""], '`RUN_OR_MANIFEST` must not be empty, but is "".'),
        (["report", "x", "--quux"], "See `boldcast report --help`."),
        (["data", "fetc"], "Did you mean `boldcast data fetch`?"),
    ],
)
def test_a_refusal_says_what_to_do(run_cli, argv, words):
    code, out, err = run_cli(*argv)
    assert (code, out) == (2, "")
    assert words in err


def test_problems_of_words_values_and_file_come_together(run_cli, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[model]\nheaddim = 48\n")
    code, _, err = run_cli("train", str(path), "--stepz", "5", "--seed", "x", "--nproc", "0")
    assert code == 2
    assert "(4 problems)" in err
    for name in ("--stepz", "--nproc", "seed", "model.headdim"):
        assert f"- `{name}` must" in err


# ---- exit codes


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (errors.UsageRefused(["a", "b"]), 2),
        (errors.DataRefused("planted"), 3),
        (errors.AcceptanceMissed("planted"), 4),
        (errors.NotTheSame("planted"), 5),
        (errors.MeasurementInvalid("planted"), 6),
        (errors.Diverged("planted"), 7),
        (errors.StoppedOnRequest("planted"), 75),
    ],
)
def test_each_outcome_has_its_exit_code_and_message_without_traceback(
    run_cli, monkeypatch, outcome, code
):
    monkeypatch.setattr(cli, "_call", _raiser(outcome))
    got, out, err = run_cli("selftest")
    assert (got, out) == (code, "")
    assert "Traceback" not in err
    for line in str(outcome).splitlines():
        assert line in err


def test_an_interrupt_is_quiet(run_cli, monkeypatch):
    monkeypatch.setattr(cli, "_call", _raiser(KeyboardInterrupt()))
    assert run_cli("selftest") == (130, "", "")


def test_main_leaves_with_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["boldcast", "--version"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    assert capsys.readouterr().out == f"boldcast {__version__}\n"


def _raiser(error):
    def call(*_):
        raise error

    return call


# ---- as a process


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        ([], 2),
        (["trian"], 2),
        (["train", "--stepz", "5"], 2),
        (["train", "--train.steps", "x"], 2),
        (["train", "nosuch.toml"], 2),
        (["train", "--dry_run"], 0),
    ],
)
def test_help_refusals_and_dry_runs_import_nothing_heavy(argv, code):
    command = [sys.executable, "-X", "importtime", "-m", "boldcast", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    timed = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in timed}
    assert "boldcast.cli" in imported
    assert imported & HEAVY == set()
    if code == 2:
        assert "fire" not in imported


def test_help_on_a_terminal_uses_no_pager_and_ends(tmp_path):
    mark = tmp_path / "pager-ran"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    env = {**os.environ, "PAGER": str(pager), "TERM": "xterm"}
    command = [*BOLDCAST, "train", "--help"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        text = _read_all(ours)
    assert process.returncode == 0
    assert b"Usage: boldcast train" in text
    assert not mark.exists()
    assert b"\x1b" not in text


def _read_all(handle):
    text = b""
    while True:
        try:
            piece = os.read(handle, 65536)
        except OSError as error:
            # Linux reports the other end of a terminal being closed this way.
            if error.errno != errno.EIO:
                raise
            piece = b""
        if not piece:
            os.close(handle)
            return text
        text += piece


def test_a_closed_pipe_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*BOLDCAST, "train", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_pipe_that_is_not_our_output_is_a_bug_to_be_seen():
    code = (
        "import sys; from boldcast import cli\n"
        "def call(*_): raise BrokenPipeError('planted')\n"
        "cli._call = call; sys.exit(cli.run(['selftest']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("BrokenPipeError: planted\n")


def test_a_locale_without_our_signs_does_not_end_in_an_error():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*BOLDCAST, "train", "--dry_run"], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\\xd7 1 rank" in done.stdout


def test_a_file_that_cannot_be_had_is_said_in_words_and_a_bug_is_not(cli, replace):
    replace("boldcast.cli.train_command", "train", NotADirectoryError(20, "No folder", "a/b"))
    code, _, err = cli("train")
    assert (code, err.splitlines()) == (
        1,
        [
            "boldcast: a/b cannot be used: No folder. Correct the path, or the permissions of its "
            "folder."
        ],
    )
    replace("boldcast.cli.train_command", "train", OSError(5, "Input/output error"))
    assert "Traceback" in cli("train")[2]
