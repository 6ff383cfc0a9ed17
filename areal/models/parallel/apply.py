"""A plan applied to a model: tensor, expert and context parallelism, recomputation, compilation, FSDP2, in this order.

Each step works on what the one before left: experts are split inside regions of tensor parallelism, recomputation
repeats their communication, FSDP2 shards what all of them made of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from areal.api import ModelError
from areal.models.parallel.checks import check_model
from areal.models.parallel.data import shard_blocks
from areal.models.parallel.experts import apply_expert_parallel
from areal.models.parallel.tensor import apply_tensor_parallel, splits_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.models.parallel.plan import ParallelPlan, Shard

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What an engine has to know of a model that was split; `model.sharding`."""

    plan: ParallelPlan
    partial_over_tp: frozenset[str] = frozenset()
    """Parameters whose gradients are terms of a sum over the ranks of tp, after the backward passes of a step."""
    splits_vocabulary: bool = False
    """Whether `project` gives the logits of this rank's share of the vocabulary."""
    attends_itself: bool = False
    """Whether the model has attention of its own, and takes no `AttentionBackend`."""


def apply_plan(model: Model, plan: ParallelPlan, table: Mapping[str, Shard]) -> Model:
    """Split a DecoderModel, or the layers of one that are left in it, in place.

    Every rank has to hold the same parameters; afterwards each holds its part. Raises ModelError when the model does
    not divide.
    """
    decoder: Any = model
    dims, meshes = plan.dims, plan.meshes
    if meshes is None and not dims.is_single:
        raise ModelError(f"the plan asks for {dims.describe()} without meshes; build them with build_meshes(dims, ...)")
    check_model(model, dims, table)
    partial: frozenset[str] = frozenset()
    if meshes is not None and dims.tp > 1:
        partial = apply_tensor_parallel(
            decoder,
            meshes.tp,
            table,
            sequence_parallel=plan.sequence_parallel,
            leave_experts=dims.ep > 1,
            compiled=plan.compile,
        )
    if meshes is not None and dims.ep > 1:
        partial |= apply_expert_parallel(decoder, dims, meshes, table, compiled=plan.compile)
    # Context parallelism changes no module: a ParallelBackend (context.py) goes with each forward.
    decoder.set_gradient_checkpointing(plan.activation_checkpointing)
    if plan.compile:
        for layer in decoder.layers.values() if isinstance(decoder.layers, nn.ModuleDict) else decoder.layers:
            # Lengths differ from micro-batch to micro-batch.
            layer.compile(dynamic=True)
    if meshes is not None and plan.shards_data:
        shard_blocks(decoder, plan, meshes)
    decoder.sharding = Sharding(
        plan=plan,
        partial_over_tp=partial,
        splits_vocabulary=dims.tp > 1 and splits_vocabulary(decoder.args.vocab_size, dims.tp, table),
    )
    return model
