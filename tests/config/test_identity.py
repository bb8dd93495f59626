import dataclasses

import pytest

from boldcast.config.identity import differences, run_digest
from boldcast.config.schema import Config, ModelConfig, NumericsConfig, ParallelConfig


@pytest.mark.parametrize("level", ["exact", "deterministic", "fast"])
def test_how_ranks_work_together_is_no_part_of_a_run_at_any_level(level):
    config = Config(numerics=NumericsConfig(level=level))
    sharded = ParallelConfig(strategy="fsdp2", timeout_s=7.0)
    assert run_digest(dataclasses.replace(config, parallel=sharded)) == run_digest(config)


def test_the_level_and_the_model_are():
    digests = {
        run_digest(Config()),
        run_digest(Config(numerics=NumericsConfig(level="fast"))),
        run_digest(Config(model=ModelConfig(n_layer=1))),
    }
    assert len(digests) == 3


def test_what_makes_another_run_is_named_with_both_values():
    mine = Config(seed=1, model=ModelConfig(n_layer=3), parallel=ParallelConfig(timeout_s=7.0))
    assert differences(mine, Config()) == [
        "`seed` is 0 there, 1 here",
        "`model.n_layer` is 2 there, 3 here",
    ]
