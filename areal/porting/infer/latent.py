"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values out of one narrow, normed vector.

Of each head, elements that come from the expanding projection are the part without positions; those that come straight
from the compressing projection, the same for all heads, are the part with positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.models.blocks.rotary import rotate, scale_query
from areal.porting import reference
from areal.porting.infer import output, scores, selection
from areal.porting.infer.capture import Other, Projection
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.operands import AttentionHypothesis
from areal.porting.infer.rotary import explain_turning
from areal.porting.infer.sources import Match, at_start, columns, match, rows
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import LatentAttentionSpec, NormSpec

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.operands import View
    from areal.porting.infer.sources import Source
    from areal.porting.spec import RotarySpec


@dataclass(frozen=True)
class Latent:
    """A narrow vector that a projection expands."""

    rank: int
    norm: Inferred[NormSpec] | None
    scale: float
    """Factor between norm and projection."""
    source: Match
    """Of its elements with rows of the compressing projection."""


def is_latent(view: View, value: Source) -> bool:
    """Return whether values are expanded from something narrower than the layer's input."""
    event = view.run.events[value.match.events()[0]]
    assert isinstance(event, Projection)
    return not reads_input(view, event)


def reads_input(view: View, projection: Projection) -> bool:
    """Return whether the projection is applied to the layer's input itself."""
    given = view.run.input
    if projection.input.numel() != given.numel():
        return False
    return torch.allclose(projection.input.flatten(), given.flatten(), rtol=1e-6, atol=1e-7)


def infer(view: View, query: Source, key: Source, value: Source) -> AttentionHypothesis:
    """Explain the module as latent attention. Raises UnsupportedError where something does not fit."""
    for part, source in (("queries", query), ("keys", key), ("values", value)):
        if source.norm is not None or source.clip is not None:
            raise UnsupportedError(f"a norm or clamp of {part} in latent attention", where=view.name, detail="per head")
    expand = _only_event(view, value.match, "values")
    nope, rope, compress = _split(view, key, expand)
    start = torch.cat((rope, nope))
    before = {part: source.before_rotary(view.run)[..., start] for part, source in (("q", query), ("k", key))}
    after = {"q": view.operands.query[..., start], "k": view.operands.key[..., start]}
    turning = explain_turning(before, after, view)
    # The order of the dimensions with positions, which the rotation may not leave.
    order = turning.order[: len(rope)]
    if sorted(order.tolist()) != list(range(len(rope))):
        raise UnsupportedError(
            "rotation of expanded keys", where=view.name, detail="dimensions of the latent part turn with positions"
        )
    rope = rope[order]
    expanded = _latent(view, expand, compress)
    # The narrow vector that queries are expanded from; None if they are projections of the input.
    event = _only_event(view, query.match, "queries")
    traced = view.run.events[event]
    assert isinstance(traced, Projection)
    compressed = None if reads_input(view, traced) else _latent(view, event, None)
    hints = scores.numbers_of(view.context.model.get_submodule(view.name), view.context.config)
    visible = scores.visible_keys(view.operands.scores[..., : view.run.length])
    chosen = selection.explain(
        view, visible, _narrow(view, event, compressed), turning.rotary, _events(query, key, value)
    )
    window, chunk = scores.window_and_chunk(chosen.pattern, where=view.name)
    final = torch.cat((order, torch.arange(len(rope), len(start))))
    product = _products(view, before["q"][..., final], before["k"][..., final], turning.rotary)
    rule = scores.explain_scores(
        product, view.operands.scores, visible, hints=[len(start) ** -0.5, *hints], where=view.name
    )
    if rule.alibi is not None:
        raise UnsupportedError("ALiBi in latent attention", where=view.name, detail=f"factor {rule.alibi:g}")
    after_softmax = output.explain(view, view.operands, torch.arange(query.heads))
    if after_softmax.sinks is not None or view.operands.scores.shape[-1] > view.run.length:
        raise UnsupportedError("sinks in latent attention", where=view.name, detail="a key without a token")
    if after_softmax.norm is not None or after_softmax.function != "sigmoid" or "gate_bias" in after_softmax.tensors:
        detail = "attended values are normed together, or gated by something else than a plain sigmoid"
        raise UnsupportedError("a norm or another gate in latent attention", where=view.name, detail=detail)
    tensors = dict(after_softmax.tensors)
    tensors |= _query_tensors(view, query, torch.cat((nope, rope)), compressed)
    tensors |= _key_value_tensors(view, key, value, nope, rope, expanded)
    tensors |= chosen.tensors
    assert expanded.norm is not None
    spec = LatentAttentionSpec(
        num_heads=query.heads,
        query_rank=None if compressed is None else compressed.rank,
        kv_rank=expanded.rank,
        nope_dim=len(nope),
        rope_dim=len(rope),
        value_dim=value.ids().shape[1],
        query_norm=None if compressed is None or compressed.norm is None else compressed.norm.spec,
        kv_norm=expanded.norm.spec,
        query_bias="q_proj.bias" in tensors or "q_a_proj.bias" in tensors,
        kv_bias="kv_a_proj.bias" in tensors,
        output_bias="o_proj.bias" in tensors,
        scale=rule.scale,
        softcap=rule.softcap,
        query_latent_scale=1.0 if compressed is None else scores.snap(compressed.scale, hints),
        kv_latent_scale=scores.snap(expanded.scale, hints),
        gate=after_softmax.gate,
        indexer=chosen.indexer,
        shares_selection=chosen.shared,
    )
    ranks = f"keys and values of rank {spec.kv_rank}, queries of rank {spec.query_rank or 'full'}"
    detail = f"values are rows of {_projection(view, expand).name}"
    latent = FeatureEvidence(feature="attention.latent", value=ranks, source="probe", detail=detail)
    evidence = (latent, rule.evidence(), *turning.evidence, *chosen.evidence)
    return AttentionHypothesis(
        attention=spec, rotary=turning.rotary, window=window, chunk=chunk, tensors=tensors, evidence=evidence
    )


def _narrow(view: View, event: int, compressed: Latent | None) -> Tensor | None:
    """Return the compressed queries [B, T, rank], as what expands them gets them."""
    traced = view.run.events[event]
    assert isinstance(traced, Projection)
    return None if compressed is None else traced.input.reshape(view.run.batch, view.run.length, -1)


def _events(*sources: Source) -> set[int]:
    """Return the projections that queries, keys and values come from."""
    return {event for source in sources for event in source.match.events()}


def _products(view: View, query: Tensor, key: Tensor, rotary: RotarySpec | None) -> Tensor:
    """Return the query-key products [B, H, T, T] of heads [B, T, H, D] whose rotated dimensions stand first."""
    batch, length = view.run.batch, view.run.length
    positions = torch.arange(length).repeat(batch)
    rotation = None if rotary is None else reference.rotary(rotary)(positions, torch.float32)
    query, key = (rotate(heads.flatten(0, 1), rotation) for heads in (query, key))
    turned = [heads.unflatten(0, (batch, length)) for heads in (scale_query(query, rotation), key)]
    return torch.einsum("bqhd,bkhd->bhqk", *turned)


def _projection(view: View, event: int) -> Projection:
    projection = view.probe.events[event]
    assert isinstance(projection, Projection)
    return projection


def _only_event(view: View, found: Match, part: str) -> int:
    events = found.events()
    if len(events) != 1:
        names = ", ".join(_projection(view, event).name for event in events)
        raise UnsupportedError(f"{part} of latent attention from several projections", where=view.name, detail=names)
    return events[0]


def _split(view: View, key: Source, expand: int) -> tuple[Tensor, Tensor, int]:
    """Return the dimensions of a head without and with positions, each in the order of their rows; the compressing
    projection."""
    event = key.match.event.view(key.heads, -1)
    column = key.match.column.view(key.heads, -1)
    expanded = event[0] == expand
    others = sorted(set(event[0][~expanded].tolist()))
    uniform = bool((event == event[0]).all()) and bool((column == column[0])[:, ~expanded].all())
    if not uniform or len(others) > 1:
        raise UnsupportedError(
            "latent attention with other shared parts",
            where=view.name,
            detail="keys of heads share dimensions unevenly",
        )
    nope, rope = expanded.nonzero().flatten(), (~expanded).nonzero().flatten()
    if not others:
        raise UnsupportedError(
            "latent attention without shared rotated keys", where=view.name, detail="all of each key is expanded"
        )
    return nope[column[0][nope].argsort()], rope[column[0][rope].argsort()], others[0]


def _latent(view: View, event: int, compress: int | None) -> Latent:
    """Return where the input of a projection comes from. compress: the projection that it has to be."""
    projection = _projection(view, event)
    flat = at_start(projection.input, view.probe)
    assert flat is not None
    rank = flat.shape[1]
    normed = match(flat, columns(view.probe, (Other,)))
    norm, scale, compressed = None, 1.0, flat
    if normed.found and len(normed.events()) == 1 and torch.equal(normed.column, torch.arange(rank)):
        call, traced = view.probe.events[normed.events()[0]], view.run.events[normed.events()[0]]
        assert isinstance(call, Other)
        assert isinstance(traced, Other)
        norm = infer_norm(call.module, traced.input, traced.output, name=call.name)
        scale = float(normed.factor.mean())
        given = at_start(call.input, view.probe)
        assert given is not None
        compressed = given
    source = match(compressed, columns(view.probe))
    if not source.found or not reads_input(view, view.run.events[source.events()[0]]):  # type: ignore[arg-type]  # matches are projections
        raise UnsupportedError(
            "a compressed vector that is not a normed projection of the input",
            where=projection.name,
            detail="its input",
        )
    if compress is not None and (norm is None or source.events() != [compress]):
        raise UnsupportedError(
            "compressed keys and values without a norm, or beside the rotated keys",
            where=projection.name,
            detail="expected [latent; rotated keys] out of one projection, and a norm of the latent part",
        )
    return Latent(rank, norm, scale, source)


def _query_tensors(view: View, query: Source, dims: Tensor, compressed: Latent | None) -> dict[str, Tensor]:
    weight, bias = rows(view.probe, query.match)
    weight = weight.unflatten(0, (query.heads, -1))[:, dims].flatten(0, 1).contiguous()
    if bias is not None:
        bias = bias.unflatten(0, (query.heads, -1))[:, dims].flatten()
    if compressed is None:
        return {"q_proj.weight": weight} | ({} if bias is None else {"q_proj.bias": bias})
    if bias is not None:
        raise UnsupportedError("a bias of expanded queries", where=view.name, detail="q_b_proj")
    first, first_bias = rows(view.probe, compressed.source)
    tensors = {"q_a_proj.weight": first, "q_b_proj.weight": weight}
    tensors |= {} if first_bias is None else {"q_a_proj.bias": first_bias}
    norm = {} if compressed.norm is None else compressed.norm.tensors
    return tensors | {f"q_a_norm.{kind}": tensor for kind, tensor in norm.items()}


def _key_value_tensors(
    view: View, key: Source, value: Source, nope: Tensor, rope: Tensor, expanded: Latent
) -> dict[str, Tensor]:
    def part(source: Match, heads: int, dims: Tensor | slice, chosen: slice) -> Match:
        pick = [tensor.view(heads, -1)[chosen][:, dims].flatten() for tensor in vars(source).values()]
        return Match(*pick)

    everything = slice(None)
    up_key, up_bias = rows(view.probe, part(key.match, key.heads, nope, everything))
    up_value, value_bias = rows(view.probe, part(value.match, value.heads, everything, everything))
    if up_bias is not None or value_bias is not None:
        raise UnsupportedError("a bias of expanded keys or values", where=view.name, detail="kv_b_proj")
    by_head = torch.cat((up_key.unflatten(0, (key.heads, -1)), up_value.unflatten(0, (key.heads, -1))), 1)
    turned, turned_bias = rows(view.probe, part(key.match, key.heads, rope, slice(0, 1)))
    narrow, narrow_bias = rows(view.probe, expanded.source)
    tensors = {
        "kv_a_proj.weight": torch.cat((narrow, turned)),
        "kv_b_proj.weight": by_head.flatten(0, 1).contiguous(),
    }
    if narrow_bias is not None and turned_bias is not None:
        tensors["kv_a_proj.bias"] = torch.cat((narrow_bias, turned_bias))
    assert expanded.norm is not None
    return tensors | {f"kv_a_norm.{kind}": tensor for kind, tensor in expanded.norm.tensors.items()}
