"""Arguments that every family with rotary positions shares, and their way from and to a config.json. No torch here."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from areal.api import BaseModelArgs, ModelError
from areal.models.rotary_args import DEFAULT_ROTARY, RotaryArgs, take_rotary

if TYPE_CHECKING:
    from areal.models.config_fields import ConfigFields


@dataclass(kw_only=True)
class DecoderArgs(BaseModelArgs, ABC):
    """What the arguments of every family add to `BaseModelArgs`. Nothing here says what a layer computes."""

    initializer_range: float = 0.02
    """Standard deviation of random weights."""
    token_ids: dict[str, Any] = field(default_factory=dict, compare=False)
    """Special token ids of the checkpoint, nulls included, written back on export; no part of the computation."""

    def __post_init__(self) -> None:
        """Refuse head counts that no attention can have, and contexts without a second token."""
        if self.max_position_embeddings < 2:
            # Reference implementations broadcast tables of one position over all, and compute something else.
            raise ModelError(
                f"a config of model_type {self.model_type!r} says max_position_embeddings="
                f"{self.max_position_embeddings}; expected room for at least 2 tokens"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"a config of model_type {self.model_type!r} asks for num_heads={self.num_heads} query heads and "
                f"num_kv_heads={self.num_kv_heads}; expected query heads in equal groups per key-value head"
            )


@dataclass(kw_only=True)
class RotaryDecoderArgs(DecoderArgs, ABC):
    """Arguments of a pre-norm decoder with rotary positions. Sizes are in elements."""

    intermediate_size: int
    """Width of the feed-forward layers."""
    norm_eps: float
    """Added to the mean square inside every norm."""
    rotary: RotaryArgs
    """Positions."""

    def __post_init__(self) -> None:
        """Refuse shapes that no attention can have."""
        super().__post_init__()
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embedding pairs dimensions, expected an even number")


def take_decoder_fields(fields: ConfigFields, *, default_head_dim: int | None) -> dict[str, Any]:
    """Constructor arguments of `RotaryDecoderArgs` from the fields of the same meaning.

    default_head_dim: what the family means by an absent head_dim; None for hidden_size / num_attention_heads.
    """
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if default_head_dim is None and not fields.has("head_dim"):
        if hidden_size % num_heads:
            raise fields.error(
                "hidden_size", hidden_size, f"a multiple of num_attention_heads={num_heads}, or give head_dim"
            )
        default_head_dim = hidden_size // num_heads
    max_position_embeddings = fields.integer("max_position_embeddings", 32768)
    fields.require("hidden_act", ("silu",))
    return {
        "model_type": fields.model_type,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": fields.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer(
            "num_key_value_heads", num_heads if fields.is_null("num_key_value_heads") else None
        ),
        "head_dim": fields.integer("head_dim", null=default_head_dim),
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        "intermediate_size": fields.integer("intermediate_size"),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "initializer_range": fields.number("initializer_range", 0.02),
        "rotary": take_rotary(fields, max_position_embeddings, default=DEFAULT_ROTARY),
        "token_ids": fields.token_ids(),
    }


def decoder_fields_to_hf(args: RotaryDecoderArgs, architecture: str) -> dict[str, Any]:
    """The fields that `take_decoder_fields` reads back; architecture: class name in transformers."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "head_dim": args.head_dim,
        "hidden_act": "silu",
        "hidden_size": args.hidden_size,
        "initializer_range": args.initializer_range,
        "intermediate_size": args.intermediate_size,
        "max_position_embeddings": args.max_position_embeddings,
        "model_type": args.model_type,
        "num_attention_heads": args.num_heads,
        "num_hidden_layers": args.num_layers,
        "num_key_value_heads": args.num_kv_heads,
        "rms_norm_eps": args.norm_eps,
        "tie_word_embeddings": args.tie_word_embeddings,
        "vocab_size": args.vocab_size,
        **args.rotary.to_hf_config(),
        **args.token_ids,
    }
