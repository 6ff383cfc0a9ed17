"""Configuration of the training engine over many processes, beside `areal.engine.train.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, ConfigError
from areal.models.parallel.dims import ParallelDims


@dataclass(frozen=True, kw_only=True)
class ArchonConfig(Config):
    """How one trained model is spread over processes. None of it changes results beyond rounding."""

    parallel: ParallelDims = field(default_factory=ParallelDims)
    """Numbers of ranks along each way of splitting."""
    sequence_parallel: bool = False
    """Each rank of tp keeps only its part of the tokens between attention and feed-forward layers: tp-fold less memory
    for those activations."""
    compile: bool = False
    """Compile blocks with torch.compile; pays off on accelerators, and costs minutes at the first steps."""
    reshard_after_forward: bool = True
    """Blocks give back gathered parameters between forward and backward pass: less memory, half as much communication
    again."""
    keep_groups: bool = True
    """All samples of a prompt go to one rank, where their common prompt is computed once; False balances ranks better
    when groups are large."""
    pp_schedule: Literal["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = "1F1B"
    """Order of forward and backward passes in a pipeline; ignored when parallel.pp is 1."""
    pp_stages_per_rank: int = 1
    """Pieces of the model on each rank of a pipeline; 1 for 1F1B and GPipe, 2 for ZBVZeroBubble, at least 2 for the
    interleaved schedules."""

    def __post_init__(self) -> None:
        """Refuse schedules without their stages."""
        single, stages = self.pp_schedule in ("1F1B", "GPipe"), self.pp_stages_per_rank
        fits = stages == 1 if single else stages == 2 if self.pp_schedule == "ZBVZeroBubble" else stages >= 2
        if self.parallel.pp > 1 and not fits:
            raise ConfigError(
                f"pp_stages_per_rank is {stages}, but schedule {self.pp_schedule} has "
                f"{'1' if single else 'exactly 2' if self.pp_schedule == 'ZBVZeroBubble' else 'at least 2'} per rank"
            )
