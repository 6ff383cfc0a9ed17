"""What names of config fields usually mean, as values for a tiny config. Hints only: building and running decide."""

from __future__ import annotations

import re
from typing import Any

from areal.models.config_fields import TRAINING_NOISE

# Sizes of different roles differ, and so do their usual products (4 heads x 24, 2 x 40), so that shapes tell fields.
VOCABULARY = 136
HIDDEN = 64
LAYERS = 4
WINDOW = 8
EPSILON = 2e-3
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-8, 1e-4
"""Positive numbers between these are what norms add to variances, whatever they are called. Smaller ones guard sums
against being zero: made visible, they would show in few tokens only."""

INTEGERS: tuple[tuple[str, int], ...] = (
    (r"(nextn_predict|mtp).*", 0),
    (r".*(type|language|audio|hash|ngram|per_layer|pronunciation|shape).*vocab.*", 16),
    (r"(.*_)?(vocab(ulary)?(_size)?(_per_layer_input)?|n_vocab|vocab_dim|(num|n)_tokens|token_count)", VOCABULARY),
    (r".*original_max_position.*", 16),
    (r".*(max_position|n_positions|n_ctx|max_seq|context_length|model_max_length|max_len|max_ctx).*", 64),
    (r".*rope.*head.*|.*rotary_head.*|rotary_dim|rotary_ndims|rope_dim|rotary_dims?", 8),
    (r".*nope.*(head|dim).*", 16),
    (r"(v|value)(_head)?_(dim|size|channels)", 20),
    (r"(qk|q|query|key)_head_dim", 24),
    (r"(q|query)_(lora|latent|compress\w*|down)?_?(rank|dim|size|lora)", 28),
    (r"(kv|key_value)_(lora|latent|compress\w*|down)?_?(rank|dim|size|lora)", 36),
    (r".*(lora_rank|low_?rank|_rank)", 12),
    (r".*(first|leading|initial|num|n).*dense.*(replace|layers?|blocks?|steps?)?|first_k_dense.*|dense_prefix.*", 1),
    (r".*moe_layer_(start|end|interval|freq).*|decoder_sparse_step|.*layer_offset|moe_layer_freq", -1),
    (r".*(shared|common|always).*(expert)?.*(intermediate|ffn|hidden|inner|mlp|dim|size|width).*", 56),
    (r".*(n|num|count)_?.*(shared|common|always).*|.*shared_experts?", 2),
    (
        r"(top_?k|topk|num|n)_?(limited_|selected_|active_|chosen_)?(expert_)?groups?(_topk|_top_k|_active|_per_tok)?",
        -2,
    ),
    (r".*(top_?k|active|chosen|selected).*groups?.*|.*groups?_(top_?k|active|chosen|selected|kept).*", 1),
    (r".*(expert|moe|routing|router).*groups?.*|n_groups?", 4),
    (r".*(experts?_per|top_?k|active_experts|experts_(active|used|chosen)|moe_k|num_selected|experts_top).*", 2),
    (r"(.*_)?(moe|experts?)_.*(intermediate|ffn|hidden|inner|mlp|dim|size|width).*", 40),
    (r".*(num|n|count|local|routed|total).*experts?.*|experts?(_(count|total|number|num))?", 8),
    (r".*dense_intermediate.*|intermediate_size_mlp", 88),
    (
        r".*(intermediate|ffn|n_inner|feed_?forward|dff|d_ff|dim_ff|mlp_(dim|size|hidden|width|inner)|inner_(dim|size)).*",
        112,
    ),
    (
        r".*(kv|key|key_value|value)_?(n_)?(heads?|groups?)|.*heads?_(kv|key|k|key_value)|num_query_groups|.*query_groups?",
        2,
    ),
    (r".*(head_?(dim|size|width)|dim_head|d_head|kv_channels|per_head).*", 24),
    (r".*heads?.*", 4),
    (r".*(max_window_layers)", 2),
    (r".*(every|interval|period|pattern|each).*", 2),
    (r".*(sliding|window|local_attention|attention_chunk|chunk_size|span|floor_scale).*", WINDOW),
    (r"(num_|n_|total_|decoder_)?(hidden_)?(layers?|blocks?|depth)(_count|_num)?", LAYERS),
    (r"(.*_)?(hidden_size|n_embd|d_model|emb_dim|embed_dim|embedding_(dim|size)|model_dim|width|dim)", HIDDEN),
    (r"word_embed_proj_dim", HIDDEN),
    (r"query_pre_attn_scalar", 20),
    (r".*conv.*(kernel|width|cache|states?).*", -1),
    (r".*(theta|seed|base|tp|bos|eos|pad|token_id|index|idx|iters|cutoff|id)(_\w+)?", -1),
)
"""Pattern of a whole name to a value; the first that fits counts. -1: leave as it is. -2: 4, or 2 with "top"."""

FLOATS: tuple[tuple[str, float], ...] = (
    (TRAINING_NOISE.pattern, 0.0),
    (r"att\w*_.*cap.*", 4.0),
    (r".*(final|logit|output|head).*(soft_?cap|cap).*", 6.0),
    (r".*soft_?cap.*", 4.0),
    (r".*(swiglu|glu|gate)_(limit|clamp).*", 1.0),
    (r".*(clip_qkv|qkv_clip|clamp_qkv).*", 1.5),
    (r".*(eps|epsilon)(_\w+)?", EPSILON),
    (r"embed\w*_(multiplier|scale|factor)|emb_scale", 6.0),
    (r"residual_(multiplier|scale|factor)", 0.4),
    (r"attention_(multiplier|scale)", 0.2),
    (r"logits?_(scaling|divisor)", 4.0),
    (r"logits?_(scale|multiplier)|lm_head_multiplier", 0.25),
    (r"(moe_)?(rout\w+)_.*(scal\w+|factor|multiplier)", 1.5),
)
"""As `INTEGERS`, for fields whose default is a float; a value of 0.0 that switches something off is left."""

LARGEST_THETA = 5e6
"""With a larger base, the slowest pairs of a head do not visibly turn within a short sequence."""

NEUTRAL_FACTOR = re.compile(r".*(multiplier|scal(e|ing|ar)|gain|strength|temperature)(_\w+)?")
"""Factors of 1.0 cannot be seen: they get another value."""

FLAGS: tuple[tuple[str, bool], ...] = (
    (r"use_sliding_window", True),
    (r"use_(qk|query_key)_norm|qk_layernorm|qk_norm", True),
    (r"mup_enabled", True),
    (r"use_cache|output_router_logits", False),
)
"""Switches of features that hide other fields while they are off."""

NULLABLE = re.compile(
    r".*(heads?|head_?dim|dim_head|kv_channels|n_inner|intermediate\w*|ffn\w*|experts?(_per\w*)?|top_?k\w*|n_group|group"
    r"|sliding_window|window_size)"
)
"""Sizes that a class computes when they are null, and windows that are off: they get a value of their own."""

TOKENS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}


def meaning(names: tuple[str, ...], default: Any) -> Any:
    """The hinted value of a field with these names (its own first, then aliases), or `default` where nothing is known.

    Only values of the default's own kind are hinted: a switch that is null or a list stays what it is.
    """
    for name in names:
        plain = name.lower().strip("_")
        if plain.endswith(("token_id", "token_index")):
            return None if default is None else TOKENS.get(plain, 3)
        found = _hint(plain, default)
        if found is not None:
            return found
    return default


def known(names: tuple[str, ...], default: Any) -> bool:
    """Whether the vocabulary says anything about the field, be it to leave it."""
    table: tuple[tuple[str, Any], ...] = FLOATS if isinstance(default, float) else INTEGERS
    return any(re.fullmatch(pattern, name.lower().strip("_")) for name in names for pattern, _ in table)


def hinted(name: str) -> int:
    """The whole number that a name asks for where its feature is on; 0 where the vocabulary says nothing or to leave
    it."""
    return max(0, _first(INTEGERS, name.lower().strip("_")) or 0)


def _hint(name: str, default: Any) -> Any:
    if isinstance(default, bool):
        return _first(FLAGS, name)
    if isinstance(default, int | float) and "theta" in name and default > LARGEST_THETA:
        return type(default)(LARGEST_THETA / 10)
    if isinstance(default, int):
        return _integer(name, default)
    if isinstance(default, float):
        value: float | None = _first(FLOATS, name)
        if value is None and default == 1.0 and NEUTRAL_FACTOR.fullmatch(name):
            return 1.5
        if value is None and SMALLEST_EPSILON <= default <= LARGEST_EPSILON:
            return EPSILON
        if value == EPSILON and default > 1e-2:
            return None
        return None if default == 0.0 and value else value
    return _integer(name, 1) if default is None and NULLABLE.fullmatch(name) else None


def _integer(name: str, default: int) -> int | None:
    value = _first(INTEGERS, name)
    if value == -2:
        value = 1 if "top" in name or "limited" in name or "active" in name else 4
    switched_off = default == 0 and value not in (0, None)
    return None if value in (-1, None) or switched_off else int(value)


def _first(table: tuple[tuple[str, Any], ...], name: str) -> Any:
    return next((value for pattern, value in table if re.fullmatch(pattern, name)), None)
