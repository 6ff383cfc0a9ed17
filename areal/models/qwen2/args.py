"""Arguments of Qwen2 and their config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import RotaryDecoderArgs, decoder_fields_to_hf, take_decoder_fields
from areal.models.layer_windows import layer_windows_to_hf, take_layer_windows

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(kw_only=True)
class Qwen2Args(RotaryDecoderArgs):
    """Arguments of a Qwen2 model."""

    windows: tuple[int | None, ...]
    """Sliding window of each layer in tokens, the token itself included; None means unlimited."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> Self:
        """See `BaseModelArgs.from_hf_config`."""
        fields = ConfigFields(config)
        shared = take_decoder_fields(fields, default_head_dim=None)
        windows = take_layer_windows(fields, shared["num_layers"])
        fields.finish()
        return cls(**shared, windows=windows)

    def to_hf_config(self) -> dict[str, Any]:
        """See `BaseModelArgs.to_hf_config`."""
        return {**decoder_fields_to_hf(self, "Qwen2ForCausalLM"), **layer_windows_to_hf(self.windows)}
