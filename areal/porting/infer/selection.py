"""Which tokens attention is restricted to, where data decides: by an indexer of the layer, or of one before it.

An indexer is found by what its projections read, and judged by what it chooses: a hypothesis counts only if each query
of the traced rows sees exactly the tokens that it says. The names of modules are not looked at.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from areal.models.blocks.indexer import MIN_HEADS, TokenIndexer
from areal.models.blocks.selection import choose
from areal.porting import reference
from areal.porting.infer.capture import Other, Projection
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.scores import visible_keys
from areal.porting.infer.tensors import same
from areal.porting.records import FeatureEvidence, UnsupportedError
from areal.porting.spec import IndexerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.models.blocks.attention import PackedAttention
    from areal.porting.infer.operands import View
    from areal.porting.spec import NormSpec, RotarySpec


@dataclass(frozen=True, kw_only=True)
class SelectionFinding:
    """What restricts the attention of a layer; nothing, in most."""

    indexer: IndexerSpec | None = None
    shared: bool = False
    tensors: dict[str, Tensor]
    evidence: tuple[FeatureEvidence, ...] = ()
    pattern: Tensor
    """bool [B, H, T, T]: which keys are visible apart from the choice."""


@dataclass(frozen=True)
class _Key:
    """A projection of the input to one key, and the norm of it."""

    weight: Tensor
    norm: NormSpec
    tensors: dict[str, Tensor]
    values: Tensor
    """[B, T, D], normed."""


def depends_on_data(visible: Tensor) -> bool:
    """Return whether the visible keys [B, H, T, T] differ between rows, though not between heads: a choice."""
    by_row = visible[:, :1]
    return torch.equal(visible, by_row.expand_as(visible)) and not torch.equal(by_row, by_row[:1].expand_as(by_row))


def explain(
    view: View, visible: Tensor, narrow: Tensor | None, rotary: RotarySpec | None, used: set[int]
) -> SelectionFinding:
    """Explain which keys are visible, bool [B, H, T, T], beyond masks that are the same in all rows.

    narrow: the compressed queries [B, T, rank]; used: events that are known to be something else. Raises
    UnsupportedError for a choice that no indexer makes, and for an indexer that leaves nothing out in these rows.
    """
    if not depends_on_data(visible):
        if narrow is not None and any(_of_latent(view, narrow, used)):
            raise UnsupportedError(
                "a choice of tokens that leaves none out",
                where=view.name,
                detail="an indexer beside attention chooses all of the tokens that are looked at",
            )
        return SelectionFinding(tensors={}, pattern=visible)
    length = visible.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand_as(visible)
    top_k = int(visible.sum(-1).max())
    found = None if narrow is None else next(_indexers(view, visible[:, :1], narrow, rotary, used, top_k), None)
    if found is not None:
        spec, tensors = found
        detail = f"its choice is the traced one in all {visible.shape[0] * length} queries"
        value = f"{spec.top_k} tokens by {spec.num_heads} heads of {spec.head_dim}"
        evidence = FeatureEvidence(feature="attention.indexer", value=value, source="parity", detail=detail)
        return SelectionFinding(indexer=spec, tensors=tensors, evidence=(evidence,), pattern=causal)
    if _last_choice(view, visible):
        evidence = FeatureEvidence(
            feature="attention.shares_selection",
            value="True",
            source="parity",
            detail="each query sees what it saw in the last layer that chooses",
        )
        return SelectionFinding(shared=True, tensors={}, evidence=(evidence,), pattern=causal)
    raise UnsupportedError(
        "visibility that depends on the data or the head",
        where=view.name,
        detail="masks differ across rows, and neither an indexer of this layer nor one before chooses what is seen",
    )


def take_over(backend: PackedAttention, layer: int, visible: Tensor) -> None:
    """Let a backend choose what a capture saw, bool [B, H, T, T], as the layer did that this one takes it over from."""
    rows, _, length, _ = visible.shape
    # Scores of 1 for what was chosen, by keys of one dimension per position.
    query = visible[:, 0].flatten(0, 1).unsqueeze(1).float()
    keys = torch.eye(length).repeat(rows, 1)
    backend.select(layer, query, keys, torch.ones(rows * length, 1), count=int(visible.sum(-1).max()))


def _of_latent(view: View, narrow: Tensor, used: set[int]) -> Iterator[Projection]:
    """Yield the projections of the compressed queries that are no attention."""
    for number, event in enumerate(view.run.events):
        if isinstance(event, Projection) and number not in used and same(event.input, narrow):
            yield event


def _indexers(
    view: View, visible: Tensor, narrow: Tensor, rotary: RotarySpec | None, used: set[int], top_k: int
) -> Iterator[tuple[IndexerSpec, dict[str, Tensor]]]:
    """Yield the indexers, with their weights, that choose what is visible, bool [B, 1, T, T]."""
    run = view.run
    causal = torch.ones(run.length, run.length, dtype=torch.bool).tril()
    given = [
        event
        for number, event in enumerate(run.events)
        if isinstance(event, Projection) and number not in used and same(event.input, run.input)
    ]
    plain = [event for event in given if event.bias is None]
    for query, key, weight in itertools.product(_of_latent(view, narrow, used), _keys(view, given), plain):
        heads, width = weight.output.shape[-1], key.values.shape[-1]
        if query.bias is not None or query.output.shape[-1] != heads * width:
            continue
        dim = 0 if rotary is None else rotary.dim
        if dim > width or heads < MIN_HEADS:
            continue
        for interleaved in (False, True):
            spec = IndexerSpec(
                num_heads=heads, head_dim=width, top_k=top_k, norm_eps=key.norm.eps, interleaved=interleaved
            )
            tensors = {"q_proj.weight": query.weight, "weight_proj.weight": weight.weight, **key.tensors}
            if torch.equal(_choice(spec, tensors, view, narrow, rotary, causal), visible):
                yield spec, {f"indexer.{name}": tensor for name, tensor in tensors.items()}


def _keys(view: View, given: list[Projection]) -> Iterator[_Key]:
    """Yield the normed projections of the input."""
    for event in view.run.events:
        if not isinstance(event, Other):
            continue
        for source in given:
            if source.bias is not None or not same(event.input, source.output):
                continue
            try:
                norm = infer_norm(event.module, event.input, event.output, name=event.name)
            except UnsupportedError:
                continue
            if norm.spec.kind == "layer" and norm.spec.weight and norm.spec.bias and not norm.spec.offset:
                tensors = {f"k_norm.{name}": tensor for name, tensor in norm.tensors.items()}
                shape = (view.run.batch, view.run.length, -1)
                values = event.output.reshape(shape)
                yield _Key(source.weight, norm.spec, {"k_proj.weight": source.weight, **tensors}, values)


class _Recorder:
    """A backend that only keeps what an indexer asks for."""

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `SelectionBackend.select`."""
        del layer, count
        self.asked = query, key, weight


def _choice(
    spec: IndexerSpec,
    tensors: dict[str, Tensor],
    view: View,
    narrow: Tensor,
    rotary: RotarySpec | None,
    causal: Tensor,
) -> Tensor:
    """Return what an indexer chooses in the traced rows, bool [B, 1, T, T]."""
    batch, length = view.run.batch, view.run.length
    rope_dim = 0 if rotary is None else rotary.dim
    with torch.device("meta"):
        indexer = TokenIndexer(view.run.input.shape[-1], narrow.shape[-1], rope_dim=rope_dim, **vars(spec))
    indexer.load_state_dict(tensors, strict=True, assign=True)
    positions = torch.arange(length).repeat(batch)
    rotation = None if rotary is None else reference.rotary(rotary)(positions, torch.float32)
    recorder = _Recorder()
    backend: Any = recorder
    indexer(0, view.run.input.flatten(0, 1), narrow.reshape(batch * length, -1), rotation, backend)
    query, key, weight = (part.unflatten(0, (batch, length)) for part in recorder.asked)
    chosen = choose(query, key, weight, causal, spec.top_k)
    return causal.expand(batch, 1, length, length) if chosen is None else chosen


def _last_choice(view: View, visible: Tensor) -> bool:
    """Return whether the last choice before this layer in the traced forward is the same."""
    own = next(each.order for each in view.context.trace.softmaxes if each.module.startswith(view.name))
    earlier = [each for each in view.context.trace.softmaxes if each.order < own and each.scores.dim() == 4]
    for softmax in sorted(earlier, key=lambda each: -each.order):
        seen = visible_keys(softmax.scores[..., : visible.shape[-1]])
        if seen.shape[-2:] == visible.shape[-2:] and depends_on_data(seen):
            return torch.equal(seen[:, :1], visible[:, :1])
    return False
