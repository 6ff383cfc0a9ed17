"""Which configs a generated test runs again."""

import pytest

from areal.porting.bind.analyse import analyse
from areal.porting.bind.reporting import STEADY
from areal.porting.probe.subject import installed

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.002,
}


@pytest.mark.exhaustive
def test_configs_in_which_rounding_comes_near_the_tolerance_are_left_out() -> None:
    # With these sizes, one of many changes has hidden states of eight numbers: rounding takes nine tenths there.
    report = analyse(installed("olmo2"), tiny=TINY)
    assert report.status == "proven"
    assert sum(variant["name"].startswith("many changes") for variant in report.variants) == 2
    assert all(variant["parity"] <= STEADY * variant["tolerance"] for variant in report.variants)
