"""Checks what goes from a report into source code, and says in words what a generated family is.

Reports are made from configs and modeling files of strangers: every name of a config field or parameter, every literal
and one-line text that reaches a template passes through here.
"""

from __future__ import annotations

import keyword
import math
import re
from typing import TYPE_CHECKING, Any, Final

from areal.porting.spec import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping


FIELD_DOCUMENTATION: Final = {
    "attention_bias": "Whether query, key, value and output projections have biases.",
    "attention_multiplier": "Factor on query-key products.",
    "attn_logit_softcapping": "Bound of the attention scores, before the softmax.",
    "decoder_sparse_step": "Every so many layers, one has experts.",
    "embedding_multiplier": "Factor on the token embeddings.",
    "final_logit_softcapping": "Bound of the logits.",
    "first_k_dense_replace": "Number of the first layers, which have no experts.",
    "hidden_act": "Activation of the feed-forward layers.",
    "hidden_activation": "Activation of the feed-forward layers.",
    "intermediate_size": "Width of the feed-forward layers.",
    "kv_lora_rank": "Width of the compressed keys and values.",
    "layer_types": "Kind of attention of each layer.",
    "logits_scaling": "What the logits are divided by.",
    "mlp_bias": "Whether the feed-forward layers have biases.",
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
    "topk_group": "Groups of experts that a token may choose from.",
    "use_parallel_residual": "Whether attention and feed-forward layer read the same hidden states.",
    "use_sliding_window": "Whether there are windowed layers at all.",
    "v_head_dim": "Width of a value head.",
}
"""Attribute of the arguments to its docstring; others are described by the name of their field."""

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
    "layer.attention.query_norm": ("has_query_norm", "Whether queries and keys are normalised."),
    "layer.attention.key_norm": ("has_key_norm", "Whether keys are normalised."),
    "layer.attention.sinks": ("has_sinks", "Whether heads have an attention sink."),
    "layer.block": ("block", "How attention and feed-forward layer are wired."),
    "layer.chunk": ("chunk", "Positions per chunk that a token sees only its own of; None: no chunks."),
    "layer.feed_forward": ("has_experts", "Whether a layer has experts."),
    "layer.feed_forward.experts.intermediate_size": ("expert_size", "Width of one expert."),
    "layer.feed_forward.intermediate_size": ("feed_forward_size", "Width of the feed-forward layers."),
    "layer.feed_forward.router.num_experts": ("num_routed_experts", "Experts of a layer, of which a token uses a few."),
    "layer.feed_forward.router.scale": ("router_scale", "Factor on the weights of the chosen experts."),
    "layer.feed_forward.router.top_k": ("top_k", "Experts that each token uses."),
    "layer.feed_forward.shared": ("has_shared_experts", "Whether there is a feed-forward layer beside the experts."),
    "layer.feed_forward.shared.intermediate_size": ("shared_size", "Width of what all tokens use beside the experts."),
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
    """Name and docstring of the property that computes a slot."""
    if slot in PROPERTIES:
        return PROPERTIES[slot]
    parts = [part for part in slot.split(".") if part not in ("layer", "norms", "feed_forward", "attention")]
    name = "_".join(parts)
    return name, f"{name.replace('_', ' ').capitalize()}."


def describe(slots: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return what a family is, in a sentence without its name: "pre-norm blocks of grouped-query attention and SwiGLU".
    defaults: of the config fields."""
    parts = [f"{_attention(slots)} and {_feed_forward(slots, defaults)}"]
    extras = [text for text, there in _extras(slots) if there]
    if extras:
        parts.append(", ".join(extras[:4]))
    blocks = BLOCKS.get(_value(slots, "layer.block", "pre"))
    return f"{blocks.words if blocks else 'blocks'} of {'; '.join(parts)}"


def _value(slots: Mapping[str, Any], slot: str, default: Any = None) -> Any:
    """Return the value of a constant slot; "?" for one that depends on the config."""
    node = slots.get(slot)
    if node is None:
        return default
    return node["value"] if node["kind"] == "constant" else "?"


def _attention(slots: Mapping[str, Any]) -> str:
    if _value(slots, "layer.attention") == "latent":
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


def _feed_forward(slots: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    kind = _value(slots, "layer.feed_forward", "mlp")
    if kind == "moe":
        return "a mixture of experts"
    mlp = "a gated feed-forward layer" if _value(slots, "layer.feed_forward.gated", True) else "a feed-forward layer"
    activation = slots.get("layer.feed_forward.activation", {})
    usual = activation.get("value", defaults.get(activation.get("name")))
    if mlp.startswith("a gated") and usual in ("silu", "swish"):
        mlp = "SwiGLU"
    return mlp if kind == "mlp" else f"{mlp} or a mixture of experts"


def _extras(slots: Mapping[str, Any]) -> list[tuple[str, bool]]:
    window, rotary = slots.get("layer.window"), slots.get("layer.rotary")
    return [
        ("no positions but those of the mask", rotary is None and "positions.kind" not in slots and not _alibi(slots)),
        ("absolute positions", "positions.kind" in slots),
        ("linear biases as positions", _alibi(slots)),
        ("some layers without rotation", rotary is not None and _can_be_none(rotary)),
        ("windowed layers", window is not None and window["kind"] != "constant"),
        ("attention in chunks", _value(slots, "layer.chunk") is not None),
        ("attention sinks", _value(slots, "layer.attention.sinks", False) is not False),
        ("gated attention", _value(slots, "layer.attention.gate", "none") != "none"),
        ("bounded scores", _value(slots, "layer.attention.softcap") is not None),
        ("bounded logits", _value(slots, "logit_softcap") is not None),
        ("scaled embeddings", _value(slots, "embedding_multiplier", 1.0) != 1.0),
        ("scaled residuals", _value(slots, "layer.residual_multiplier", 1.0) != 1.0),
    ]


def _alibi(slots: Mapping[str, Any]) -> bool:
    return _value(slots, "layer.attention.alibi", False) not in (False, None)


def _can_be_none(node: Mapping[str, Any]) -> bool:
    if node["kind"] == "constant":
        return node["value"] is None
    return any(_can_be_none(node[key]) for key in ("then", "otherwise") if key in node)


_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PARAMETER: Final = re.compile(r"[A-Za-z_*{][A-Za-z0-9_*{}]*(\.[A-Za-z0-9_*{}]+)*")
_MODEL_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME: Final = 120
_MAX_TEXT: Final = 400
_TRIPLE: Final = '"' * 3


class ReportError(ValueError):
    """A report that no source can be written from: where in it, and what to do."""

    def __init__(self, message: str, *, where: str = "architecture report", fix: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.fix = fix or "analyse again with the version of areal in this repository"


def malformed(what: str) -> ReportError:
    """Return the error for a report that this version cannot read."""
    return ReportError(f"the analysis reports {what}")


def field_name(name: Any) -> str:
    """Check the name of a config field; a dot reaches into an object."""
    return _matching(name, _FIELD, "a config field")


def parameter_name(name: Any) -> str:
    """Check the name of a module or parameter; `*` is the number of the layer and `{expert}` that of the expert."""
    return _matching(name, _PARAMETER, "a parameter")


def model_type_name(name: Any) -> str:
    """Check a model_type, which becomes a key of the registry."""
    return _matching(name, _MODEL_TYPE, "a model_type")


def class_name(name: Any) -> str:
    """Check the name of a class of transformers, or of a modeling file."""
    return _matching(name, _CLASS, "a class")


def attribute_name(field: str) -> str:
    """Return the attribute of a field: its last part, never a keyword, never private."""
    name = field.rpartition(".")[2].strip("_").lower() or "field"
    name = name if name[0].isalpha() else f"field_{name}"
    return f"{name}_" if keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


def literal(value: Any) -> str:
    """Return a JSON scalar, list or object as ASCII source of Python."""
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return f'float("{value}")'
        return re.sub(r"e([+-])0", r"e\1", repr(value))
    if isinstance(value, str):
        text = ascii(value)
        return text if '"' in value else f'"{text[1:-1]}"' if "'" not in value else text
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        # Sorted, as in a receipt: what is written must not depend on where a report was kept.
        items = sorted((str(key), item) for key, item in value.items())
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in items)}}}"
    raise malformed(f"a value of type {type(value).__name__}")


def tuple_literal(values: Any) -> str:
    """Values as a tuple."""
    items = [literal(value) for value in values]
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def one_line(text: Any, limit: int = _MAX_TEXT) -> str:
    """Text for a docstring or a comment: printable ASCII in one line, without backslashes and triple quotation marks.
    It is read by people only."""
    plain = " ".join(str(text).split()).encode("ascii", "replace").decode()
    plain = "".join(character if character.isprintable() else "?" for character in plain)
    return plain.replace("\\", "/").replace(_TRIPLE, "'''")[:limit].rstrip('"').strip()


def _matching(name: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(name, str) or len(name) > _MAX_NAME or not pattern.fullmatch(name):
        raise ReportError(
            f"{str(name)[:_MAX_NAME]!a} cannot be written into source code as the name of {what}",
            fix="rename it in the config or the modeling file: ASCII letters, digits, '_' and '.'",
        )
    return name
