"""A model of `transformers` over many processes: data parallelism with FSDP2, around each of its blocks.

Which of its modules are blocks is found by structure, not by name. Matrices, sequences and layers are split for types
that are known to allow it (`areal.engine.hf.divided`), experts never. The tower of an image-text model is gathered with
what is outside of blocks, once per pass and whether or not there are images, so that ranks need not agree on who runs
it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from areal.api import ModelError
from areal.engine.hf.divided import attend_packed, check_divisible, split_layers
from areal.engine.hf.pixels import is_vision
from areal.models.parallel.apply import Sharding
from areal.models.parallel.data import shard_rest, shard_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import ProcessGroup

    from areal.models.parallel.plan import ParallelPlan


def shard(model: Any, plan: ParallelPlan) -> Sharding:
    """Split a `HuggingFaceModel` in place. Raises ModelError for a plan that it does not fit."""
    dims = plan.dims
    is_divided = max(dims.tp, dims.cp, dims.pp) > 1
    _check(model, plan, is_divided=is_divided)
    model.set_gradient_checkpointing(plan.activation_checkpointing)
    partial: frozenset[str] = frozenset()
    if is_divided:
        assert plan.meshes is not None, "more than one rank"
        if dims.tp > 1:
            partial = split_layers(model, plan.meshes.tp)
        attend_packed(model)
    if plan.meshes is not None and plan.shards_data:
        for block in blocks_of(model.inner):
            shard_unit(block, plan, plan.meshes.fsdp)
            block.register_forward_pre_hook(_differentiable, prepend=True, with_kwargs=True)
        shard_rest(model, plan, plan.meshes)
        register_fsdp_forward_method(model, "hidden")
        _reduce_all(model)
    return Sharding(plan=plan, partial_over_tp=partial, attends_itself=not is_divided)


def _check(model: Any, plan: ParallelPlan, *, is_divided: bool) -> None:
    """Raise ModelError for a plan that the model does not fit."""
    dims = plan.dims
    if dims.ep > 1:
        raise ModelError(
            f"parallel.ep={dims.ep}: a model of transformers does not say how its experts may be split; use dp_shard "
            f"and dp_replicate, or make it a family with `areal-new model` and leave model.implementation native"
        )
    if plan.compile:
        raise ModelError("compile: blocks of a model of transformers are not compiled; set compile to false")
    if plan.sequence_parallel and dims.tp > 1:
        raise ModelError(
            "sequence_parallel: norms of a model of transformers are computed for all tokens; set it to false"
        )
    if is_divided:
        check_divisible(model, dims)


def blocks_of(inner: Any) -> list[nn.Module]:
    """Find the layers of a model of `transformers`: the largest list of modules that is in no other and in no tower of
    images, without those that share a parameter with anything beside them."""
    lists = list(_outermost_lists(inner.base_model))
    if not lists:
        return []
    largest = max(lists, key=lambda found: sum(parameter.numel() for parameter in found.parameters()))
    everywhere = _uses(inner)
    # A layer that is used several times is shared with itself.
    return [
        block
        for block in _members(largest)
        if all(everywhere[parameter] == uses for parameter, uses in _uses(block).items())
    ]


def largest_over(group: ProcessGroup, number: int, device: torch.device) -> int:
    """Return the largest of the ranks' numbers."""
    found = torch.tensor(number, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return int(found)


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for name, child in module.named_children():
        if is_vision(name):
            # A rank whose rows have no images would not call its layers, for which the others wait.
            continue
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


def _members(found: nn.ModuleList) -> Iterator[nn.Module]:
    for member in found:
        if isinstance(member, nn.ModuleList):
            yield from _members(member)
        else:
            yield member


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter occurs, by its identity."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))


def _differentiable(
    block: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Have the states that go into a block ask for gradients, before FSDP sees them.

    It reduces a block's gradients once those of its inputs are there, or else at the end of the pass. With frozen
    embeddings and a trained tower only rows with images would ask for any, so that ranks with and without images
    would reduce in different orders and wait for each other.
    """
    if torch.is_grad_enabled():
        key = None if args else "hidden_states"
        states = args[0] if key is None else options.get(key)
        if isinstance(states, torch.Tensor) and not states.requires_grad:
            states = states.detach().requires_grad_()
            if key is None:
                return (states, *args[1:]), options
            return args, {**options, key: states}
    return args, options


def _reduce_all(model: nn.Module) -> None:
    """Have parameters without a gradient, experts that no token went to, sent as zeros: other ranks have used them."""
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            switch: Any = getattr(unit, "set_reduce_scatter_unused_params", None)
            if switch is None:
                raise ModelError("models of transformers over many processes need torch 2.13 or newer")
            switch(True)
