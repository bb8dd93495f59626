import pytest

from boldcast.errors import AcceptanceMissed
from boldcast.score.gates import beats_trivial, heldout_decreased_by


def test_a_fall_of_exactly_the_fraction_passes():
    assert heldout_decreased_by({"val_loss": [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]}, frac=0.5) is True


def test_means_of_three_are_compared_not_single_values():
    # Ends: 2.0 -> 0.9 would be a fall of 55 %. Means: (2 + .5 + .5)/3 = 1, (.9 * 3)/3 = .9.
    with pytest.raises(AssertionError, match=r"0\.9 against 1 .*ratio 0\.9000.*0\.7 by 0\.2"):
        heldout_decreased_by({"val_loss": [2.0, 0.5, 0.5, 0.9, 0.9, 0.9]})


def test_a_miss_exits_with_code_4():
    with pytest.raises(AcceptanceMissed) as caught:
        heldout_decreased_by({"val_loss": [1.0, 1.0, 1.0, 0.9, 0.9, 0.9]})
    assert caught.value.exit_code == 4


def test_too_few_measurements_are_refused_with_their_number():
    with pytest.raises(AssertionError, match="measured 2 times"):
        heldout_decreased_by({"val_loss": [1.0, 0.1]})
    with pytest.raises(AssertionError, match="measured 0 times"):
        heldout_decreased_by({})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_measurement_that_is_not_finite_is_refused_wherever_it_stands(bad):
    with pytest.raises(AssertionError, match="validation 4 of 7"):
        heldout_decreased_by({"val_loss": [1.0, 1.0, 1.0, bad, 0.1, 0.1, 0.1]})


@pytest.mark.parametrize("frac", [-0.1, 1.1, float("nan")])
def test_a_fraction_outside_its_range_is_a_programming_error(frac):
    with pytest.raises(ValueError, match="frac"):
        heldout_decreased_by({"val_loss": [1.0] * 6}, frac=frac)


def test_the_best_trivial_forecast_is_the_one_to_beat():
    baselines = {"zero": 1.0, "persistence": 0.5, "window_mean": 0.75}
    assert beats_trivial(0.25, baselines, ratio=0.5) is True
    with pytest.raises(AssertionError, match=r"0\.375 against 0\.5 of persistence \(0\.7500 times"):
        beats_trivial(0.375, baselines, ratio=0.5)
    with pytest.raises(AssertionError, match=r"limit 0\.25 by 0\.125"):
        beats_trivial(0.375, baselines, ratio=0.5)


def test_numbers_that_are_not_finite_never_pass():
    with pytest.raises(AssertionError, match="of the model"):
        beats_trivial(float("nan"), {"zero": 1.0})
    with pytest.raises(AssertionError, match="of zero"):
        beats_trivial(0.1, {"zero": float("nan"), "persistence": 1.0})


def test_misuse_is_a_programming_error():
    with pytest.raises(ValueError, match="empty"):
        beats_trivial(0.1, {})
    with pytest.raises(ValueError, match="ratio"):
        beats_trivial(0.1, {"zero": 1.0}, ratio=float("nan"))
