"""Contracts of the two kinds of engine. Backends implement them; trainers and workflows know only these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from areal.api.generation import ModelRequest, ModelResponse
    from areal.api.records import PaddedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdateMeta:
    """How new weights reach an inference engine, and which version they are.

    Example: `WeightUpdateMeta(kind="memory", version=5, state_dict=model.state_dict())`.
    """

    kind: Literal["memory", "disk"]
    version: int
    """Version after the update; must be greater than the engine's current one."""
    path: Path | None = None
    """HF checkpoint folder, for kind="disk"."""
    state_dict: Mapping[str, Tensor] | None = None
    """Native (not HF) parameter names to tensors, for kind="memory"; copied, never kept."""

    def __post_init__(self) -> None:
        """Check that the carrier matches the kind."""
        if (self.kind == "disk") != (self.path is not None) or (self.kind == "memory") != (self.state_dict is not None):
            raise ValueError(
                f"weight update of kind {self.kind!r} needs exactly its own carrier (disk: path, memory: state_dict)"
            )


@runtime_checkable
class InferenceEngine(Protocol):
    """Generates tokens under a versioned policy. All methods are thread-safe; `agenerate` is awaited on one event loop.

    State: running or paused. While paused no token is produced; requests are accepted and wait. In-flight requests
    survive a weight update: their next tokens carry the new version.
    """

    @property
    def version(self) -> int:
        """Version of the weights that produce the next token."""
        ...

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Generate until a stop token, the budget, or an abort (then the partial output is returned with
        StopReason.ABORT).

        Raises FaultError(DATA_INVALID) when the prompt is empty or leaves no room in the context.
        """
        ...

    def pause(self) -> None:
        """Return once no token is being computed; until `resume` none will be. Idempotent."""
        ...

    def resume(self) -> None:
        """Continue after `pause`. Idempotent."""
        ...

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        """End the given requests (all when None) with what they have so far; return how many were ended."""
        ...

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        """Switch to new weights between two tokens, all or nothing. Raises EngineError when names, shapes or versions
        do not fit."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counters since start, e.g. {"generated_tokens": 5120.0, "prefill_tokens": 640.0, "decode_steps": 210.0}."""
        ...

    def close(self) -> None:
        """End all requests and free the weights. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A scalar that can be differentiated, and plain numbers for the log."""

    loss: Tensor
    """0-dim, connected to the graph even when every token is masked."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Name to 0-dim detached tensor. Each is a *partial sum* already divided by the global denominator, so that adding
    the values of all micro-batches gives the value of the batch; keys ending in "_max" combine by maximum, "_min" by
    minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStats:
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    """L2 norm before clipping; NaN or inf when the step was skipped."""
    learning_rate: float
    stepped: bool
    """False when gradients were not finite and the step was skipped."""
    num_micro_batches: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class LossFunction(Protocol):
    """What a training engine calls on each micro-batch; global denominators are the caller's business."""

    def __call__(self, scores: Tensor, entropy: Tensor | None, micro_batch: PaddedBatch, /) -> LossOutput:
        """Loss of one micro-batch.

        scores: log-probabilities float32 [S, L] with gradient; with a value head, values [S, L]. entropy: of the full
        vocabulary, likewise, or None when not asked for.
        """
        ...


@runtime_checkable
class TrainEngine(Protocol):
    """Owns a model and its optimizer. Every method takes a PaddedBatch and packs it into micro-batches by token budget
    itself.

    Split invariance: the result of `train_batch` does not depend on how the batch is cut into micro-batches.
    """

    @property
    def version(self) -> int:
        """Number of weight versions published so far."""
        ...

    def set_version(self, version: int) -> None:
        """Record the version that the next published weights have."""
        ...

    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """Log-probability of every token given its prefix, float32 [S, L], without gradient; 0 at t=0 and on padding.

        only_masked: spare tokens with loss_mask 0, which are then 0 in the result.
        """
        ...

    def forward_values(self, batch: PaddedBatch) -> Tensor:
        """Critic value of every token, float32 [S, L], without gradient. Raises EngineError without a value head."""
        ...

    def train_batch(
        self,
        batch: PaddedBatch,
        loss_fn: LossFunction,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> TrainStats:
        """Forward, backward over all micro-batches, clip, step. A non-finite gradient skips the step and reports it."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Native parameter names to live tensors (not copies): what `WeightUpdateMeta(kind="memory")` carries."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-exact continuation needs: parameters, optimizer, scheduler, counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...

    def save_pretrained(self, path: Path) -> None:
        """Write a Hugging Face checkpoint folder (config.json and safetensors)."""
        ...
