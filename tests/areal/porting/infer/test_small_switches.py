"""Switches that few architectures have are found by what they do, in tiny models of the installed transformers."""

from __future__ import annotations

import pytest

from areal.porting.bind.observing import Observer
from areal.porting.infer.infer import infer
from areal.porting.probe.instance import build
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config
from areal.porting.spec import MoeSpec


def layers_of(model_type):
    """The layers of a tiny model, of which `infer` has shown that they give its logits."""
    subject = resolve(model_type)
    found = infer(build(subject, tiny_config(subject)))
    assert found.parity <= found.tolerance
    return found.spec, found.spec.layers


@pytest.mark.exhaustive
def test_bitnet_norms_what_its_last_matrices_read():
    _, layers = layers_of("bitnet")
    assert all(layer.attention.output_norm.kind == "rms" for layer in layers)
    assert all(layer.feed_forward.inner_norm.kind == "rms" for layer in layers)


@pytest.mark.exhaustive
def test_gemma4_unified_norms_values_and_scales_what_layers_give():
    _, layers = layers_of("gemma4_unified_text")
    assert all(layer.attention.value_norm.kind == "rms" and not layer.attention.value_norm.weight for layer in layers)
    assert all(layer.block == "sandwich" and layer.output_scale for layer in layers)


@pytest.mark.exhaustive
def test_gemma4_unified_has_heads_of_another_size_and_keys_as_values_in_its_full_layers():
    spec, layers = layers_of("gemma4_unified_text")
    attention = [layer.attention for layer in layers]
    assert [each.head_dim for each in attention] == [24, 40] * 2
    assert [each.num_kv_heads for each in attention] == [2, 1] * 2
    assert [each.keys_as_values for each in attention] == [False, True] * 2
    assert [each.shares_keys for each in attention] == [False, False, True, True]
    assert [spec.rotaries[layer.rotary].type for layer in layers] == ["default", "proportional"] * 2


@pytest.mark.exhaustive
def test_gemma4_unified_shares_keys_of_the_last_layers_of_each_kind():
    subject = resolve("gemma4_unified_text")
    kinds = ["sliding_attention", "full_attention"] * 3
    sharing = {"num_hidden_layers": 6, "layer_types": kinds, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    found = infer(build(subject, {**tiny_config(subject), **sharing}))
    assert found.parity <= found.tolerance
    layers = found.spec.layers
    assert [layer.attention.shares_keys for layer in layers] == [False] * 4 + [True] * 2
    assert [layer.feed_forward.intermediate_size for layer in layers] == [112] * 4 + [224] * 2
    assert not any(".4.self_attn.k_" in name or ".5.self_attn.v_" in name for name in found.weights)


@pytest.mark.exhaustive
def test_mimo_scales_values():
    _, layers = layers_of("mimo_v2_flash")
    assert {layer.attention.value_scale for layer in layers} == {0.707}
    assert {layer.attention.sinks for layer in layers} == {True, False}


@pytest.mark.exhaustive
def test_laguna_gates_by_softplus():
    _, layers = layers_of("laguna")
    assert {layer.attention.gate_function for layer in layers} == {"softplus"}


@pytest.mark.exhaustive
def test_llama4_weighs_inputs_of_experts_and_grows_queries_that_are_not_rotated():
    spec, layers = layers_of("llama4_text")
    mixtures = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, MoeSpec)]
    assert mixtures
    assert all(mixture.weigh_inputs and mixture.router.score == "sigmoid" for mixture in mixtures)
    grown = [table for table in spec.rotaries if not table.dim]
    assert [(table.query_growth, table.growth_length, table.growth_shift) for table in grown] == [(0.1, 8, 1)]


@pytest.mark.exhaustive
def test_beam_counts_its_sums_and_grows_queries_by_a_power():
    spec, layers = layers_of("beam")
    assert all(layer.block == "sandwich" and layer.counted_sums for layer in layers)
    grown = [table for table in spec.rotaries if not table.dim]
    assert [(each.query_growth, each.growth_length, each.growth_shift, each.growth_power) for each in grown] == [
        (0.1, 2048, 1, True)
    ]


@pytest.mark.exhaustive
def test_tables_that_only_let_queries_grow_refuse_no_config():
    subject = resolve("beam")
    assert Observer(subject, tiny_config(subject)).observe({"head_dim": 48}).kind == "proven"


@pytest.mark.exhaustive
def test_phimoe_routes_by_a_sparse_mixer():
    _, layers = layers_of("phimoe")
    assert {layer.feed_forward.router.score for layer in layers} == {"sparse_mixer"}


@pytest.mark.exhaustive
def test_axk1_norms_the_sum_of_experts():
    _, layers = layers_of("axk1")
    normed = ["post_feedforward_layernorm" in layer.norms for layer in layers]
    assert normed == [isinstance(layer.feed_forward, MoeSpec) for layer in layers]
    assert True in normed


@pytest.mark.exhaustive
def test_gpt_neox_japanese_has_a_bias_in_its_last_layer_only():
    _, layers = layers_of("gpt_neox_japanese")
    assert [layer.attention.output_bias for layer in layers] == [False] * (len(layers) - 1) + [True]
