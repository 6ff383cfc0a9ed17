"""Expert parallelism: each rank holds some experts of every mixture, and tokens travel to them and back.

The numbers are those of one process: a token's experts, their order and their weights are chosen where the token is.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor import Shard as ShardPlacement
from torch.nn import functional

from areal.models.blocks.grouped_products import RowRuns
from areal.models.blocks.moe import Experts
from areal.models.parallel.collectives import exchange
from areal.models.parallel.local import adopt, local_part
from areal.models.parallel.tensor import DIMENSION, TERMS, on_first, splits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor.placement_types import Placement

    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.meshes import Meshes
    from areal.models.parallel.plan import Shard


def apply_expert_parallel(
    model: nn.Module, dims: ParallelDims, meshes: Meshes, table: Mapping[str, Shard], *, compiled: bool = False
) -> frozenset[str]:
    """Give every rank its experts, in place; names of parameters whose gradients are partial over tp afterwards.

    compiled: blocks will be, without what their experts do.
    """
    splits_features = dims.etp > 1
    partial: set[str] = set()
    for module_name, module in model.named_modules():
        if not isinstance(module, Experts):
            continue
        splits = dict(splits_of(module_name, module, table)) if splits_features else {}
        mesh = _two_dimensional(meshes) if splits_features else meshes.ep
        reads: dict[str, Callable[[Tensor], Tensor | None]] = {}
        for name, parameter in list(module.named_parameters()):
            reads[name] = local_part
            placements: list[Placement] = [ShardPlacement(0)]
            if splits_features:
                placements.append(ShardPlacement(DIMENSION[splits[name]]) if name in splits else Replicate())
            distributed = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(distributed, requires_grad=parameter.requires_grad))
            if splits_features and name in TERMS:
                reads[name] = on_first(meshes.tp)
                partial.add(f"{module_name}.{name}")
        # With experts over ranks of tp too, each of these takes its share of the tokens that all of them have.
        sharing = meshes.group("tp") if dims.tp > 1 and not splits_features else None
        dispatch: Callable[..., Tensor] = functools.partial(_dispatch, meshes.group("ep"), sharing)
        adopt(module, reads=reads, mesh=mesh, forward=torch.compiler.disable(dispatch) if compiled else dispatch)
    return frozenset(partial)


@functools.cache
def _two_dimensional(meshes: Meshes) -> DeviceMesh:
    return DeviceMesh._concatenate([meshes.ep, meshes.tp])


def _dispatch(
    group: ProcessGroup,
    sharing: ProcessGroup | None,
    inner: Callable[..., Tensor],
    module: Experts,
    hidden: Tensor,
    weights: Tensor,
    experts: Tensor,
) -> Tensor:
    """`Experts.forward` over many ranks; with `sharing` the result is a term of the sum over that group."""
    if sharing is None:
        return _travel(group, functools.partial(inner, module), module, hidden, weights, experts)
    rows = -(-hidden.shape[0] // sharing.size())
    start = min(sharing.rank() * rows, hidden.shape[0])
    own = slice(start, min(start + rows, hidden.shape[0]))
    mixed = _travel(group, functools.partial(inner, module), module, hidden[own], weights[own], experts[own])
    return functional.pad(mixed, (0, 0, own.start, hidden.shape[0] - own.stop))


def _travel(
    group: ProcessGroup,
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    module: Any,
    hidden: Tensor,
    weights: Tensor,
    experts: Tensor,
) -> Tensor:
    num_local = module.up_proj.shape[0]
    # Sorted as on one process: by expert, and among its tokens by position. So rows for one rank are neighbours.
    sorted_experts, order = experts.flatten().sort(stable=True)
    tokens = order // experts.shape[1]
    ends = RowRuns.of(sorted_experts, num_local * group.size()).ends.long()
    leaving = ends.diff(prepend=ends.new_zeros(1))
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group)
    # Read at once: how many rows are sent to each rank, and received from it.
    both = torch.stack((leaving, arriving)).view(2, group.size(), num_local).sum(2)
    send, receive = both.tolist()
    factors = weights.flatten()[order, None]
    leaving_rows = (hidden[tokens] * factors).to(hidden.dtype) if module.weigh_inputs else hidden[tokens]
    received = exchange(leaving_rows, group, send, receive)
    chosen = torch.arange(num_local, device=hidden.device).repeat(group.size())
    chosen = chosen.repeat_interleave(arriving, output_size=sum(receive))
    if not sum(receive):
        # Parameters get a gradient on every rank, be it of zeros: FSDP2 counts on it.
        received, chosen = functional.pad(received, (0, 0, 0, 1)), chosen.new_zeros(1)
    computed = compute(received, received.new_ones(received.shape[0], 1), chosen[:, None])
    returned = exchange(computed[: sum(receive)], group, receive, send)
    mixed = returned if module.weigh_inputs else returned * factors
    return torch.zeros_like(hidden).index_add(0, tokens, mixed.to(hidden.dtype))
