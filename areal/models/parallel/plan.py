"""What is done to a model so that many processes share it: sizes, the groups of processes, and how blocks are run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from areal.models.parallel.dims import ParallelDims

if TYPE_CHECKING:
    from areal.models.parallel.meshes import Meshes


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """Everything that `shard_model` applies, in the order TP, EP, CP, activation checkpointing, compile, FSDP2."""

    dims: ParallelDims = field(default_factory=ParallelDims)
    """How many ranks along each way; resolved (no -1)."""
    meshes: Meshes | None = None
    """The groups of processes, from `areal.models.parallel.meshes.build_meshes`; needed when anything is split."""
    sequence_parallel: bool = False
    """Between attention and feed-forward layers, each rank of tp keeps its part of the tokens only. Exact; it costs
    no communication and saves tp-fold of those activations. Ignored where tp is 1."""
    activation_checkpointing: bool = False
    """Blocks drop their activations and recompute them in the backward pass."""
    compile: bool = False
    """Blocks are compiled by torch.compile, one by one."""
    param_dtype: Literal["bfloat16"] | None = None
    """What parameters are rounded to for computing, where they are kept in float32; None computes in their own."""
    reshard_after_forward: bool = True
    """Blocks give back gathered parameters after the forward pass and gather them again for the backward pass: less
    memory, half as much communication again."""

    offload_parameters: bool = False
    """Shards, their gradients and what is updated live in host memory; parameters are copied when they are gathered."""

    @property
    def shards_data(self) -> bool:
        """Whether FSDP2 holds the parameters: for data and context parallelism, for rounding, and in host memory."""
        dims = self.dims
        splits = dims.dp_replicate * dims.dp_shard * dims.cp > 1 or dims.ep > 1
        return splits or self.param_dtype is not None or self.offload_parameters

    @property
    def changes_anything(self) -> bool:
        """Whether a model is different afterwards."""
        return not self.dims.is_single or self.shards_data or self.activation_checkpointing or self.compile


class Shard(StrEnum):
    """How tensor parallelism splits a parameter over ranks; a parameter without an entry is replicated."""

    COLUMN = "column"
    """By output features: dimension 0 of a matrix and of its bias."""
    ROW = "row"
    """By input features: dimension 1 of a matrix; the outputs of all ranks are summed."""
    EXPERT_COLUMN = "expert_column"
    """As COLUMN, for experts stacked along dimension 0: dimension 1."""
    EXPERT_ROW = "expert_row"
    """As ROW, for stacked experts: dimension 2."""
