"""Names of Qwen3's parameters on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.adapter import DecoderAdapter, Renamed, linear, same, stacked_experts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from areal.models.adapter import Entry
    from areal.models.qwen3.args import Qwen3Args


class Qwen3StateDictAdapter(DecoderAdapter):
    """On disk names have "model." in front, except lm_head; the router is "gate" and experts are separate matrices."""

    args: Qwen3Args

    def layer_entries(self, layer: int) -> Iterator[Entry]:
        """See `DecoderAdapter.layer_entries`."""
        prefix = f"layers.{layer}"
        yield same(f"{prefix}.input_layernorm.weight")
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from linear(f"{prefix}.self_attn.{projection}", bias=self.args.attention_bias)
        yield same(f"{prefix}.self_attn.q_norm.weight")
        yield same(f"{prefix}.self_attn.k_norm.weight")
        yield same(f"{prefix}.post_attention_layernorm.weight")
        yield from self._feed_forward_entries(f"{prefix}.mlp", layer)

    def _feed_forward_entries(self, prefix: str, layer: int) -> Iterator[Entry]:
        moe = self.args.moe
        if moe is None or not moe.has_experts(layer):
            for projection in ("gate_proj", "up_proj", "down_proj"):
                yield from linear(f"{prefix}.{projection}", bias=False)
        else:
            yield Renamed(f"{prefix}.router.weight", f"model.{prefix}.gate.weight")
            yield from stacked_experts(f"{prefix}.experts", f"model.{prefix}.experts", moe.num_experts)
