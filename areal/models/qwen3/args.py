"""Arguments of Qwen3 and their config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import RotaryDecoderArgs, decoder_fields_to_hf, take_decoder_fields
from areal.models.layer_windows import layer_windows_to_hf, take_layer_windows, take_window
from areal.models.moe_args import MoeArgs, moe_to_hf, take_moe

if TYPE_CHECKING:
    from collections.abc import Mapping

DENSE_HEAD_DIM = 128
"""What transformers takes when a dense config has no head_dim; a mixture then divides hidden_size by the heads."""


@dataclass(kw_only=True)
class Qwen3Args(RotaryDecoderArgs):
    """Arguments of a Qwen3 model."""

    attention_bias: bool
    """Whether query, key, value and output projections have biases."""
    windows: tuple[int | None, ...]
    """Sliding window of each layer in tokens, the token itself included; None means unlimited."""
    moe: MoeArgs | None
    """Experts; None for the dense models."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> Self:
        """See `BaseModelArgs.from_hf_config`."""
        fields = ConfigFields(config)
        is_moe = fields.model_type == "qwen3_moe"
        shared = take_decoder_fields(fields, default_head_dim=None if is_moe else DENSE_HEAD_DIM)
        num_layers = shared["num_layers"]
        attention_bias = fields.flag("attention_bias", False)
        moe = take_moe(fields) if is_moe else None
        # The mixture has one window for all layers and no use for max_window_layers, which its published files carry.
        windows = (take_window(fields),) * num_layers if is_moe else take_layer_windows(fields, num_layers)
        fields.finish(harmless={"max_window_layers"} if is_moe else ())
        return cls(**shared, attention_bias=attention_bias, windows=windows, moe=moe)

    def to_hf_config(self) -> dict[str, Any]:
        """See `BaseModelArgs.to_hf_config`."""
        if self.moe is None:
            return {
                **decoder_fields_to_hf(self, "Qwen3ForCausalLM"),
                **layer_windows_to_hf(self.windows),
                "attention_bias": self.attention_bias,
            }
        return {
            **decoder_fields_to_hf(self, "Qwen3MoeForCausalLM"),
            **moe_to_hf(self.moe),
            "attention_bias": self.attention_bias,
            "sliding_window": self.windows[0],
            "use_sliding_window": self.windows[0] is not None,
        }
