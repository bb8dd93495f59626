"""A resolved configuration is written so that it reads back, and has one digest."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from boldcast.config.docs import field_docs
from boldcast.config.resolve import as_dict, digest, resolve, to_toml
from boldcast.config.schema import Config
from boldcast.files import canonical_json, sha256_bytes

SOME_OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z"),
        "seed": st.integers(0, 2**53 - 1).map(str),
        "optim.lr": st.floats(min_value=1e-300, max_value=1e300).map(repr),
        "optim.eps": st.floats(min_value=1e-30, max_value=1e3).map(repr),
        "optim.weight_decay": st.floats(min_value=0, max_value=1e30).map(repr),
        "model.dropout": st.floats(min_value=0, max_value=0.9).map(repr),
        "data.t_r": st.floats(min_value=0.1, max_value=10).map(repr) | st.just("none"),
        "data.horizons": st.sets(st.integers(1, 500), min_size=1, max_size=5).map(
            lambda found: ",".join(str(n) for n in sorted(found))
        ),
        "data.held_out": st.lists(
            st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
            .filter(lambda s: "," not in s and s[0] not in "[\"'" and s[-1] not in "]\"'")
            .filter(str.isprintable),
            unique=True,
            max_size=4,
        ).map(",".join),
        "log.wandb": st.sampled_from(["true", "false"]),
        "model.layout": st.sampled_from(["frame", "region"]),
        "train.steps": st.integers(101, 2**53 - 1).map(str),
    },
)


@settings(deadline=None)
@given(SOME_OVERRIDES)
def test_resolved_toml_reads_back_to_the_same_configuration(tmp_path_factory, overrides):
    config = resolve(None, overrides)
    path = tmp_path_factory.mktemp("round") / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    again = resolve(path, {})
    assert again == config
    assert digest(again) == digest(config)


def test_resolved_toml_holds_every_setting_under_its_sentence():
    text = to_toml(Config())
    joined = " ".join(line.removeprefix("# ") for line in text.splitlines())
    for setting in field_docs():
        assert f"\n{setting.leaf} = " in text or f"# {setting.leaf} is unset." in text
        assert setting.doc in joined


def test_backslashes_and_quotes_survive_the_round_trip(tmp_path):
    config = resolve(None, {"data.held_out": 'a\\b,c"d\\'})
    path = tmp_path / "c.toml"
    path.write_text(to_toml(config))
    assert resolve(path, {}).data.held_out == ("a\\b", 'c"d\\')


def test_the_digest_is_that_of_canonical_json_with_floats_in_hexadecimal():
    def hexed(value):
        if isinstance(value, dict):
            return {key: hexed(item) for key, item in value.items()}
        return value.hex() if isinstance(value, float) else value

    config = resolve(None, {"data.held_out": 'ä,"b\\', "optim.lr": "0.1"})
    assert digest(config) == sha256_bytes(canonical_json(hexed(as_dict(config))))


def test_the_digest_sees_the_last_bit_of_a_float():
    one = resolve(None, {"optim.lr": "0.001"})
    other = resolve(None, {"optim.lr": "0.0010000000000000002"})
    assert digest(one) != digest(other)


def test_a_dictionary_of_the_configuration_is_plain_json():
    assert json.loads(json.dumps(as_dict(Config()))) == as_dict(Config())
