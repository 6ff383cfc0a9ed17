"""Configuration of the training engine over many processes, beside `areal.engine.train.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config
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
    pp_schedule: Literal["1F1B", "GPipe"] = "1F1B"
    """Order of passes in a pipeline; 1F1B holds fewer activations. Ignored when parallel.pp is 1."""
