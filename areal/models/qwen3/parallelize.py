"""Splits Qwen3 over devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.models.parallel import Shard, shard_model

if TYPE_CHECKING:
    from areal.models.parallel import ParallelPlan
    from areal.models.qwen3.model import Qwen3Model

TENSOR_PARALLEL: Final[dict[str, Shard]] = {
    "embed_tokens": Shard.COLUMN,
    "layers.*.mlp.down_proj": Shard.ROW,
    "layers.*.mlp.gate_proj": Shard.COLUMN,
    "layers.*.mlp.up_proj": Shard.COLUMN,
    "layers.*.self_attn.k_proj": Shard.COLUMN,
    "layers.*.self_attn.o_proj": Shard.ROW,
    "layers.*.self_attn.q_proj": Shard.COLUMN,
    "layers.*.self_attn.v_proj": Shard.COLUMN,
    "lm_head": Shard.COLUMN,
}
"""Split of each module under tensor parallelism; every other module is replicated."""


def parallelize(model: Qwen3Model, plan: ParallelPlan | None = None) -> Qwen3Model:
    """Apply `plan` to `model` in place and return it. Raises ModelError for a plan that the model does not fit."""
    return shard_model(model, plan, TENSOR_PARALLEL)
