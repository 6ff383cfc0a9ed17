"""Configures the training engine: its optimizer, and how a model is split over processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, number
from areal.engine.hf.config import LoraConfig
from areal.models.parallel.dims import ParallelDims
from areal.models.parallel.schedules import pipeline_layout


@dataclass(frozen=True, kw_only=True)
class TrainEngineConfig(Config):
    """One trained model (actor or critic) and how it is updated."""

    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """How parameters are updated. muon: matrices between embedding and head, those of experts too, by orthogonalised
    momentum (half the state of AdamW), all others by AdamW; updates are scaled like those of AdamW, so the same lr
    fits. sgd: with momentum."""
    lr: float = number(1e-5, at_least=0)
    """Peak learning rate."""
    weight_decay: float = number(0.0, at_least=0)
    """Decoupled weight decay, for sgd part of the gradient; not applied to norms, biases and other 1-D parameters."""
    momentum: float = number(0.95, at_least=0, below=1)
    """Of muon and sgd, 0 .. 1 (excluded); adamw has beta1."""
    beta1: float = number(0.9, at_least=0, below=1)
    """AdamW first-moment decay."""
    beta2: float = number(0.95, at_least=0, below=1)
    """AdamW second-moment decay."""
    adam_eps: float = number(1e-8, above=0)
    """AdamW denominator offset."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Shape of the learning rate after warm-up; cosine and linear end at min_lr_ratio * lr after the last step."""
    warmup_steps: int = number(0, at_least=0)
    """Optimizer steps of linear warm-up from 0."""
    min_lr_ratio: float = number(0.0, at_least=0, at_most=1)
    """Final learning rate as a fraction of lr; ignored by the constant schedule."""
    max_grad_norm: float = number(1.0, at_least=0)
    """Gradients are scaled down to this L2 norm; 0 turns clipping off."""
    max_tokens_per_micro_batch: int = number(16384, at_least=1)
    """Tokens of one forward/backward; a longer single sequence still gets a micro-batch of its own. Sequences count in
    full, also where a prompt they share is computed once."""
    logprob_chunk_size: int = number(1024, at_least=1)
    """Tokens per slice of the vocabulary projection; bounds the memory of logits at chunk * vocab_size."""
    max_skipped_steps: int = number(10, at_least=0)
    """Consecutive optimizer steps that may be skipped for non-finite gradients before the run stops."""
    offload_optimizer: bool = False
    """Moments and float32 masters live in host memory and are updated there: 8 to 12 bytes less per parameter on the
    device, for a copy of gradients and weights in every step and a slower update. Does not change results beyond
    rounding, nor what checkpoints hold."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Parameter dtype; bfloat16 keeps float32 master weights in the optimizer, float64 is for numerical checks."""
    device: str = "auto"
    """"auto" takes an accelerator when present, else "cpu"."""
    gradient_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    lora: LoraConfig | None = None
    """Train low-rank adapters and leave the model frozen; null trains the model."""


@dataclass(frozen=True, kw_only=True)
class ArchonConfig(Config):
    """How one trained model is split over processes. None of it changes results beyond rounding."""

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
        """Check that a pipeline with this number of pieces exists."""
        super().__post_init__()
        pipeline_layout(self.pp_schedule, max(1, self.parallel.pp), self.pp_pieces)
