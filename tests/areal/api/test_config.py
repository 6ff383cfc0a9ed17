"""Generation settings and weight updates refuse what no engine can honour, and say what was expected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from areal.api import ConfigError, GenerationConfig, WeightUpdateMeta


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0, expected >= 1"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "expected 0 .. max_new_tokens \\(8\\)"),
        ({"temperature": 0.0}, "set greedy=true"),
        ({"temperature": -1.0}, "temperature is -1.0, expected > 0"),
        ({"top_p": 0.0}, "top_p is 0.0, expected > 0 and <= 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_k": -1}, "top_k is -1, expected >= 0 \\(0 is off\\)"),
        ({"stop_token_ids": (5, -1)}, "expected token ids from 0"),
        ({"stop_token_ids": (2**31,)}, "expected token ids from 0"),
    ],
)
def test_a_setting_no_sampler_can_honour_is_refused_with_the_fix(settings, message):
    with pytest.raises(ConfigError, match=message):
        GenerationConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_new_tokens": 1, "min_new_tokens": 1},
        {"temperature": 1e-3, "top_p": 1e-9, "top_k": 1},
        {"greedy": True, "stop": ("\n",), "stop_token_ids": (2,)},
    ],
)
def test_settings_at_the_edge_are_accepted(settings):
    config = GenerationConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_replacing_a_field_checks_again():
    with pytest.raises(ConfigError, match="max_new_tokens"):
        dataclasses.replace(GenerationConfig(), max_new_tokens=0)


def test_an_unknown_key_is_an_error_when_a_mapping_is_validated():
    with pytest.raises(ValidationError, match="temprature"):
        TypeAdapter(GenerationConfig).validate_python({"temprature": 0.7})


@pytest.mark.parametrize(
    ("kind", "carrier"),
    [
        ("disk", {}),
        ("disk", {"state_dict": {}}),
        ("disk", {"state_dict": {}, "path": Path("checkpoint")}),
        ("memory", {}),
        ("memory", {"path": Path("checkpoint")}),
        ("memory", {"state_dict": {}, "path": Path("checkpoint")}),
    ],
)
def test_a_weight_update_carries_exactly_what_its_kind_needs(kind, carrier):
    with pytest.raises(ValueError, match="needs exactly its own carrier"):
        WeightUpdateMeta(kind=kind, version=1, **carrier)


def test_weight_updates_with_their_own_carrier_are_accepted():
    assert WeightUpdateMeta(kind="disk", version=1, path=Path("checkpoint")).state_dict is None
    assert WeightUpdateMeta(kind="memory", version=2, state_dict={}).path is None
