"""Fields that a config class computes, and what is known of fields without effect."""

from __future__ import annotations

from typing import Any

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve


@pytest.fixture(scope="module")
def latent() -> dict[str, Any]:
    return as_json(analyse(resolve("deepseek_v3")))


@pytest.fixture(scope="module")
def uses(latent: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {use["name"]: use for use in latent["fields"]}


def test_what_the_class_computes_and_writes_out_is_accepted(uses: dict[str, dict[str, Any]]) -> None:
    assert uses["head_dim"]["default_rule"] == {"kind": "field", "name": "qk_rope_head_dim"}
    assert (uses["head_dim"]["status"], uses["head_dim"]["allowed"]) == ("fixed", [])
    assert uses["qk_head_dim"]["status"] == "ignored"


def test_a_field_without_effect_beside_every_switch_is_ignored(uses: dict[str, dict[str, Any]]) -> None:
    assert uses["num_key_value_heads"]["status"] == "ignored"


def test_sizes_of_latent_attention_are_fields(latent: dict[str, Any]) -> None:
    slots = latent["slots"]
    assert slots["layer.rotary.dim"] == {"kind": "field", "name": "qk_rope_head_dim"}
    assert slots["layer.attention.scale"]["kind"] == "rotary_scaled"
    assert slots["layer.attention.scale"]["base"]["kind"] == "power"
