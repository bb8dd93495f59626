import pytest

from boldcast.cli import run_folder
from boldcast.config.schema import Config
from boldcast.errors import UsageRefused


def test_what_refused_or_killed_starts_leave_is_taken_over_and_cleared(tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "errors").mkdir(parents=True)
    (run_dir / "errors" / "rank_0.txt").touch()
    for name in (".lock", "stop", "events.jsonl", "config.toml.part", "manifest.json.part"):
        (run_dir / name).touch()
    assert run_folder.state(run_dir, Config()) == "new"
    with run_folder.held(run_dir):
        pass
    assert not run_dir.exists()


def test_a_folder_with_a_configuration_is_not_cleared(tmp_path):
    with run_folder.held(tmp_path):
        run_folder.start(tmp_path, Config())
    assert run_folder.state(tmp_path, Config()) == "unfinished"


def test_an_unknown_part_named_file_is_somebody_elses(tmp_path):
    (tmp_path / "film.mkv.part").touch()
    with pytest.raises(UsageRefused, match="film.mkv.part"):
        run_folder.state(tmp_path, Config())


def test_a_folder_below_a_file_is_refused_in_words(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(UsageRefused, match="Not a directory")
    with refused, run_folder.held(tmp_path / "file" / "run"):
        pass
