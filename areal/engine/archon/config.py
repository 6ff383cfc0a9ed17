"""Configuration of the training engine over many processes, beside `areal.engine.train.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config
from areal.engine.archon.schedules import pipeline_layout
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
    offload_parameters: bool = False
    """Between their uses, parameters, gradients and moments live in host memory (FSDP2's CPU offload), and are updated
    there: memory for little more than activations, at the price of copying every parameter several times per
    micro-batch. Needs an accelerator, and a model that was loaded as a whole."""
    keep_groups: bool = True
    """All samples of a prompt go to one rank, where their common prompt is computed once; False balances ranks better
    when groups are large."""
    pp_schedule: Literal["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = "1F1B"
    """Order of passes in a pipeline, ignored when parallel.pp is 1. GPipe holds the activations of all micro-batches,
    1F1B of as many as there are ranks. The others hold several pieces per rank and wait less; ZeroBubble fills what is
    left with gradients of parameters, keeps them gathered for a whole step, and takes neither compile nor
    gradient_checkpointing. `areal plan` prints the idle share of each."""
    pp_pieces: int = 2
    """Pieces of the model on each rank of a pipeline, at least 1, with an interleaved schedule: more wait less and send
    more. 1F1B and GPipe have one, ZBVZeroBubble two."""

    def __post_init__(self) -> None:
        """Refuse a number of pieces that no pipeline has."""
        pipeline_layout(self.pp_schedule, max(1, self.parallel.pp), self.pp_pieces)
