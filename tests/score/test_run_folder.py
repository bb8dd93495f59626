import json

import pytest

from boldcast.errors import DataRefused, UsageRefused
from boldcast.score.report import write_report


def test_no_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageRefused, match="existing run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(UsageRefused, match="config.toml"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "= secret"),
        ("trace.jsonl", "secret\n"),
        ("history.json", '{"step": [1], "val_loss": ["secret"]}'),
        ("history.json", '{"step": [1, 2], "val_loss": [1.0]}'),
        ("evaluation.json", "secret"),
        ("evaluation.json", '{"format": "secret"}'),
        ("manifest.json", "[]"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_not_quoted(run_folder, tmp_path, name, content):
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(DataRefused, match=name) as caught:
        write_report(folder)
    assert "secret" not in str(caught.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.pop("scores"),
        lambda e: e["scores"].pop("model"),
        lambda e: e["region_r2"]["model"].pop(),
        lambda e: e["scan_mse"]["ar8"].pop(),
        lambda e: e["scores"]["model"][0].update(mse="<b>"),
        lambda e: e["excerpt"]["regions"][0]["observed"].pop(),
        lambda e: e.update(horizons=["<b>", 3]),
        lambda e: e.update(t_r="<b>"),
        lambda e: e.update(notes="<b>"),
    ],
)
def test_an_evaluation_of_another_shape_is_refused(run_folder, tmp_path, change):
    folder = run_folder(tmp_path / "run")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    change(evaluation)
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(DataRefused, match="evaluation.json"):
        write_report(folder)


def test_a_link_out_of_the_folder_is_not_followed(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    (tmp_path / "elsewhere").write_text('name = "stolen"')
    (folder / "config.toml").unlink()
    (folder / "config.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataRefused, match="link out"):
        write_report(folder)
