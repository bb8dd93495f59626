"""A configuration file becomes typed settings, or one refusal that lists everything."""

import pytest

from boldcast.config.read import preset
from boldcast.config.resolve import as_dict, resolve
from boldcast.config.schema import Config
from boldcast.errors import UsageRefused


def refusal(path, overrides=None):
    with pytest.raises(UsageRefused) as caught:
        resolve(path, overrides or {})
    return caught.value.problems


def test_an_empty_file_is_all_defaults(toml):
    assert resolve(toml(""), {}) == Config()


def test_values_of_the_file_replace_defaults_and_overrides_replace_the_file(toml):
    path = toml('name = "a"\n[train]\nsteps = 140\nlog_every = 3\n')
    config = resolve(path, {"train.steps": "150", "seed": "7"})
    assert (config.name, config.seed) == ("a", 7)
    assert (config.train.steps, config.train.log_every) == (150, 3)


def test_dotted_keys_are_sections_too(toml):
    assert resolve(toml("train.steps = 141"), {}).train.steps == 141


@pytest.mark.parametrize("name", ["example", "tiny", "hcp7t_h200x2"])
def test_what_comes_with_boldcast_is_valid(name):
    assert resolve(preset(name), {}).name == name.partition("_")[0]


def test_without_a_file_the_example_is_taken():
    assert resolve(None, {}) == resolve(preset("example"), {})


def test_a_preset_that_does_not_exist_is_refused():
    with pytest.raises(UsageRefused, match="nosuch.toml"):
        preset("nosuch")


def test_original_sizes_are_kept_in_the_hcp_7t_configuration():
    config = resolve(preset("hcp7t_h200x2"), {})
    assert (config.data.context_length, config.data.stride, config.data.horizons) == (
        256,
        128,
        (1, 5),
    )
    assert (config.model.layout, config.model.d_model, config.model.n_layer) == ("region", 128, 4)
    optim = config.optim
    assert (optim.lr, optim.beta1, optim.beta2, optim.weight_decay) == (3e-4, 0.9, 0.95, 0.05)
    assert (optim.warmup_steps, optim.clip_norm, config.train.steps) == (100, 1.0, 3000)
    assert (config.train.micro_batch_size, config.train.global_batch_size) == (4, 2 * 4)
    assert config.train.dtype == "bfloat16"


# One wrong value each: setting, TOML text of the value, words the refusal must hold.
WRONG_IN_TOML = [
    ("train.steps", "true", "integer, at least 1"),
    ("train.steps", "3.0", "Write 3, without a point"),
    ("train.steps", "3.5", "but is 3.5"),
    ("train.steps", '"3"', "Take the quotation marks away"),
    ("train.steps", "0", "but is 0 "),
    ("train.steps", "99999999999999999999", "at most 9007199254740991"),
    ("train.steps", "[1]", "but is [1]"),
    ("train.steps", "{a = 1}", "but is a table"),
    ("train.steps", "1979-05-27", "but is 1979-05-27"),
    ("optim.lr", "nan", "finite"),
    ("optim.lr", "inf", "finite"),
    ("optim.lr", "0", "greater than 0"),
    ("optim.lr", "false", "but is false"),
    ("optim.lr", "'x'", 'but is "x"'),
    ("model.dropout", "0.91", "from 0 to 0.9"),
    ("data.t_r", "720", "If these are milliseconds, write 0.72"),
    ("data.t_r", "0.05", "but is 0.05 s"),
    ("log.wandb", "1", "true or false"),
    ("log.wandb", '"true"', "Take the quotation marks away"),
    ("model.layout", '"regions"', "Did you mean `region`?"),
    ("model.layout", "1", "one of `frame`, `region`"),
    ("name", "5", 'Put it in quotation marks: "5"'),
    ("name", '"a\\u0000b"', "control characters"),
    ("data.horizons", "1", "Write [1]."),
    ("data.horizons", "[2, 1]", "Write [1, 2]."),
    ("data.horizons", "[1, 1]", "Write [1]."),
    ("data.horizons", "[]", "at least 1 element"),
    ("data.horizons", "[0]", "each at least 1"),
    ("data.horizons", "[1, true]", "list of integers"),
    ("data.held_out", "[101309]", 'Put it in quotation marks: "101309"'),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG_IN_TOML)
def test_a_wrong_value_in_the_file_is_refused_by_name_rule_value_and_remedy(
    toml, name, value, words
):
    (problem,) = refusal(toml(f"{name} = {value}\n"))
    assert problem.startswith(f"`{name}` must be ")
    assert words in problem
    assert "run.toml" in problem


WRONG_AS_OVERRIDE = [
    ("train.steps", "5.0", "Write 5."),
    ("train.steps", "1_000", "Write 1000."),
    ("train.steps", "0x10", "decimal digits"),
    ("train.steps", "007", "Write 7."),
    ("train.steps", "", 'but is ""'),
    ("train.steps", " 5", 'but is " 5"'),
    ("train.steps", "True", "integer"),
    ("train.steps", "٣", "integer"),
    ("train.steps", "-1", "but is -1"),
    ("train.steps", "1e9999", "decimal digits"),
    ("train.steps", "9" * 39, "at most 9007199254740991"),
    ("train.steps", "none", "integer"),
    ("optim.lr", "abc", 'but is "abc"'),
    ("optim.lr", "nan", "finite"),
    ("optim.lr", "1e400", "finite"),
    ("optim.lr", "1,5", "finite decimal"),
    ("log.wandb", "yes", "Write true or false"),
    ("log.wandb", "False", "Write true or false"),
    ("log.wandb", "1", "Write true or false"),
    ("data.horizons", "1,,2", "list of integers"),
    ("data.horizons", "1.0,2", "Write 1."),
    ("data.horizons", "", "at least 1 element"),
    ("model.skip", "train", "Did you mean `trained`?"),
    ("data.held_out", "a,\udcff", "valid Unicode"),
]


@pytest.mark.parametrize(("name", "text", "words"), WRONG_AS_OVERRIDE)
def test_a_wrong_override_is_refused_and_names_its_flag(toml, name, text, words):
    (problem,) = refusal(toml(""), {name: text})
    assert problem.startswith(f"`{name}` must be ")
    assert words in problem
    assert f"`--{name}`" in problem


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("optim.lr", "1e-3", 0.001),
        ("optim.lr", "2", 2.0),
        ("optim.lr", ".5", 0.5),
        ("train.steps", "+150", 150),
        ("log.wandb", "true", True),
        ("data.horizons", "1,2", (1, 2)),
        ("data.horizons", "[1, 2]", (1, 2)),
        ("data.horizons", "3", (3,)),
        ("data.held_out", "100307,1e5", ("100307", "1e5")),
        ("data.held_out", "['a b', \"c\"]", ("a b", "c")),
        ("data.held_out", "[]", ()),
        ("data.t_r", "none", None),
        ("data.t_r", "2", 2.0),
        ("name", "none", "none"),
        ("name", "1e5", "1e5"),
    ],
)
def test_an_override_is_read_as_the_type_of_its_setting(toml, name, text, value):
    section, _, leaf = name.rpartition(".")
    found = as_dict(resolve(toml(""), {name: text}))
    found = found[section][leaf] if section else found[leaf]
    assert found == (list(value) if isinstance(value, tuple) else value)
    assert type(found) is (list if isinstance(value, tuple) else type(value))


def test_an_integer_is_taken_for_a_number_and_becomes_one(toml):
    lr = resolve(toml("optim.lr = 1"), {}).optim.lr
    assert (lr, type(lr)) == (1.0, float)


@pytest.mark.parametrize(
    ("text", "unknown", "near"),
    [
        ("steps = 5", "steps", "`train.steps`"),
        ("[train]\nstepz = 5", "train.stepz", "`train.steps`"),
        ("[model]\nsteps = 5", "model.steps", "`train.steps`"),
        ("[model]\nn_layers = 5", "model.n_layers", "`model.n_layer`"),
        ("[trian]\nsteps = 5", "trian", "`train`"),
        ("[train.steps2]\nx = 1", "train.steps2", "Sections are"),
        ("[[trains]]\nx = 1", "trains", "Did you mean `train`"),
        ("[train]\nbatch_size = 4", "train.batch_size", "`train.global_batch_size`"),
        ("[log]\nqqqq = 4", "log.qqqq", "`log` has tensorboard, wandb,"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_valid_one(toml, text, unknown, near):
    (problem,) = refusal(toml(text))
    assert problem.startswith(f"`{unknown}` must be a ")
    assert near in problem


def test_a_section_given_a_value_is_refused(toml):
    (problem,) = refusal(toml("train = 5"))
    assert problem.startswith("`train` must be a section, but is 5.")


def test_all_problems_of_file_overrides_and_combinations_come_together(toml):
    path = toml(
        'stepz = 1\n[train]\nsteps = "x"\ndtype = "bfloat16"\ndevice = "cpu"\n'
        "[model]\nheaddim = 48\n"
    )
    found = refusal(path, {"optim.lr": "0", "nosuch.thing": "1"})
    assert [problem.split("`")[1] for problem in found] == [
        "stepz",
        "train.steps",
        "optim.lr",
        "nosuch.thing",
        "model.headdim",
        "train.dtype",
    ]


def test_a_rule_between_settings_is_not_judged_by_a_value_already_refused(toml):
    found = refusal(toml("[model]\nheaddim = 0.5\nd_model = 7\n"))
    assert len(found) == 1
