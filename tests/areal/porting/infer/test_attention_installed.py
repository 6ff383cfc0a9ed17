"""Attention layers of transformers: every feature is found, and findings reproduce their layers (or would raise)."""

from __future__ import annotations

from typing import Any

import pytest

from areal.porting.records import UnsupportedError
from areal.porting.spec import LatentAttentionSpec
from tests.areal.porting.infer.attention_hosts import infer_installed

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LATENT = {
    **SMALL,
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def old(**fields: Any) -> dict[str, Any]:
    return {"vocab_size": 64, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, **fields}


def thorough(*rows: tuple[Any, ...]) -> list[Any]:
    """Rows of which another has most in the default run."""
    return [pytest.param(*row, marks=pytest.mark.exhaustive) for row in rows]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {**SMALL, "head_dim": 8}, {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scale": 8**-0.5}),
        ("qwen2", SMALL, {"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": False}),
        ("hunyuan_v1_dense", {**SMALL, "head_dim": 8}, {"norm_scope": "head", "norm_after_rotary": True}),
        ("olmo2", SMALL, {"norm_scope": "full"}),
        ("stablelm", {**SMALL, "qk_layernorm": True}, {"norm_scope": "each_head"}),
        ("gemma2", {**SMALL, "head_dim": 8, "attn_logit_softcapping": 4.0}, {"softcap": 4.0}),
        ("granite_swa", SMALL, {"sinks": True}),
        ("gpt_bigcode", old(multi_query=True), {"num_kv_heads": 1}),
        (
            "bloom",
            {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
            {"alibi": True, "alibi_scale": 1.0},
        ),
        *thorough(
            ("llama", {**SMALL, "num_key_value_heads": 1, "head_dim": 6}, {"num_kv_heads": 1, "head_dim": 6}),
            ("qwen3", {**SMALL, "head_dim": 8}, {"norm_scope": "head", "norm_after_rotary": False}),
            ("cohere", {**SMALL, "use_qk_norm": True}, {"norm_scope": "each_head"}),
            ("olmo", {**SMALL, "clip_qkv": 0.5}, {"clip": 0.5}),
            ("granite", {**SMALL, "attention_multiplier": 0.3}, {"scale": 0.3}),
            ("gpt_oss", {**SMALL, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, {"sinks": True}),
            ("afmoe", {**SMALL, "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1}, {"gate": "elementwise"}),
            ("gpt2", old(), {"num_kv_heads": 4, "query_bias": True, "output_bias": True}),
            ("gpt_neox", SMALL, {"num_kv_heads": 4, "query_bias": True}),
            ("falcon", {**SMALL, "num_kv_heads": 2, "new_decoder_architecture": True}, {"num_kv_heads": 2}),
        ),
    ],
)
def test_features_of_a_layer_are_found(model_type: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    attention = infer_installed(model_type, **fields).spec.attention

    assert {name: getattr(attention, name) for name in expected} == pytest.approx(expected)


def test_alibi_is_that_of_fused_attention_where_the_eager_one_differs() -> None:
    # transformers adds Falcon's biases twice in eager attention, and once in the fused one, which people run.
    attention = infer_installed("falcon", **SMALL, alibi=True).spec.attention

    assert attention.alibi
    assert attention.alibi_scale == pytest.approx(attention.scale)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("glm4", {"head_dim": 8}, {"interleaved": True, "dim": 4}),
        (
            "llama",
            {"rope_parameters": {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
            {"type": "llama3"},
        ),
        *thorough(
            (
                "qwen2",
                {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 8, "beta_slow": 2}},
                {"type": "yarn"},
            ),
            ("llama", {"head_dim": 8}, {"type": "default", "dim": 8, "theta": 10000.0, "interleaved": False}),
            ("cohere", {}, {"interleaved": True, "dim": 8}),
            ("stablelm", {"partial_rotary_factor": 0.5}, {"dim": 4, "interleaved": False}),
            (
                "llama",
                {"rope_parameters": {**YARN, "rope_type": "linear"}},
                {"type": "linear", "parameters": {"factor": 4.0}},
            ),
        ),
    ],
)
def test_rotations_are_explained(model_type: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    rotary = infer_installed(model_type, **{**SMALL, **fields}).spec.rotary

    assert rotary is not None
    assert {name: getattr(rotary, name) for name in expected} == expected


def test_longrope_is_proven_for_short_and_for_long_documents() -> None:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.1, 2.2, 2.3]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, **factors}

    inferred = infer_installed("phi3", **SMALL, original_max_position_embeddings=32, rope_parameters=rope)

    assert inferred.spec.rotary.type == "longrope"
    parity = next(each.detail for each in inferred.evidence if each.source == "parity")
    assert "for 40 tokens" in parity
    assert "for 32 tokens" in parity


@pytest.mark.sample(1)
@pytest.mark.parametrize(("layer", "window", "rotated"), [(0, 8, True), (1, None, False)])
def test_windows_and_rotation_are_those_of_the_layer(layer: int, window: int | None, rotated: bool) -> None:
    kinds = ["sliding_attention", "full_attention"]

    finding = infer_installed("exaone4", layer, **SMALL, sliding_window=8, layer_types=kinds).spec

    assert finding.window == window
    assert (finding.rotary is not None) == rotated


@pytest.mark.exhaustive
def test_chunks_are_found() -> None:
    finding = infer_installed(
        "llama4_text", **SMALL, intermediate_size_mlp=48, head_dim=8, attention_chunk_size=16, num_local_experts=2
    ).spec

    assert (finding.window, finding.chunk) == (None, 16)
    assert finding.attention.norm_after_rotary


SHARPENED = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 8, "beta_slow": 2}


@pytest.mark.parametrize(
    ("query_rank", "rope"), [(10, SHARPENED), *thorough((None, None), (10, None), (None, SHARPENED))]
)
def test_latent_attention_is_found(query_rank: int | None, rope: dict[str, Any] | None) -> None:
    fields = {**LATENT, "q_lora_rank": query_rank} | ({} if rope is None else {"rope_parameters": rope})

    finding = infer_installed("deepseek_v3", **fields).spec

    attention = finding.attention
    assert isinstance(attention, LatentAttentionSpec)
    assert (attention.query_rank, attention.kv_rank) == (query_rank, 12)
    assert (attention.nope_dim, attention.rope_dim, attention.value_dim) == (8, 4, 6)
    assert attention.kv_norm.eps == 1e-6, "the class hard-codes it"
    assert finding.rotary.interleaved
    if rope is not None:
        assert attention.scale > 12**-0.5, "scores are scaled by the square of YaRN's factor"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("layer", "rotated"), [(3, True), *thorough((1, False))], ids=["ling", "kimi"])
def test_latent_attention_beside_delta_rules_may_be_gated_by_head_or_know_no_positions(layer, rotated) -> None:
    names = {"n_routed_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token"}
    names |= {"n_group": "num_expert_group"}
    fields = {names.get(name, name): value for name, value in LATENT.items()} | {"num_hidden_layers": 4}
    kinds = ["full_attention" if number == layer else "linear_attention" for number in range(4)]

    finding = infer_installed("bailing_hybrid" if rotated else "kimi_linear", layer, **fields, layer_types=kinds).spec

    assert isinstance(finding.attention, LatentAttentionSpec)
    assert finding.attention.gate == ("headwise" if rotated else "none")
    assert (finding.rotary is not None) == rotated
    assert finding.attention.rope_dim == 4


def test_queries_that_grow_with_the_position_are_found() -> None:
    rope = {**YARN, "original_max_position_embeddings": 9, "llama_4_scaling_beta": 0.3}

    rotary = infer_installed("ministral3", **SMALL, head_dim=8, rope_parameters=rope).spec.rotary

    assert (rotary.query_growth, rotary.growth_length) == (0.3, 9)


@pytest.mark.parametrize(
    ("model_type", "fields", "feature"),
    [
        ("llama", {"rope_parameters": {**YARN, "rope_type": "dynamic"}}, "change with the length"),
    ],
)
def test_what_no_spec_says_is_refused(model_type: str, fields: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature):
        infer_installed(model_type, **{**SMALL, **fields})
