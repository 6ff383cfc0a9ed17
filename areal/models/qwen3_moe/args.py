"""Arguments of Qwen3Moe and their config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import DecoderArgs, RotaryArgs, take_rotary

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIASES: Final = {
    "num_experts": "num_local_experts",
}
"""Other names of fields that transformers accepts."""

IGNORED: Final = {
    "attention_dropout": "noise while training in transformers, never applied here",
    "max_window_layers": "not read by the modeling source; logits are equal bit for bit for 2, 4, 1",
}
"""Fields that cannot change a logit, with the reason."""


@dataclass(kw_only=True)
class Qwen3MoeArgs(DecoderArgs):
    """Arguments of a model of this family. Sizes are in elements."""

    attention_bias: bool
    """Whether query, key, value and output projections have biases."""
    decoder_sparse_step: int
    """Every so many layers, one has experts."""
    hidden_act: str
    """Activation of the feed-forward layers."""
    intermediate_size: int
    """Width of the feed-forward layers."""
    mlp_only_layers: tuple[int, ...]
    """Layers with an ordinary feed-forward layer in place of experts."""
    moe_intermediate_size: int
    """Width of one expert."""
    norm_topk_prob: bool
    """Whether the weights of the chosen experts are rescaled to sum to 1."""
    num_experts_per_tok: int
    """Experts that each token uses."""
    num_local_experts: int
    """Experts of a layer."""
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
        fields = ConfigFields(config, aliases=ALIASES)
        hidden_size = fields.integer("hidden_size", 2048)
        num_heads = fields.integer("num_attention_heads", 32)
        max_position_embeddings = fields.integer("max_position_embeddings", 32768)
        args = cls(
            model_type=fields.model_type,
            vocab_size=fields.integer("vocab_size", 151936),
            hidden_size=hidden_size,
            num_layers=fields.integer("num_hidden_layers", 24),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", 4),
            head_dim=fields.integer("head_dim", null=hidden_size // num_heads),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            attention_bias=fields.flag("attention_bias", False),
            decoder_sparse_step=fields.integer("decoder_sparse_step", 1),
            hidden_act=fields.text("hidden_act", "silu"),
            intermediate_size=fields.integer("intermediate_size", 6144),
            mlp_only_layers=fields.integers("mlp_only_layers"),
            moe_intermediate_size=fields.integer("moe_intermediate_size", 768),
            norm_topk_prob=fields.flag("norm_topk_prob", False),
            num_experts_per_tok=fields.integer("num_experts_per_tok", 8),
            num_local_experts=fields.integer("num_local_experts"),
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            sliding_window=fields.optional_integer("sliding_window", 4096),
            use_sliding_window=fields.flag("use_sliding_window", False),
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
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": self.attention_bias,
            "decoder_sparse_step": self.decoder_sparse_step,
            "head_dim": self.head_dim,
            "hidden_act": self.hidden_act,
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "mlp_only_layers": list(self.mlp_only_layers),
            "model_type": self.model_type,
            "moe_intermediate_size": self.moe_intermediate_size,
            "norm_topk_prob": self.norm_topk_prob,
            "num_attention_heads": self.num_heads,
            "num_experts_per_tok": self.num_experts_per_tok,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "num_local_experts": self.num_local_experts,
            "rms_norm_eps": self.norm_eps,
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_sliding_window": self.use_sliding_window,
            "vocab_size": self.vocab_size,
            **self.rotary.to_hf_config(),
            **self.token_ids,
        }

    @property
    def window(self) -> int | None:
        """Tokens that a token of a layer sees, itself included; None: all."""
        return self.sliding_window if self.use_sliding_window else None

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return (layer + 1) % self.decoder_sparse_step == 0 and layer not in self.mlp_only_layers
