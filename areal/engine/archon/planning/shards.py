"""The shards of one rank, from the real plan: the model is built without memory and split over processes that are only
pretended, so that sizes are those that training would have."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from areal.api import ConfigError
from areal.engine.hf.lora import add_lora
from areal.engine.train.optimizer import is_turned, token_parameters
from areal.engine.train.ranks import local_data
from areal.models.blocks.moe import Experts
from areal.models.loading import blank_model, resolve
from areal.models.parallel.experts import apply_expert_parallel
from areal.models.parallel.meshes import build_meshes
from areal.models.parallel.pipeline import take_part
from areal.models.parallel.plan import ParallelPlan
from areal.models.parallel.tensor import apply_tensor_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.api import ModelSpec
    from areal.engine.config import LoraConfig
    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.schedules import PipelineLayout


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Parameters that FSDP2 gathers together: numbers of values."""

    name: str
    """ "layers.0", "layers.0.mlp.experts", or "" for what is outside of blocks."""
    gathered: int
    """On a rank while it computes: what tp and ep leave of them."""
    kept: int
    """On a rank between passes: the first of its group, which has no fewer than the others."""
    trained: int
    """Of those on a rank between passes."""
    gathered_trained: int
    """Of those on a rank while it computes."""
    ways: int
    """Over how many ranks they are gathered."""
    copies: int
    """Over how many groups of ranks their gradients are summed besides."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """One rank's part of a model."""

    units: tuple[Unit, ...]
    args: Any
    """Of the model."""
    num_layers: int
    """Of the rank's pieces of the pipeline."""
    total: int
    """Parameters of the whole model."""
    turned: int
    """Of the rank's parameters, those in matrices that muon takes."""
    gathered_turned: int
    """Of these, those in matrices that no rank has as a whole."""

    @property
    def kept(self) -> int:
        """Parameters of a rank."""
        return sum(unit.kept for unit in self.units)

    @property
    def trained(self) -> int:
        """Of these, those that have gradients: all, or those of adapters."""
        return sum(unit.trained for unit in self.units)


def shards_of(
    config: Mapping[str, Any],
    dims: ParallelDims,
    layout: PipelineLayout,
    *,
    lora: LoraConfig | None = None,
    pipeline_rank: int | None = None,
) -> Shards:
    """Measure a rank's share of the model in a config.json: of the first one with this rank in the pipeline, by
    default the first or the last, whichever has more. lora: with adapters beside a frozen model. Raises ModelError when
    the model does not divide."""
    if pipeline_rank is None:
        ends = [shards_of(config, dims, layout, lora=lora, pipeline_rank=end) for end in sorted({0, dims.pp - 1})]
        return max(ends, key=lambda shards: shards.kept)
    spec, _ = resolve(config)
    model, total = part_of_model(config, layout, pipeline_rank, lora)
    with pretended_processes(dims.world_size, pipeline_rank * dims.world_size // dims.pp):
        plan = ParallelPlan(dims=dims, meshes=build_meshes(dims, "cpu"))
        tensors = _unsharded_sizes(part_of_model(config, layout, pipeline_rank, lora)[0], spec, plan)
        spec.parallelize(model, plan)
        kept = {name: local_data(parameter).numel() for name, parameter in model.named_parameters()}
        ways = {name: _ways(parameter, dims) for name, parameter in model.named_parameters()}
        tokens = token_parameters(model)
        trained = {name: found for name, found in model.named_parameters() if found.requires_grad}
        turned = {name: found for name, found in trained.items() if is_turned(name, found, tokens)}
        gathered = {name for name, parameter in turned.items() if _is_cut(parameter)}
    members: dict[str, list[str]] = {}
    experts = {name for name, module in model.named_modules() if isinstance(module, Experts)} if dims.ep > 1 else set()
    for name in kept:
        members.setdefault(_unit_of(name, experts), []).append(name)
    units = [
        Unit(
            name=unit,
            gathered=sum(tensors[name] for name in names),
            kept=sum(kept[name] for name in names),
            trained=sum(kept[name] for name in names if name in trained),
            gathered_trained=sum(tensors[name] for name in names if name in trained),
            ways=ways[names[0]],
            copies=dims.dp_replicate,
        )
        for unit, names in members.items()
    ]
    return Shards(
        units=tuple(units),
        args=model.args,
        num_layers=len(model.layers),
        total=total,
        turned=sum(kept[name] for name in turned),
        gathered_turned=sum(kept[name] for name in gathered),
    )


def _is_cut(parameter: torch.Tensor) -> bool:
    """Whether matrices, of a stack too, are in parts."""
    return local_data(parameter).shape[-2:] != parameter.shape[-2:]


def part_of_model(
    config: Mapping[str, Any], layout: PipelineLayout, rank: int, lora: LoraConfig | None
) -> tuple[Any, int]:
    """Build the model without memory, or a pipeline rank's part of it; return it and the parameters of the whole."""
    with torch.device("meta"):
        model: Any = blank_model(config)
        if lora is not None:
            add_lora(model, lora, dtype=torch.float32)
    total = sum(parameter.numel() for parameter in model.parameters())
    return (take_part(model, layout.pieces_of(rank), layout.num_pieces) if layout.num_ranks > 1 else model), total


def _unsharded_sizes(model: Any, spec: ModelSpec, plan: ParallelPlan) -> dict[str, int]:
    """Sizes after tensor and expert parallelism, before FSDP2: of the same model split without it."""
    table = importlib.import_module(spec.parallelize.__module__).TENSOR_PARALLEL
    assert plan.meshes is not None, "built by the caller"
    if plan.dims.tp > 1:
        leave_experts = plan.dims.ep > 1
        apply_tensor_parallel(
            model, plan.meshes.tp, table, sequence_parallel=False, leave_experts=leave_experts, compiled=False
        )
    if plan.dims.ep > 1:
        apply_expert_parallel(model, plan.dims, plan.meshes, table)
    return {name: local_data(parameter).numel() for name, parameter in model.named_parameters()}


def _ways(parameter: torch.Tensor, dims: ParallelDims) -> int:
    """Ranks over which FSDP2 shards a parameter: the first dimensions of its mesh are those of data parallelism."""
    if not isinstance(parameter, DTensor):
        return 1
    index = 1 if dims.dp_replicate > 1 else 0
    names = parameter.device_mesh.mesh_dim_names or ()
    return int(parameter.device_mesh.size(index)) if names and names[index] not in ("tp", "ep") else 1


def _unit_of(name: str, experts: set[str]) -> str:
    owner = name.rpartition(".")[0]
    if owner in experts:
        return owner
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else ""


@contextmanager
def pretended_processes(world_size: int, rank: int) -> Iterator[None]:
    """Be one of many processes that do not exist. Raises ConfigError inside of a real group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ConfigError("a plan is made by one process on its own, not by a member of a group")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
