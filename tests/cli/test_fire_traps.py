"""One test for each way in which fire would misread a command line; the numbers are of that list.

In every refusal the command must not have run: fire calls first and complains afterwards.
"""

import inspect
from pathlib import Path

import fire
import pytest

from boldcast.cli import commands, specs
from boldcast.cli.argv import parse
from boldcast.config.read import preset

TINY = preset("tiny")


def refused(result, recorder, *words):
    code, out, err = result
    assert code == 2
    assert out == ""
    assert recorder.calls == []
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize("flag", ["--stepz", "--step", "--steps", "--train.stepz", "--train.step"])
@pytest.mark.parametrize("form", ["{} 5", "{}=5", "{}"])
def test_01_an_unknown_flag_is_refused_before_anything_runs(cli, train, flag, form):
    words = form.format(flag).split()
    refused(cli("train", *words), train, f"`{flag}` must be", "Did you mean `--train.steps`?")


def test_02_a_stray_word_does_not_fill_a_free_parameter(cli, train):
    result = cli("train", str(TINY), "--train.steps", "30", "extra")
    refused(result, train, "`extra` must not stand here")


def test_02_a_command_without_operand_takes_none(cli, selftest):
    refused(cli("selftest", "extra"), selftest, "`extra` must not stand here")


@pytest.mark.parametrize("text", ["abc", "0x10", "1_0", "True", "None", "nan", ""])
def test_03_a_value_of_the_wrong_type_is_refused(cli, train, text):
    refused(cli("train", f"--optim.lr={text}"), train, "`optim.lr` must be a number")


@pytest.mark.parametrize(
    "text", ["1e5", "True", "None", "0x10", "1_000", "007", "100307", "123456e7", "5"]
)
def test_04_a_name_that_looks_like_a_number_stays_text(cli, train, text):
    assert cli("train", "--name", text)[0] == 0
    ((config,), _), *_ = train.calls
    assert config.name == text


def test_04_a_negative_number_is_a_value_and_judged_by_its_setting(cli, train):
    refused(cli("train", "--optim.lr", "-1e-3"), train, "greater than 0, but is -0.001")


@pytest.mark.parametrize("text", ["x#y", "#", "a,b", "{a: b}", "[1]", "(1,)", '"q"', "a=b", "None"])
def test_05_06_a_path_is_taken_as_it_stands(cli, train, text):
    assert cli("train", "--run_dir", text)[0] == 0
    (_, called), *_ = train.calls
    assert called["run_dir"] == Path(text)


def test_06_identifiers_with_commas_become_a_list_of_texts(cli, train):
    assert cli("train", "--data.held_out", "101309,1e5,007")[0] == 0
    ((config,), _), *_ = train.calls
    assert config.data.held_out == ("101309", "1e5", "007")


@pytest.mark.parametrize("text", ["False", "no", "0", "off"])
def test_07_a_switch_takes_true_or_false_and_nothing_else(cli, train, text):
    refused(cli("train", "--log.wandb", text), train, "Write true or false")


def test_07_false_is_false(cli, train):
    assert cli("train", "--log.wandb", "false", "--log.tensorboard=true")[0] == 0
    ((config,), _), *_ = train.calls
    assert (config.log.wandb, config.log.tensorboard) == (False, True)


@pytest.mark.parametrize("flag", ["--no-dry_run", "--nodry_run", "--no-log.wandb", "--nojson"])
def test_07_a_negated_flag_is_unknown(cli, train, flag):
    refused(cli("train", flag), train, f"`{flag}` must be an option")


@pytest.mark.parametrize("value", ["true", "false", "1", ""])
def test_07_a_flag_that_stands_alone_takes_no_value(cli, train, value):
    refused(cli("train", f"--dry_run={value}"), train, "`--dry_run` must stand alone")


@pytest.mark.parametrize(
    "words",
    [
        ["--train.steps"],
        ["--name", "--seed", "5"],
        ["--run_dir", "--json"],
        ["--log.wandb"],
        ["--nproc"],
    ],
)
def test_08_a_flag_without_its_value_is_refused(cli, train, words):
    refused(cli("train", *words), train, f"`{words[0]}` must have a value")


@pytest.mark.parametrize("words", [["--run_dir", "-"], ["-"], ["--name", "-"]])
def test_09_a_bare_dash_is_refused_and_never_a_separator(cli, train, words):
    refused(cli("train", *words), train, "`-`")


def test_09_a_dash_written_with_an_equals_sign_is_a_value(cli, train):
    assert cli("train", "--run_dir=-")[0] == 0
    assert train.calls[0][1]["run_dir"] == Path("-")


@pytest.mark.parametrize("words", [["-s", "5"], ["--n", "foo"], ["-n", "foo"], ["-r=x"], ["-j"]])
def test_10_one_letter_is_no_shortcut(cli, train, words):
    flag = words[0].partition("=")[0]
    refused(cli("train", *words), train, f"`{flag}` must be an option of `boldcast train`")


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1", "--seed", "2"],
        ["--seed=1", "--seed=1"],
        ["--run_dir", "a", "--run-dir=b"],
        ["--json", "--json"],
        ["--train.log-every", "1", "--train.log_every", "2"],
    ],
)
def test_11_a_flag_given_twice_is_refused(cli, train, words):
    refused(cli("train", *words), train, "must be given once, but is given again")


@pytest.mark.parametrize(
    "words", [["selftest", "upper"], ["selftest", "real"], ["selftest", "-", "real"]]
)
def test_12_results_are_not_chained(cli, selftest, words):
    refused(cli(*words), selftest, f"`{words[1]}` must")


@pytest.mark.parametrize(
    "words",
    [["data", "keys"], ["data", "get", "x"], ["run"], ["_argv"], ["data", "fetch", "__doc__"]],
)
def test_12_members_of_python_objects_are_no_commands(cli, selftest, words):
    refused(cli(*words), selftest)


@pytest.mark.parametrize("returns", [0, 3, 4, 7, 75])
def test_12_13_the_returned_number_is_the_exit_code_and_is_not_printed(cli, replace, returns):
    replace("boldcast.selftest", "run", returns)
    assert cli("selftest") == (returns, "", "")


def test_14_a_bug_gives_a_traceback_and_1(cli, replace):
    replace("boldcast.selftest", "run", ZeroDivisionError("planted"))
    code, out, err = cli("selftest")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: planted\n")


@pytest.mark.parametrize("text", ["0", "-1", "4:2", "1:", "1:2:3", "x", "1.0", "1e1", ""])
def test_14_a_bad_option_value_is_a_refusal_and_no_traceback(cli, train, text):
    refused(cli("train", f"--nproc={text}"), train, "`--nproc` must be an integer, at least 1")


def test_15_16_help_is_ours(cli, train):
    code, out, err = cli("train", "--train.steps", "5", "--help")
    assert (code, err) == (0, "")
    assert "FIRE_METADATA" not in out
    assert "NAME" not in out.splitlines()[0]
    assert train.calls == []


@pytest.mark.parametrize("flag", ["--interactive", "--trace", "--verbose", "--completion", "-i"])
def test_17_the_flags_of_fire_are_refused(cli, selftest, flag):
    refused(cli("selftest", "--", flag), selftest, "`--` must stand in no boldcast command line")


def test_17_the_help_flag_of_fire_prints_our_help(cli, selftest):
    code, out, _ = cli("selftest", "--", "--help")
    assert code == 0
    assert "Usage: boldcast selftest" in out
    assert selftest.calls == []


def test_18_no_command_prints_short_help_and_exits_2(cli):
    code, out, err = cli()
    assert (code, out) == (2, "")
    assert "Usage: boldcast COMMAND" in err


def test_18_a_group_without_its_command_exits_2(cli):
    code, out, err = cli("data")
    assert (code, out) == (2, "")
    assert "Usage: boldcast data COMMAND" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--run-dir", "x", "--train.micro-batch-size", "2"],
        ["--run_dir", "x", "--train.micro_batch_size", "2"],
        ["--run-dir=x", "--train.micro-batch-size=2"],
    ],
)
def test_19_dashes_and_underscores_are_one(cli, train, words):
    assert cli("train", *words)[0] == 0
    ((config,), called), *_ = train.calls
    assert config.train.micro_batch_size == 2
    assert called["run_dir"] == Path("x")


# ---- what fire is given


@pytest.mark.parametrize("command", specs.COMMANDS, ids=lambda c: " ".join(c.path))
def test_each_row_of_the_table_has_its_function_with_the_same_parameters(command):
    found = commands.Commands([])
    for word in command.path:
        found = getattr(found, word)
    parameters = inspect.signature(found).parameters
    names = {option.name for option in command.options}
    names |= {command.operand.name} if command.operand else set()
    names |= {"overrides"} if command.settings else set()
    assert set(parameters) == names
    wanted = {"overrides": inspect.Parameter.VAR_KEYWORD}
    if command.operand and command.operand.many:
        wanted[command.operand.name] = inspect.Parameter.VAR_POSITIONAL
    for name, parameter in parameters.items():
        assert parameter.kind == wanted.get(name, inspect.Parameter.KEYWORD_ONLY)


def test_fire_receives_only_words_that_carry_their_value():
    argv = ["train", str(TINY), "--seed", "3", "--dry-run", "--run_dir", "a b"]
    words = parse(argv).words()
    assert words == ["train", f"--config={TINY}", "--dry_run=true", "--run_dir=a b", "--seed=3"]


@pytest.mark.parametrize("name", ["-", "#", "a#b", "1e5", "--", "None", "a,b", "a=b"])
def test_files_reach_the_command_whatever_they_are_called(replace, cli, tmp_path, name):
    inspected = replace("boldcast.data.inspect", "inspect", [])
    assert cli("data", "inspect", str(tmp_path / name), "other")[0] == 0
    ((paths, *_), _), *_ = inspected.calls
    assert paths == [tmp_path / name, Path.cwd() / "other"]


def test_fire_alone_would_run_before_it_refuses():
    """The reason for all of this, kept as a test: if fire changes, so may the guard."""
    ran = []

    def train(steps=1):
        ran.append(steps)

    with pytest.raises(fire.core.FireExit):
        fire.Fire({"train": train}, command=["train", "--stepz", "5"], name="x")
    assert ran == [1]
