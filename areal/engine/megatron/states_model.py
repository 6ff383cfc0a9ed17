"""megatron-core's decoder, which gives states and leaves the head to who scores them, and the layers it is made of.

The one module here that imports megatron when it is loaded, which others do where they build a decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.models.gpt import GPTModel, gpt_layer_specs

if TYPE_CHECKING:
    from torch import Tensor


class StatesModel(GPTModel):
    """The logits of a batch are its largest tensor by far: `areal.engine.train.head` computes slices of them."""

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        """Return the states [length, rows, hidden_size]; of the last stage those after the final norm."""
        return hidden_states


def layer_spec(settings: Any, *, transformer_engine: bool) -> Any:
    """Return what a layer is made of: megatron's own modules, or those of Transformer Engine."""
    if transformer_engine:
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=settings.qk_layernorm)
    return gpt_layer_specs.get_gpt_layer_local_spec(
        qk_layernorm=settings.qk_layernorm, normalization=settings.normalization
    )
