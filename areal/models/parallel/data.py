"""Data parallelism with FSDP2: every parameter is a shard of each rank, gathered for its block's computation.

Gradients are *summed* over the ranks: denominators of losses are those of the whole step (`areal.api.LossFunction`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from areal.models.blocks.moe import Experts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from areal.models.parallel.meshes import Meshes
    from areal.models.parallel.plan import ParallelPlan


def shard_blocks(model: Any, plan: ParallelPlan, meshes: Meshes) -> None:
    """Make each block of a DecoderModel a unit that is gathered and given back; the experts of a mixture have a mesh of
    their own where they are split by number."""
    for layer in model.layers.values() if isinstance(model.layers, nn.ModuleDict) else model.layers:
        if plan.dims.ep > 1:
            for module in layer.modules():
                if isinstance(module, Experts):
                    shard_unit(module, plan, meshes.expert_fsdp)
        shard_unit(layer, plan, meshes.fsdp)
    # What is left, embedding and head, is used at both ends: gathered once per forward and backward pass.
    shard_rest(model, plan, meshes)
    register_fsdp_forward_method(model, "hidden")


def shard_unit(module: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """Make `module` a unit: its parameters are gathered when it is called, and given back as the plan says."""
    fully_shard(
        module,
        mesh=mesh,
        mp_policy=_policy(plan),
        offload_policy=_home(plan, mesh),
        reshard_after_forward=plan.reshard_after_forward,
    )


def shard_rest(module: nn.Module, plan: ParallelPlan, meshes: Meshes) -> None:
    """Shard the parameters of `module` that no unit inside it has."""
    home = _home(plan, meshes.fsdp)
    fully_shard(module, mesh=meshes.fsdp, mp_policy=_policy(plan), offload_policy=home, reshard_after_forward=False)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_gradient_divide_factor(1.0)


def give_back(module: nn.Module) -> None:
    """Drop all gathered parameters. After a pass without gradients the outermost unit still has its own, which the next
    update would leave stale."""
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def _policy(plan: ParallelPlan) -> MixedPrecisionPolicy:
    if plan.param_dtype is None:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    # Inputs are not cast: mixing weights of experts stay in float32 as on one process.
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, plan.param_dtype), reduce_dtype=torch.float32, cast_forward_inputs=False
    )


def _home(plan: ParallelPlan, mesh: DeviceMesh) -> OffloadPolicy:
    """Return where shards live between passes."""
    if not plan.offload_parameters:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
