"""Arguments of Qwen2 and their config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import DecoderArgs, RotaryArgs, take_rotary

if TYPE_CHECKING:
    from collections.abc import Mapping

IGNORED: Final = {
    "attention_dropout": "noise while training in transformers, never applied here",
}
"""Fields that cannot change a logit, with the reason."""


@dataclass(kw_only=True)
class Qwen2Args(DecoderArgs):
    """Arguments of a model of this family. Sizes are in elements."""

    hidden_act: str
    """Activation of the feed-forward layers."""
    intermediate_size: int
    """Width of the feed-forward layers."""
    layer_types: tuple[str, ...]
    """Kind of attention, or of another mixer, of each layer."""
    max_window_layers: int
    """Field `max_window_layers` of the config."""
    norm_eps: float
    """Added to the variance inside norms."""
    sliding_window: int | None
    """Tokens that a token of a windowed layer sees, itself included."""
    use_sliding_window: bool
    """Whether there are windowed layers at all."""
    rotary: RotaryArgs
    """How queries and keys are rotated."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> Self:
        """See `BaseModelArgs.from_hf_config`."""
        fields = ConfigFields(config)
        hidden_size = fields.integer("hidden_size", 4096)
        num_heads = fields.integer("num_attention_heads", 32)
        max_window_layers = fields.integer("max_window_layers", 28, minimum=0)
        sliding_window = fields.optional_integer("sliding_window", 4096)
        use_sliding_window = fields.flag("use_sliding_window", False)
        num_layers = fields.integer("num_hidden_layers", 32)
        max_position_embeddings = fields.integer("max_position_embeddings", 32768)
        args = cls(
            model_type=fields.model_type,
            vocab_size=fields.integer("vocab_size", 151936),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", 32, null=num_heads),
            head_dim=fields.integer("head_dim", null=hidden_size // num_heads),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            hidden_act=fields.text("hidden_act", "silu"),
            intermediate_size=fields.integer("intermediate_size", 22016),
            layer_types=fields.per_layer(
                "layer_types",
                num_layers,
                [
                    "sliding_attention"
                    if layer >= max_window_layers and sliding_window is not None and use_sliding_window
                    else "full_attention"
                    for layer in range(num_layers)
                ],
                allowed=("full_attention", "sliding_attention"),
            ),
            max_window_layers=max_window_layers,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            sliding_window=sliding_window,
            use_sliding_window=use_sliding_window,
            rotary=take_rotary(
                fields,
                max_position_embeddings,
                types=("default", "linear", "llama3", "longrope", "yarn"),
                default={"rope_theta": 10000.0, "rope_type": "default"},
            ),
            initializer_range=fields.number("initializer_range", 0.02),
            token_ids=fields.token_ids(),
        )
        fields.finish(IGNORED)
        return args

    def to_hf_config(self) -> dict[str, Any]:
        """See `BaseModelArgs.to_hf_config`."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "head_dim": self.head_dim,
            "hidden_act": self.hidden_act,
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": self.max_position_embeddings,
            "max_window_layers": self.max_window_layers,
            "model_type": self.model_type,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": self.norm_eps,
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_sliding_window": self.use_sliding_window,
            "vocab_size": self.vocab_size,
            **self.rotary.to_hf_config(),
            **self.token_ids,
        }

    def window(self, layer: int) -> int | None:
        """Tokens that a token of a layer sees, itself included; None: all."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None
