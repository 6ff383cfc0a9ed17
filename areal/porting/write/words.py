"""Says in words what a generated family, its fields and the properties of its arguments are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import walk
from areal.porting.family import Constant, Field, PerLayer, WhenEqual, WhenNull
from areal.porting.spec import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.family import Expression


FIELD_DOCUMENTATION: Final = {
    "attention_bias": "Whether query, key, value and output projections have biases.",
    "attention_in_multiplier": "Factor on what the attention reads.",
    "attention_multiplier": "Factor on query-key products.",
    "attention_out_multiplier": "Factor on what the attention gives.",
    "attn_logit_softcapping": "Bound of the attention scores, before the softmax.",
    "block_auto_adjust_ff_dim": "Whether the width of the feed-forward layers is two thirds of what is said, rounded.",
    "block_ffn_dim_multiplier": "Factor on the width of the feed-forward layers, before it is rounded.",
    "block_size": "Tokens in the tables that lightning attention stores.",
    "block_multiple_of": "What the width of the feed-forward layers is rounded up to a multiple of.",
    "conv_bias": "Whether the convolution and the projections around it have biases.",
    "conv_l_cache": "Tokens that a convolution sees, its own included.",
    "decoder_sparse_step": "Every so many layers, one has experts.",
    "embedding_multiplier": "Factor on the token embeddings.",
    "final_logit_softcapping": "Bound of the logits.",
    "first_k_dense_replace": "Number of the first layers, which have no experts.",
    "full_attn_idxs": "Layers with attention, where no kinds of layers are listed.",
    "hidden_act": "Activation of the feed-forward layers.",
    "hidden_activation": "Activation of the feed-forward layers.",
    "intermediate_size": "Width of the feed-forward layers.",
    "key_multiplier": "Factor on keys.",
    "kv_lora_rank": "Width of the compressed keys and values.",
    "layer_types": "Kind of attention, or of another mixer, of each layer.",
    "linear_allow_neg_eigval": "Whether states may change their sign.",
    "linear_conv_kernel_dim": "Tokens that the filters of a delta rule see.",
    "linear_key_head_dim": "Width of a key head of a delta rule.",
    "linear_num_key_heads": "Key heads of a delta rule.",
    "linear_num_value_heads": "Value heads of a delta rule; each key head serves as many of them.",
    "linear_value_head_dim": "Width of a value head of a delta rule.",
    "lm_head_multiplier": "Factor on the logits.",
    "logits_scaling": "What the logits are divided by.",
    "mamba_conv_bias": "Whether the filters of Mamba have biases.",
    "mamba_d_conv": "Tokens that the filters of Mamba see.",
    "mamba_d_head": "Width of a head of Mamba-2.",
    "mamba_d_state": "Width of the keys and queries of Mamba.",
    "mamba_dt_rank": "Width of what the steps of Mamba-1 are made of.",
    "mamba_expand": "Width of all heads, or channels, of Mamba, in widths of the model.",
    "mamba_n_groups": "Groups of heads of Mamba-2 that share keys and queries.",
    "mamba_n_heads": "Heads of Mamba-2.",
    "mamba_norm_before_gate": "Whether what Mamba-2 gives is normed before its gate.",
    "mamba_proj_bias": "Whether the projections of Mamba have biases.",
    "mamba_rms_norm": "Whether what Mamba-2 gives is normed.",
    "mlp_bias": "Whether the feed-forward layers have biases.",
    "mlp_multipliers": "Factors on what the gate and the last matrix of the feed-forward layers give.",
    "mlp_only_layers": "Layers with an ordinary feed-forward layer in place of experts.",
    "moe_intermediate_size": "Width of one expert.",
    "n_group": "Groups that experts are chosen in.",
    "n_routed_experts": "Experts of a layer, of which each token uses a few.",
    "n_shared_experts": "Experts of a layer that every token uses.",
    "norm_eps": "Added to the variance inside norms.",
    "norm_topk_prob": "Whether the weights of the chosen experts are rescaled to sum to 1.",
    "num_experts": "Experts of a layer.",
    "num_experts_per_tok": "Experts that each token uses.",
    "num_local_experts": "Experts of a layer.",
    "partial_rotary_factor": "Part of each head that is rotated.",
    "q_lora_rank": "Width of the compressed queries; None: queries are not compressed.",
    "qk_nope_head_dim": "Width of the part of each query and key head that is not rotated.",
    "qk_rope_head_dim": "Width of the part of each query and key head that is rotated.",
    "query_pre_attn_scalar": "Query-key products are divided by its square root.",
    "residual_multiplier": "Factor on what attention and feed-forward layers add.",
    "routed_scaling_factor": "Factor on the weights of the chosen experts.",
    "scoring_func": "How a router's logits become scores.",
    "sliding_window": "Tokens that a token of a windowed layer sees, itself included.",
    "ssm_in_multiplier": "Factor on what Mamba-2 reads.",
    "ssm_multipliers": "Factors on the gate, the inputs, B, C and the steps of Mamba-2.",
    "ssm_out_multiplier": "Factor on what Mamba-2 gives.",
    "topk_group": "Groups of experts that a token may choose from.",
    "use_parallel_residual": "Whether attention and feed-forward layer read the same hidden states.",
    "use_sliding_window": "Whether there are windowed layers at all.",
    "v_head_dim": "Width of a value head.",
}
"""Attribute of the arguments to its docstring; others are described by the name of their field."""

STATES: Final = {
    "delta": "gated delta rules",
    "lightning": "lightning attention",
    "mamba": "Mamba-2 layers",
    "mamba1": "Mamba-1 layers",
    "rglru": "gated linear recurrent units",
    "short_convolution": "gated short convolutions",
}
"""Kind of mixer with a state to what a sentence calls it."""

PROPERTIES: Final = {
    "embedding_multiplier": ("embedding_scale", "Factor on the token embeddings."),
    "layer.attention.head_dim": ("attention_head_dim", "Width of a head."),
    "layer.attention.num_heads": ("attention_heads", "Query heads."),
    "layer.attention.num_kv_heads": ("attention_kv_heads", "Key-value heads."),
    "layer.attention.scale": ("attention_scale", "Factor on query-key products."),
    "layer.attention.softcap": ("attention_softcap", "Bound of the attention scores, before the softmax."),
    "layer.attention.value_dim": ("value_dim", "Width of a value head."),
    "layer.attention.query_bias": ("has_qkv_bias", "Whether query, key and value projections have biases."),
    "layer.attention.output_bias": ("has_output_bias", "Whether the output projection has a bias."),
    "layer.attention.value_norm": ("has_value_norm", "Whether values are normalised."),
    "layer.attention.query_norm": ("has_query_norm", "Whether queries and keys are normalised."),
    "layer.attention.key_norm": ("has_key_norm", "Whether keys are normalised."),
    "layer.attention.keys_as_values": ("keys_as_values", "Whether values are what the key projection gives."),
    "layer.attention.shares_keys": ("shares_keys", "Whether a layer attends to the keys of an earlier one."),
    "layer.attention.sinks": ("has_sinks", "Whether heads have an attention sink."),
    "layer.attention": ("has_mixer", "Whether a layer mixes tokens."),
    "layer.feed_forward.there": ("has_feed_forward", "Whether a layer has a feed-forward layer, or experts."),
    "layer.block": ("block", "How attention and feed-forward layer are wired."),
    "layer.mamba": ("is_mamba", "Whether Mamba-2 mixes the tokens of a layer."),
    "layer.mamba.head_dim": ("mamba_head_dim", "Width of a head of Mamba-2."),
    "layer.mamba.num_groups": ("mamba_groups", "Groups of heads of Mamba-2 that share keys and queries."),
    "layer.mamba.num_heads": ("mamba_heads", "Heads of Mamba-2."),
    "layer.mamba.step_limits": ("step_limits", "Bounds of the steps of Mamba-2."),
    "layer.mamba.state_size": ("mamba_state_size", "Width of the keys and queries of Mamba-2."),
    "layer.mamba1": ("is_mamba", "Whether Mamba-1 mixes the tokens of a layer."),
    "layer.mamba1.inner_size": ("mamba_size", "Channels of Mamba-1."),
    "layer.mamba1.step_rank": ("step_rank", "Width of what the steps of Mamba-1 are made of."),
    "layer.rglru": ("is_recurrent", "Whether a gated linear recurrent unit mixes the tokens of a layer."),
    "layer.rglru.num_blocks": ("gate_blocks", "Blocks of the gates of recurrent units."),
    "layer.rglru.width": ("recurrent_size", "Channels of recurrent units."),
    "layer.factors.attention_stream": ("attention_stream", "Factor on the normed stream beside what a mixer gives."),
    "layer.factors.attention_branch": ("attention_branch", "Factor on what the mixer of a layer gives."),
    "layer.lightning": ("is_lightning", "Whether lightning attention mixes the tokens of a layer."),
    "layer.lightning.head_dim": ("lightning_head_dim", "Width of a head of lightning attention."),
    "layer.lightning.num_heads": ("lightning_heads", "Heads of lightning attention."),
    "layer.delta": ("has_delta_rule", "Whether a delta rule mixes the tokens of a layer."),
    "layer.delta.key_dim": ("delta_key_dim", "Width of a key head of delta rules."),
    "layer.delta.max_rate": ("max_rate", "Largest rate at which a state is rewritten."),
    "layer.delta.num_key_heads": ("delta_key_heads", "Key heads of delta rules."),
    "layer.delta.num_value_heads": ("delta_value_heads", "Value heads of delta rules."),
    "layer.delta.value_dim": ("delta_value_dim", "Width of a value head of delta rules."),
    "layer.convolution": ("is_convolution", "Whether a convolution mixes the tokens of a layer."),
    "layer.experts_beside": ("has_experts_beside", "Whether there are experts beside the feed-forward layers."),
    "layer.layer_input": ("has_layer_inputs", "Whether each layer gets embeddings of the tokens for itself."),
    "layer_embeddings": ("has_layer_embeddings", "Whether each layer gets embeddings of the tokens for itself."),
    "layer.chunk": ("chunk", "Positions per chunk that a token sees only its own of; None: no chunks."),
    "layer.feed_forward": ("has_experts", "Whether a layer has experts."),
    "layer.feed_forward.experts.intermediate_size": ("expert_size", "Width of one expert."),
    "layer.feed_forward.intermediate_size": ("feed_forward_size", "Width of the feed-forward layers."),
    "layer.feed_forward.router.num_experts": ("num_routed_experts", "Experts of a layer, of which a token uses a few."),
    "layer.feed_forward.router.scale": ("router_scale", "Factor on the weights of the chosen experts."),
    "layer.feed_forward.router.top_k": ("top_k", "Experts that each token uses."),
    "layer.feed_forward.shared": ("has_shared_experts", "Whether there is a feed-forward layer beside the experts."),
    "layer.feed_forward.shared.intermediate_size": ("shared_size", "Width of what all tokens use beside the experts."),
    "layer.norms.post_feedforward_layernorm": (
        "has_feed_forward_norm",
        "Whether what the feed-forward part of a layer gives is normed.",
    ),
    "layer.norms.input_layernorm": ("has_input_norm", "Whether the attention of a layer reads normed hidden states."),
    "layer.residual_multiplier": ("residual_scale", "Factor on what attention and feed-forward layers add."),
    "layer.rotary": ("is_rotated", "Whether queries and keys of a layer are rotated."),
    "layer.rotary.dim": ("rotary_dim", "Dimensions of each head that are rotated."),
    "layer.window": ("window", "Tokens that a token of a layer sees, itself included; None: all."),
    "logit_multiplier": ("logit_scale", "Factor on the logits."),
    "logit_softcap": ("logit_bound", "Bound of the logits."),
}
"""Slot to the name and the docstring of the property that computes it."""


def property_of(slot: str) -> tuple[str, str]:
    """Return name and docstring of the property that computes a slot."""
    if slot in PROPERTIES:
        return PROPERTIES[slot]
    parts = [part for part in slot.split(".") if part not in ("layer", "norms", "feed_forward", "attention")]
    name = "_".join(parts)
    return name, f"{name.replace('_', ' ').capitalize()}."


def describe(slots: Mapping[str, Expression], defaults: Mapping[str, Any]) -> str:
    """Return what a family is, in a sentence without its name: "pre-norm blocks of grouped-query attention and SwiGLU".
    defaults: of the config fields."""
    parts = [" and ".join(filter(None, (_attention(slots), _feed_forward(slots, defaults))))]
    extras = [text for text, there in _extras(slots) if there]
    if extras:
        parts.append(", ".join(extras[:4]))
    blocks = BLOCKS.get(_value(slots, "layer.block", "pre"))
    return f"{blocks.words if blocks else 'blocks'} of {'; '.join(parts)}"


def _value(slots: Mapping[str, Expression], slot: str, default: Any = None) -> Any:
    """Return the value of a constant slot; "?" for one that depends on the config."""
    node = slots.get(slot)
    if node is None:
        return default
    return node.value if isinstance(node, Constant) else "?"


def _attention(slots: Mapping[str, Expression]) -> str:
    kinds = [part.value for part in walk(slots["layer.attention"]) if isinstance(part, Constant)]
    words = [text for kind, text in STATES.items() if kind in kinds]
    softmax = set(kinds) - STATES.keys() - {"none"}
    text = " and ".join([*words, *([_softmax_attention(slots, kinds)] if softmax else [])])
    beside = STATES.get(_value(slots, "layer.beside"))
    return f"{text} beside {beside}" if beside else text


def _softmax_attention(slots: Mapping[str, Expression], kinds: Sequence[str]) -> str:
    if "latent" in kinds:
        return "multi-head latent attention"
    heads, kv_heads = slots.get("layer.attention.num_heads"), slots.get("layer.attention.num_kv_heads")
    if heads == kv_heads:
        text = "multi-head attention"
    elif _value(slots, "layer.attention.num_kv_heads") == 1:
        text = "multi-query attention"
    else:
        text = "grouped-query attention"
    if _value(slots, "layer.attention.query_bias") is True:
        text = f"biased {text}"
    norm = slots.get("layer.attention.query_norm")
    if norm is not None and _value(slots, "layer.attention.query_norm") not in (None, False):
        text += " with query and key norms"
    return text


def _feed_forward(slots: Mapping[str, Expression], defaults: Mapping[str, Any]) -> str:
    kinds = {part.value for part in walk(slots["layer.feed_forward"]) if isinstance(part, Constant)} - {"none"}
    if kinds <= {"moe"}:
        return "a mixture of experts" if kinds else ""
    mlp = "a gated feed-forward layer" if _value(slots, "layer.feed_forward.gated", True) else "a feed-forward layer"
    activation = slots.get("layer.feed_forward.activation")
    usual = activation.value if isinstance(activation, Constant) else None
    if isinstance(activation, Field):
        usual = defaults.get(activation.name)
    if mlp.startswith("a gated") and usual in ("silu", "swish"):
        mlp = "SwiGLU"
    return mlp if kinds == {"mlp"} else f"{mlp} or a mixture of experts"


def _extras(slots: Mapping[str, Expression]) -> list[tuple[str, bool]]:
    window, rotary = slots.get("layer.window"), slots.get("layer.rotary")
    return [
        ("no positions but those of the mask", rotary is None and "positions.kind" not in slots and not _alibi(slots)),
        ("absolute positions", "positions.kind" in slots),
        ("linear biases as positions", _alibi(slots)),
        ("some layers without rotation", rotary is not None and _can_be_none(rotary)),
        ("windowed layers", window is not None and not isinstance(window, Constant)),
        ("attention in chunks", _value(slots, "layer.chunk") is not None),
        ("attention sinks", _value(slots, "layer.attention.sinks", False) is not False),
        ("attention to chosen tokens", _value(slots, "layer.attention.indexer", False) is not False),
        ("embeddings of each layer", _value(slots, "layer_embeddings", False) is not False),
        ("experts beside feed-forward layers", _value(slots, "layer.experts_beside", False) is not False),
        ("keys shared by layers", _value(slots, "layer.attention.shares_keys", False) is not False),
        ("gated attention", _value(slots, "layer.attention.gate", "none") != "none"),
        ("bounded scores", _value(slots, "layer.attention.softcap") is not None),
        ("bounded logits", _value(slots, "logit_softcap") is not None),
        ("scaled embeddings", _value(slots, "embedding_multiplier", 1.0) != 1.0),
        ("scaled residuals", _value(slots, "layer.residual_multiplier", 1.0) != 1.0),
    ]


def _alibi(slots: Mapping[str, Expression]) -> bool:
    return _value(slots, "layer.attention.alibi", False) not in (False, None)


def _can_be_none(node: Expression) -> bool:
    match node:
        case Constant(value):
            return value is None
        case PerLayer() | WhenEqual():
            return _can_be_none(node.then) or _can_be_none(node.otherwise)
        case WhenNull():
            return _can_be_none(node.otherwise)
    return False
