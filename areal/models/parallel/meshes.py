"""Groups of processes for each way of splitting, from one arrangement of all ranks.

Ranks are counted with pp outermost and tp innermost: ranks of one tp group are neighbours, and share a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from areal.api import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from areal.models.parallel.dims import ParallelDims


@dataclass(frozen=True, kw_only=True)
class Meshes:
    """One-dimensional meshes unless said otherwise; those of size 1 exist as well."""

    root: DeviceMesh
    """All ranks: (pp, dp_replicate, dp_shard_outer, dp_shard_inner, cp, tp). The ranks of dp_shard_inner hold different
    experts, those of dp_shard_outer the same."""
    pp: DeviceMesh
    tp: DeviceMesh
    cp: DeviceMesh
    data: DeviceMesh
    """(dp_replicate, dp_shard) as one: every rank of it has rows of its own."""
    fsdp: DeviceMesh
    """Over which parameters are sharded: dp_shard and cp; two-dimensional, behind dp_replicate, when that is split."""
    ep: DeviceMesh
    """Over which the experts of a layer are split."""
    expert_fsdp: DeviceMesh
    """Over which the parameters of experts are sharded once more: dp_shard_outer; two-dimensional like `fsdp`."""

    @property
    def data_rank(self) -> int:
        """Which part of a batch's rows this process computes."""
        return int(self.data.get_local_rank())

    @property
    def device(self) -> torch.device:
        """That of this process, which computes and communicates."""
        kind = self.root.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())

    def group(self, name: str) -> ProcessGroup:
        """Return the group of this process in a one-dimensional mesh, by the name of the field."""
        mesh: DeviceMesh = getattr(self, name)
        return mesh.get_group()


def build_meshes(dims: ParallelDims, device_type: str) -> Meshes:
    """Return the groups for `dims`, which has to be resolved; every process calls this, after init_process_group.

    Raises ConfigError when the number of processes is another.
    """
    if not dist.is_initialized():
        raise ConfigError(
            f"parallel: {dims.describe()} needs a process group; start the program with torchrun --nproc-per-node and "
            f"enter areal.engine.train.processes.connected"
        )
    dims.resolved(dist.get_world_size())
    root = init_device_mesh(
        device_type,
        (dims.pp, dims.dp_replicate, dims.ranks_per_expert_shard, dims.expert_data_ranks, dims.cp, dims.tp),
        mesh_dim_names=("pp", "dp_replicate", "dp_shard_outer", "dp_shard_inner", "cp", "tp"),
    )
    data = root["dp_replicate", "dp_shard_outer", "dp_shard_inner"]._flatten("data")
    fsdp = root["dp_shard_outer", "dp_shard_inner", "cp"]._flatten("fsdp")
    expert_names = ("dp_shard_inner", "cp") if dims.etp == dims.tp else ("dp_shard_inner", "cp", "tp")
    ep = root[expert_names]._flatten("ep") if dims.ep > 1 else root["dp_shard_inner"]
    expert_fsdp = root["dp_shard_outer"]
    if dims.dp_replicate > 1:
        fsdp = DeviceMesh._concatenate([root["dp_replicate"], fsdp])
        expert_fsdp = root["dp_replicate", "dp_shard_outer"]
    return Meshes(
        root=root,
        pp=root["pp"],
        tp=root["tp"],
        cp=root["cp"],
        data=data,
        fsdp=fsdp,
        ep=ep,
        expert_fsdp=expert_fsdp,
    )
