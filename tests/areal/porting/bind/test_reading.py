"""What config classes of transformers do with fields that are null or absent, found by running them."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind.accounting import SKIPPED
from areal.porting.bind.reading import filling_rules, learn
from areal.porting.bind.variations import MISSING, alternatives, changed
from areal.porting.family import Ceiling, Constant, Field, Product, WhenNull
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config

if TYPE_CHECKING:
    from areal.porting.bind.reading import ConfigReader

DEPTH = "num_hidden_layers"


OTHERS = ("falcon", "llama", "smollm3", "afmoe", "ministral")
RULES = [pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS]


@functools.cache
def learned(model_type: str) -> tuple[dict[str, Any], ConfigReader]:
    """A tiny config, and what was learned of its class."""
    subject = resolve(model_type)
    base = tiny_config(subject)
    return base, learn(subject, base, DEPTH, SKIPPED)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", ["qwen2", *RULES])
def test_completed_configs_are_what_the_class_makes_of_them(model_type: str) -> None:
    base, reader = learned(model_type)
    assert reader.rules
    for name in reader.rules:
        config = changed(base, {name: None})
        normal = reader.normal(config)
        assert normal is not None
        assert reader.complete(config)[name] == normal[name]
    for other in ({DEPTH: 6}, {"num_attention_heads": 8}, {"hidden_size": 128}):
        config = changed(base, {**dict.fromkeys(reader.rules), **other})
        normal = reader.normal(config)
        if normal is not None:
            completed = reader.complete(config)
            assert {name: completed[name] for name in reader.rules} == {name: normal[name] for name in reader.rules}


@pytest.mark.exhaustive
def test_a_list_over_layers_is_filled_by_the_fields_that_transformers_reads() -> None:
    base, reader = learned("qwen2")
    config: dict[str, Any] = changed(base, {"layer_types": None, "max_window_layers": 3, "use_sliding_window": True})
    assert reader.complete(config)["layer_types"] == ["full_attention"] * 3 + ["sliding_attention"]
    config = changed(config, {"use_sliding_window": False})
    assert reader.complete(config)["layer_types"] == ["full_attention"] * 4


@pytest.mark.exhaustive
def test_a_pattern_is_that_of_many_layers() -> None:
    subject = resolve("kimi_linear")
    base = tiny_config(subject)
    assert set(base["layer_types"]) == {"full_attention", "linear_attention"}, "few layers lose no kind"
    reader = learn(subject, base, DEPTH, SKIPPED)
    for depth in (4, 23):
        config = {**base, "layer_types": None, "mlp_layer_types": None, DEPTH: depth}
        kinds = reader.complete(config)["layer_types"]
        # Layers 4, 8, 12, but not 0: as every fifth layer for as long as there are only nine.
        assert [layer for layer, kind in enumerate(kinds) if kind == "full_attention"] == list(range(4, depth, 4))


@pytest.mark.exhaustive
def test_a_text_in_place_of_a_number_is_filled_as_the_class_does() -> None:
    base, reader = learned("bamba")
    assert reader.placeholders == {"mamba_d_head": "auto"}
    for config in (changed(base, {"mamba_d_head": "auto"}), changed(base, {"mamba_d_head": MISSING})):
        assert reader.complete(config)["mamba_d_head"] == base["mamba_d_head"]
        for other in ({"hidden_size": 128}, {"mamba_expand": 3}, {"mamba_n_heads": 8}, {"mamba_n_heads": 16}):
            varied = changed(config, other)
            normal = reader.normal(varied)
            assert normal is not None
            assert reader.complete(varied)["mamba_d_head"] == normal["mamba_d_head"]


def test_a_part_that_the_class_rounds_up_is_told_from_one_that_it_rounds_down() -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "state_size": 8, "vocab_size": 128, "time_step_rank": 12}
    reader = learn(resolve("mamba"), sizes, "num_hidden_layers", SKIPPED)
    assert reader.rules["time_step_rank"] == Ceiling("hidden_size", 16)
    assert "time_step_rank" not in reader.unfilled


def test_a_range_without_end_is_moved_and_closed() -> None:
    found = alternatives([0.0, float("inf")], "")
    assert found
    assert all(low < high for low, high in found)
    assert {low > 0.0 for low, _ in found} == {math.isinf(high) for _, high in found} == {True, False}


@pytest.mark.exhaustive
def test_a_list_of_layers_that_stands_for_null_is_one_value() -> None:
    subject = resolve("flint")
    reader = learn(subject, tiny_config(subject), DEPTH, SKIPPED)
    assert reader.rules["mlp_only_layers"] == Constant([0, 1])
    assert reader.per_layer == {"layer_types"}


@pytest.mark.exhaustive
def test_texts_that_the_source_compares_a_field_with_are_tried() -> None:
    subject = resolve("deepseek_v2")
    base = tiny_config(subject)
    written = learn(subject, base, DEPTH, SKIPPED).annotations["topk_method"]
    assert alternatives(base["topk_method"], written)[:1] == ["group_limited_greedy"]


@pytest.mark.exhaustive
def test_kinds_of_feed_forward_layers_are_tried_where_the_default_has_one() -> None:
    subject = resolve("mellum")
    base = tiny_config(subject)
    assert set(base["mlp_layer_types"]) == {"sparse"}
    written = learn(subject, base, DEPTH, SKIPPED).annotations["mlp_layer_types"]
    assert ["dense", "sparse", "sparse", "sparse"] in alternatives(base["mlp_layer_types"], written)


QUOTIENT = Product(1.0, (("hidden_size", 1.0), ("num_attention_heads", -1.0)), integer=True)


def test_slots_that_fill_a_null_in_different_ways_make_no_rule() -> None:
    agreed = {"a": WhenNull("size", QUOTIENT), "b": WhenNull("size", QUOTIENT)}
    assert filling_rules(agreed, {}) == {"size": QUOTIENT}
    assert filling_rules(agreed, {"size": QUOTIENT}) == {}
    assert filling_rules({**agreed, "c": WhenNull("size", Field("hidden_size"))}, {}) == {}
    assert filling_rules({"a": WhenNull("size", Constant(None))}, {}) == {}
