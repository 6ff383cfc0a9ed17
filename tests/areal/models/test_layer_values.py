"""A config.json that says the values of single layers is read as one that says them for a kind of layers."""

from __future__ import annotations

import pytest

from areal.api import ModelError
from areal.models.config_fields import ConfigFields

KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
FIELDS = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
OPTIONAL = {"num_global_key_value_heads": "attention_k_eq_v"}
WRITTEN = {"head_dim": 24, "num_key_value_heads": 2, "attention_k_eq_v": True, "layer_types": KINDS}


def read(**changes):
    fields = ConfigFields({"model_type": "any", **WRITTEN, **changes})
    fields.values_of_kind("layer_types", "full_attention", FIELDS, optional=OPTIONAL)
    return fields.optional("global_head_dim"), fields.optional("num_global_key_value_heads")


@pytest.mark.parametrize(
    ("layered", "expected"),
    [
        ({"1": {"head_dim": 40}, "3": {"head_dim": 40}}, (40, None)),
        ({"01": {"head_dim": 40, "num_key_value_heads": 1}, "03": {"num_key_value_heads": 1, "head_dim": 40}}, (40, 1)),
        ({"1": {"num_key_value_heads": 1}, "3": {"num_key_value_heads": 1}}, (24, 1)),
        ({}, (24, None)),
        (None, (24, None)),
    ],
)
def test_what_layers_of_a_kind_have_is_what_the_field_says(layered, expected):
    assert read(per_layer_config=layered) == expected


def test_without_values_of_single_layers_fields_are_left_alone():
    assert read(global_head_dim=7) == (7, None)
    assert read() == (None, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_layer_config": {"1": {"head_dim": 40}}}, "the same head_dim for all layers of kind 'full_attention'"),
        ({"per_layer_config": {"0": {"head_dim": 40}}}, "for layers of kind 'full_attention' only"),
        ({"per_layer_config": {"1": {"skip": ["mlp"]}}}, "for layers of kind 'full_attention' only"),
        ({"per_layer_config": {"7": {"head_dim": 40}}}, "for layers of kind 'full_attention' only"),
        ({"per_layer_config": [1]}, "an object with an object"),
        ({"per_layer_config": {"one": {"head_dim": 40}}}, "an object with an object"),
        ({"per_layer_config": {}, "layer_types": None}, "the kinds of all layers"),
        ({"per_layer_config": {}, "head_dim": None}, "has no head_dim"),
        ({"per_layer_config": {}, "global_head_dim": 40}, "the same as in per_layer_config, which is 24"),
        (
            {
                "per_layer_config": {"1": {"num_key_value_heads": 1}, "3": {"num_key_value_heads": 1}},
                "attention_k_eq_v": False,
            },
            "no num_key_value_heads of single layers without attention_k_eq_v",
        ),
    ],
)
def test_what_the_fields_cannot_say_is_refused(changes, said):
    with pytest.raises(ModelError, match=said):
        read(**changes)
