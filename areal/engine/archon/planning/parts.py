"""Find which parts of which parameters every rank of a split model holds, in one process.

The model is built without memory and split once per stage of a pipeline, by the real plan over processes that are only
pretended. What the other ranks of the stage hold follows from how its tensors are placed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from areal.engine.archon.planning.shards import part_of_model, pretended_processes
from areal.engine.train.ranks import local_data
from areal.models.loading import resolve
from areal.models.parallel.meshes import build_meshes
from areal.models.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.schedules import PipelineLayout

    Bounds = tuple[tuple[int, int], ...]
    Held = dict[str, tuple[tuple[int, ...], torch.dtype, torch.dtype, Bounds]]


def parts_by_rank(
    config: Mapping[str, Any],
    dims: ParallelDims,
    layout: PipelineLayout,
    *,
    held: torch.dtype,
    handed_out: torch.dtype,
) -> list[Held]:
    """Return of every rank: parameter to shape, the dtypes that it is held and handed out in, and the rank's part
    (start and stop along each dimension).

    held: dtype of a rank's parameters; handed_out: the engine's. Buffers keep their own.
    """
    spec, _ = resolve(config)
    everywhere: list[Held] = [{} for _ in range(dims.world_size)]
    stage_size = dims.world_size // dims.pp
    for stage in range(dims.pp):
        first = stage * stage_size
        model, _ = part_of_model(config, layout, stage, None)
        with pretended_processes(dims.world_size, first):
            spec.parallelize(model, ParallelPlan(dims=dims, meshes=build_meshes(dims, "cpu")))
            trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
            known: dict[Any, list[Bounds]] = {}
            for name, tensor in model.state_dict().items():
                own = local_data(tensor).dtype
                dtypes = (held, handed_out) if name in trained else (own, own)
                key = _placement(tensor)
                if key not in known:
                    known[key] = _parts(tensor, dims, first, stage_size)
                for offset, bounds in enumerate(known[key]):
                    everywhere[first + offset][name] = (tuple(tensor.shape), *dtypes, bounds)
    return everywhere


def _placement(tensor: Tensor) -> Any:
    """Return what a tensor's parts follow from; the same for the tensors of many layers."""
    if not isinstance(tensor, DTensor):
        return tuple(tensor.shape)
    mesh = tensor.device_mesh
    return (tuple(tensor.shape), tensor.placements, tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()))


def _parts(tensor: Tensor, dims: ParallelDims, first: int, stage_size: int) -> list[Bounds]:
    """Return the part of every rank of a stage; first: its first rank, which `tensor` was made on."""
    if not isinstance(tensor, DTensor):
        return [tuple((0, size) for size in tensor.shape)] * stage_size
    mesh = tensor.device_mesh.mesh
    by_rank: dict[int, Bounds] = {}
    for coordinate in itertools.product(*map(range, mesh.shape)):
        sizes, starts = _compute_local_shape_and_global_offset(
            tensor.shape, tuple(mesh.shape), list(coordinate), tensor.placements
        )
        bounds = tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))
        by_rank[int(mesh[coordinate])] = bounds
    return [by_rank[first + _alike(offset, dims, first, by_rank)] for offset in range(stage_size)]


def _alike(offset: int, dims: ParallelDims, first: int, by_rank: Mapping[int, Any]) -> int:
    """Return the place of the rank with the same part inside the first rank's mesh: places along ways of splitting that
    the mesh does not have make no difference."""
    sizes = (dims.dp_replicate, dims.ranks_per_expert_shard, dims.expert_data_ranks, dims.cp, dims.tp)
    found, stride = 0, 1
    for size in reversed(sizes):
        if size > 1 and first + stride in by_rank:
            found += offset // stride % size * stride
        stride *= size
    return found
