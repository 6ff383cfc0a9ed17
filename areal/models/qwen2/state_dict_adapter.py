"""Names of Qwen2's parameters on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.adapter import DecoderAdapter, linear, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from areal.models.adapter import Entry


class Qwen2StateDictAdapter(DecoderAdapter):
    """On disk every name has "model." in front, except lm_head; nothing else differs."""

    def layer_entries(self, layer: int) -> Iterator[Entry]:
        """See `DecoderAdapter.layer_entries`."""
        prefix = f"layers.{layer}"
        yield same(f"{prefix}.input_layernorm.weight")
        for projection in ("q_proj", "k_proj", "v_proj"):
            yield from linear(f"{prefix}.self_attn.{projection}", bias=True)
        yield from linear(f"{prefix}.self_attn.o_proj", bias=False)
        yield same(f"{prefix}.post_attention_layernorm.weight")
        for projection in ("gate_proj", "up_proj", "down_proj"):
            yield from linear(f"{prefix}.mlp.{projection}", bias=False)
