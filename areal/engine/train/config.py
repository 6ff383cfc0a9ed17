"""Configures the training engine: its optimizer, and how a model is split over processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, ConfigError
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
    lr: float = 1e-5
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay, for sgd part of the gradient; not applied to norms, biases and other 1-D parameters."""
    momentum: float = 0.95
    """Of muon and sgd, 0 .. 1 (excluded); adamw has beta1."""
    beta1: float = 0.9
    """AdamW first-moment decay."""
    beta2: float = 0.95
    """AdamW second-moment decay."""
    adam_eps: float = 1e-8
    """AdamW denominator offset."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Shape of the learning rate after warm-up; cosine and linear end at min_lr_ratio * lr after the last step."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up from 0."""
    min_lr_ratio: float = 0.0
    """Final learning rate as a fraction of lr; ignored by the constant schedule."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm; 0 turns clipping off."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens of one forward/backward; a longer single sequence still gets a micro-batch of its own. Sequences count in
    full, also where a prompt they share is computed once."""
    logprob_chunk_size: int = 1024
    """Tokens per slice of the vocabulary projection; bounds the memory of logits at chunk * vocab_size."""
    max_skipped_steps: int = 10
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

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        if self.lr < 0:
            raise ConfigError(f"lr is {self.lr}, expected >= 0")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.adam_eps > 0):
            raise ConfigError(
                f"beta1 is {self.beta1}, beta2 {self.beta2} and adam_eps {self.adam_eps}; expected 0 <= beta < 1 and "
                f"adam_eps > 0"
            )
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum is {self.momentum}, expected 0 .. 1 (excluded)")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ConfigError(f"min_lr_ratio is {self.min_lr_ratio}, expected 0 .. 1")
        for name in ("max_tokens_per_micro_batch", "logprob_chunk_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("warmup_steps", "max_grad_norm", "max_skipped_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected >= 0")


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
        """Refuse a number of pieces that no pipeline has."""
        pipeline_layout(self.pp_schedule, max(1, self.parallel.pp), self.pp_pieces)
