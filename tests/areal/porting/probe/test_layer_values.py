"""Fields that say what one kind of layers has are found by giving a config class other values of them."""

from __future__ import annotations

import pytest

from areal.porting.probe.instance import read
from areal.porting.probe.layer_values import LAYERED, LayerValue, folded, layer_values
from areal.porting.probe.subject import resolve

pytest.importorskip("transformers.models.gemma4_unified")

KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
WIDTH = LayerValue("global_head_dim", "head_dim", "layer_types", "full_attention", flag="", default=512)
HEADS = LayerValue(
    "num_global_key_value_heads", "num_key_value_heads", "layer_types", "full_attention", "attention_k_eq_v", None
)


def test_fields_are_found_with_what_they_stand_for():
    assert layer_values(resolve("gemma4_unified_text")) == (WIDTH, HEADS)
    assert layer_values(resolve("llama")) == ()


@pytest.mark.parametrize("said", [{"global_head_dim": 40, "num_global_key_value_heads": 1}, {"global_head_dim": 24}])
def test_what_a_class_makes_of_the_fields_is_read_as_the_fields(said):
    given = {"head_dim": 24, "num_hidden_layers": 4, "layer_types": KINDS, "attention_k_eq_v": True, **said}
    written = read(resolve("gemma4_unified_text"), given).to_dict()
    found = folded(written, (WIDTH, HEADS))
    assert LAYERED in written
    assert LAYERED not in found
    expected = {"global_head_dim": 24, "num_global_key_value_heads": None, **said}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("layered", [{"1": {"head_dim": 3}}, {"0": {"head_dim": 3}}, {"1": {"width": 3}}])
def test_what_the_fields_cannot_say_stays(layered):
    config = {"head_dim": 24, "layer_types": KINDS, LAYERED: layered}
    assert folded(config, (WIDTH, HEADS)) == config
