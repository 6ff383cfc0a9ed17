"""Holds the number of ranks along each way of splitting a model, and checks which combinations exist. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from areal.api import Config, ConfigError

REST: Final = -1
"""As `dp_shard`: all ranks that the other dimensions leave over."""


@dataclass(frozen=True, kw_only=True)
class ParallelDims(Config):
    """Numbers of ranks; 1 means not split. The number of processes is pp * dp_replicate * dp_shard * cp * tp.

    Experts are split over ranks of other dimensions, so `ep` and `etp` do not count: with etp = tp over dp_shard and
    cp, with etp = 1 over dp_shard, cp and tp.
    """

    dp_replicate: int = 1
    """Copies of the sharded model, each with rows of its own (HSDP): gradients are summed over them."""
    dp_shard: int = 1
    """Ranks that hold a part of every parameter and gather it to compute (FSDP2), each with rows of its own; -1 for all
    ranks that are left over."""
    tp: int = 1
    """Ranks that split matrices by heads and features (tensor parallelism); innermost, so neighbours on one node."""
    cp: int = 1
    """Ranks that split the tokens of a micro-batch and trade them for heads in attention (Ulysses)."""
    ep: int = 1
    """Ranks that hold different experts of a mixture and exchange tokens."""
    etp: int = 1
    """Tensor parallelism inside experts when ep > 1: 1 or tp. Without ep, experts are split like all other matrices."""
    pp: int = 1
    """Ranks that hold different layers (pipeline parallelism)."""

    def __post_init__(self) -> None:
        """Refuse sizes that no arrangement of ranks has."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1 and not (field.name == "dp_shard" and value == REST):
                raise ConfigError(f"parallel.{field.name} is {value}, expected at least 1")
        if self.etp not in (1, self.tp):
            raise ConfigError(f"parallel.etp is {self.etp}, expected 1 or tp ({self.tp})")
        if self.etp > 1 and self.ep == 1:
            raise ConfigError(
                f"parallel.etp is {self.etp} and ep is 1: without expert parallelism experts are split over tp as all "
                f"matrices are; leave etp at 1"
            )
        if self.dp_shard != REST:
            self._check_experts()

    @property
    def world_size(self) -> int:
        """Number of processes."""
        if self.dp_shard == REST:
            raise ConfigError("parallel.dp_shard is -1, which means nothing before the number of processes is known")
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def num_data_ranks(self) -> int:
        """How many parts the rows of a batch are divided into."""
        return self.dp_replicate * self.dp_shard

    @property
    def ranks_per_expert_shard(self) -> int:
        """Ranks of dp_shard that hold the same experts, over which their parameters are sharded once more."""
        return self.dp_shard // self.expert_data_ranks

    @property
    def expert_data_ranks(self) -> int:
        """How many ranks of dp_shard the experts of a layer are split over."""
        return self.ep // self._experts_beside_data

    @property
    def is_single(self) -> bool:
        """Whether there is one process."""
        return self.dp_shard != REST and self.world_size == 1

    def resolved(self, world_size: int) -> ParallelDims:
        """With dp_shard filled in. Raises ConfigError when the sizes do not multiply to `world_size`."""
        others = self.pp * self.dp_replicate * self.cp * self.tp
        dims = replace(self, dp_shard=max(1, world_size // others)) if self.dp_shard == REST else self
        if dims.world_size != world_size:
            raise ConfigError(
                f"parallel: {dims.describe(all_sizes=True)} need {dims.world_size} processes and there are "
                f"{world_size}; pp * dp_replicate * dp_shard * cp * tp has to be {world_size}"
            )
        return dims

    def describe(self, *, all_sizes: bool = False) -> str:
        """Return the sizes above 1, outermost first, e.g. "pp=2 dp_shard=4 tp=2"; "one process" when there are none."""
        order = ("pp", "dp_replicate", "dp_shard", "cp", "tp", *(("ep", "etp") if not all_sizes else ()))
        shown = [f"{name}={getattr(self, name)}" for name in order if all_sizes or getattr(self, name) != 1]
        return " ".join(shown) or "one process"

    @property
    def _experts_beside_data(self) -> int:
        """Ranks beside dp_shard that experts are split over."""
        if self.ep == 1:
            return 1
        return self.cp if self.etp == self.tp else self.cp * self.tp

    def _check_experts(self) -> None:
        beside = self._experts_beside_data
        if self.ep % beside or self.dp_shard % (self.ep // math.gcd(self.ep, beside)):
            inner = "cp" if self.etp == self.tp else "cp * tp"
            raise ConfigError(
                f"parallel.ep is {self.ep}: with etp={self.etp} it has to be a multiple of {inner} ({beside}) and a "
                f"divisor of dp_shard * {inner} ({self.dp_shard * beside})"
            )
