"""What the steps of an analysis hand to each other, and how they say that something cannot be explained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from areal.porting.spec import ArchitectureSpec

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FeatureEvidence:
    """One line of the checklist: what was found and how it is known."""

    feature: str
    """E.g. "attention.query_norm"."""
    value: str
    source: str
    """"config", "parameters", "source", "probe" or "parity"."""
    detail: str
    """Config field, module or parameter name, file:line, or what was measured."""
    margin: float | None = None
    """Error of the best rejected alternative over the tolerance; None where there was none."""


class UnsupportedError(Exception):
    """The architecture does something that no spec can say. Never believed away: the family is refused."""

    def __init__(self, feature: str, *, where: str, detail: str) -> None:
        """feature: what is missing, in words ("hyper-connections"); where: module, config field or file:line."""
        super().__init__(f"{feature} at {where}: {detail}")
        self.feature = feature
        self.where = where
        self.detail = detail


class SubjectError(Exception):
    """The source cannot be analysed at all: unknown type, no causal model, does not build. Says what to do."""


class ArchitectureRefusedError(SubjectError):
    """A whole architecture that no family can say, as far as its logits show: the feature, the place, and the
    evidence."""

    def __init__(self, feature: str, *, where: str, detail: str) -> None:
        super().__init__(f"{feature} at {where}: {detail}")
        self.feature = feature
        self.where = where
        self.detail = detail


class AnalysisError(Exception):
    """The analysis itself failed: a bug of areal, not of the architecture or of the call. Says in which phase, on which
    config, and what was found until then."""

    def __init__(self, error: Exception, *, phase: str, config: Mapping[str, Any], evidence: list[Any]) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.phase = phase
        self.config = dict(config)
        self.evidence = evidence


class ReportError(ValueError):
    """A report that no source can be written from: where in it, and what to do."""

    def __init__(self, message: str, *, where: str = "architecture report", fix: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.fix = fix or "analyse again with the version of areal in this repository"


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module in a traced forward."""

    name: str
    """Qualified name, as in `named_modules()`."""
    order: int
    """Calls are numbered by when they *begin*."""
    input: Tensor
    """First tensor argument (positional, else `hidden_states`, else the first keyword that is a tensor)."""
    output: Tensor
    """First tensor of what it returned."""
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Every tensor argument by name: "0" for the first positional one, "position_embeddings.1" for the second of a
    tuple."""
    outputs: tuple[Tensor, ...] = ()
    """Every tensor that it returned, in order (a router: logits, weights, indices)."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """All that it was called with, by position and by name; tensors are copies."""

    def place_of(self, given: Tensor) -> int:
        """Return which of its outputs another module was given, counted from 1; 0 for none of them."""
        places = (place for place, each in enumerate(self.outputs, 1) if each.dtype == given.dtype)
        return next((place for place in places if self.outputs[place - 1].equal(given)), 0)


@dataclass(frozen=True)
class SoftmaxCall:
    """One softmax over keys in a traced forward (eager attention), or one scaled_dot_product_attention."""

    module: str
    """Innermost module that was running."""
    order: int
    scores: Tensor
    """What went into the softmax, mask and biases included: [B, H, Q, K] (K may have one column more: a sink)."""


@dataclass(frozen=True)
class Trace:
    """One forward of an instance over `tokens`, eager attention, float32, no gradients."""

    tokens: Tensor
    """int64 [B, T]."""
    logits: Tensor
    """[B, T, vocab]."""
    calls: Mapping[str, tuple[ModuleCall, ...]]
    """Module name to its calls in order; modules that were not called are missing."""
    softmaxes: tuple[SoftmaxCall, ...]


@dataclass(frozen=True, kw_only=True)
class Inferred(Generic[T]):
    """Part of a spec that reproduces what the traced module did, within tolerance."""

    spec: T
    tensors: Mapping[str, Tensor]
    """Canonical name, relative to the part ("q_proj.weight"), to the value that the instance has for it."""
    evidence: tuple[FeatureEvidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerRoles:
    """Where the parts of one block are, by qualified module name."""

    block: str
    attention: str | None
    """None in a layer whose only part is a feed-forward layer."""
    feed_forward: str | None
    """Module that is called with the (normed) hidden states; "" where the block itself holds the two matrices; None in
    a layer whose only part is a mixer."""
    norms: tuple[str, ...]
    """Norms that the block calls itself, in calling order (those inside attention and feed_forward are not here)."""
    shared_feed_forward: str | None = None
    """A second module with the same input as `feed_forward`, whose output is added to its: shared experts that stand
    beside the module of the routed ones (granitemoeshared)."""
    beside: str | None = None
    """A second module that mixes tokens, beside attention with a softmax (Falcon-H1)."""
    experts_beside: tuple[str, str] | None = None
    """Router and experts beside the feed-forward layer, called by the block itself (Gemma 4)."""
    layer_input: tuple[str, str] | None = None
    """The two matrices that add what the layer gets of its tokens, behind the feed-forward layer (Gemma 4)."""


@dataclass(frozen=True, kw_only=True)
class ModelRoles:
    """Where the parts of a model are, by qualified module name."""

    embedding: str
    layers: tuple[LayerRoles, ...]
    final_norm: str | None
    head: str
    embed_positions: str | None = None
    embedding_norm: str | None = None
    layer_embedding: str | None = None
    """A second table, of which each layer gets its part of a token's row (Gemma 4)."""
    head_dense: str | None = None
    """A matrix between the final norm and the head."""
    head_norm: str | None = None
    """The norm behind it."""


@dataclass(frozen=True, kw_only=True)
class LayerContext:
    """What the inference of an attention or a feed-forward layer gets."""

    model: nn.Module
    module: nn.Module
    name: str
    """Of `module`."""
    layer: int
    num_layers: int
    config: Mapping[str, Any]
    """`config.to_dict()` of the instance."""
    trace: Trace
    shared: str | None = None
    """For a feed-forward layer: `LayerRoles.shared_feed_forward`."""
    end: str | None = None
    """A norm inside `module` that gives its output, but belongs to the block: what it reads is the layer's output."""

    calls: Callable[[str, Tensor], ModuleCall | None] | None = None
    """The call of a mixer, by name, in a forward over tokens [B, T], where that may be asked."""

    @property
    def call(self) -> ModuleCall:
        """Its call in the trace."""
        return self.trace.calls[self.name][0]


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What one instance computes, proven by parity of its logits."""

    spec: ArchitectureSpec
    weights: Mapping[str, Tensor]
    """Canonical state dict of the reference model."""
    roles: ModelRoles
    evidence: tuple[FeatureEvidence, ...]
    parity: float
    """max |difference of logits|."""
    tolerance: float
    notes: tuple[str, ...] = field(default=())
