import json
import re

import pytest

from boldcast.score.run_folder import read_run
from boldcast.score.verdict import judge, number


@pytest.mark.parametrize(
    ("decrease", "ratio", "tone", "words"),
    [
        (0.3, 0.85, "good", "both bars are passed"),
        (0.6, 0.85, "bad", "a bar it had to reach is missed"),
        (0.6, 0.5, "bad", "both bars it had to reach are missed"),
        (0.0, 0.85, "good", "the bar that was set is passed"),
        (0.0, 0.0, "open", "no bar was set"),
    ],
)
def test_the_verdict_follows_the_bars(run_folder, tmp_path, decrease, ratio, tone, words):
    verdict = judge(read_run(run_folder(tmp_path / "run", decrease=decrease, ratio=ratio)))
    assert verdict.tone == tone
    assert words in verdict.headline


def test_the_verdict_spells_out_the_arithmetic(run_folder, tmp_path):
    verdict = judge(read_run(run_folder(tmp_path / "run", decrease=0.6, ratio=0.5)))
    # Means 1.0 and 0.5: a fall of 50 %, limit 0.4. Best trivial 0.8: 0.5 / 0.8 = 0.62, limit 0.4.
    assert "fell by 50.0%, from 1.000 to 0.500" in verdict.gates[0].measured
    assert verdict.gates[0].why == "It misses the limit 0.4000 by 0.1000."
    assert "persistence: 0.500 against 0.800" in verdict.gates[1].measured
    assert verdict.gates[1].why == "It misses the limit 0.4000 by 0.1000."


def test_the_comparison_with_linear_forecasts_is_what_the_scores_say(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    scores = json.loads((folder / "evaluation.json").read_text())["scores"]
    sentence = " ".join(judge(read_run(folder)).sentences)
    # The planted "model" is noise: half of it errs less, twice of it more.
    assert scores["var2"][0]["mse"] < scores["model"][0]["mse"] < scores["ar8"][0]["mse"]
    assert re.search(r"(?<!not )lower than that of AR\(8\) per region .*2 of 2", sentence)
    assert re.search(r"not lower than that of VAR\(2\) .*0 of 2", sentence)


def test_a_run_that_went_past_its_best_says_when_that_was(run_folder, tmp_path):
    folder = run_folder(tmp_path / "run")
    history = json.loads((folder / "history.json").read_text())
    assert "lowest" not in " ".join(judge(read_run(folder)).sentences)
    history["val_loss"] = [1.0, 0.6, 0.4, 0.5, 0.5, 0.5]
    (folder / "history.json").write_text(json.dumps(history))
    assert "was lowest, 0.400, after 4." in " ".join(judge(read_run(folder)).sentences)


def test_numbers_are_written_for_people():
    assert number(-0.5) == "\N{MINUS SIGN}0.500"
    assert number(-1e-9) == "0.000"
    assert number(0.25, 1, signed=True) == "+0.2"
    assert number(None) == "\N{EN DASH}"
