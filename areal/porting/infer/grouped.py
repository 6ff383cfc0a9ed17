"""Attention whose queries, keys and values are projections of the layer's input: MHA, GQA, MQA with their extras."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from areal.models.blocks.rotary import rotate, scale_query
from areal.porting import reference
from areal.porting.infer import output, scores
from areal.porting.infer.capture import capture
from areal.porting.infer.operands import AttentionHypothesis, read
from areal.porting.infer.rotary import explain_turning
from areal.porting.infer.sources import MATCH_TOLERANCE, Source, apply_norm, rows
from areal.porting.records import FeatureEvidence, UnsupportedError
from areal.porting.spec import AttentionSpec

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.operands import View
    from areal.porting.spec import NormSpec, RotarySpec


@dataclass(frozen=True)
class Heads:
    """How query heads share keys and values."""

    order: Tensor
    """Query heads [H] such that those of one key head stand together, in the order of key heads."""
    kv: Tensor
    """A query head [num_kv_heads] that uses each key head, in their order."""


def infer(view: View, query: Source, key: Source, value: Source) -> AttentionHypothesis:
    """Explain the module as grouped-query attention. Raises UnsupportedError where something does not fit."""
    run, operands = view.run, view.operands
    if value.norm is not None and (value.norm.scope != "head" or value.clip is not None or value.norm.after_rotary):
        detail = f"scope {value.norm.scope!r}, clamped: {value.clip is not None}"
        raise UnsupportedError("a norm of values", where=value.norm.names[0], detail=detail)
    value_scale = float(value.match.factor.mean())
    if float((value.match.factor / value_scale - 1).abs().max()) > MATCH_TOLERANCE:
        raise UnsupportedError("different factors on values", where=view.name, detail=f"{value_scale:.6g} in the mean")
    heads = share(key.ids(), value.ids(), view.name)
    natural = query.ids()[0].argsort()
    before = {part: source.before_rotary(run)[..., natural] for part, source in (("q", query), ("k", key))}
    after = {
        "q": _rotated(query, operands.query, view)[..., natural],
        "k": _rotated(key, operands.key, view)[..., natural],
    }
    turning = explain_turning(before, after, view, growth_from=lambda start: growth_from(view, query, start))
    dims = natural[turning.order]
    product = _products(view, query, key, turning.order, turning.rotary, before)
    visible = scores.visible_keys(operands.scores[..., : run.length])
    window, chunk = scores.window_and_chunk(visible, where=view.name)
    hints = scores.numbers_of(view.context.model.get_submodule(view.name), view.context.config)
    rule = scores.explain_scores(
        product,
        operands.scores[..., : run.length],
        visible,
        hints=[query.ids().shape[1] ** -0.5, *hints],
        where=view.name,
    )
    sinks = scores.sinks_beside(product, operands.scores, rule, where=view.name)
    after_softmax = output.explain(view, operands, heads.order)
    if after_softmax.sinks is not None:
        sinks = after_softmax.sinks
    keys_as_values = torch.equal(key.ids(), value.ids())
    tensors, biases = _tensors(view, query, key, value, heads, dims)
    if keys_as_values:
        if not bool((dims == natural).all()) or (value.clip is None) != (key.clip is None):
            raise UnsupportedError("values that are keys in another order", where=view.name, detail=f"order {dims}")
        tensors.pop("v_proj.weight")
        tensors.pop("v_proj.bias", None)
    tensors |= after_softmax.tensors
    if sinks is not None:
        tensors["sinks"] = output.parameter_like(view, sinks)[heads.order]
    clip = next((source.clip for source in (query, key, value) if source.clip is not None), None)
    spec = AttentionSpec(
        num_heads=query.heads,
        num_kv_heads=len(heads.kv),
        head_dim=query.ids().shape[1],
        value_dim=value.ids().shape[1],
        query_bias=biases["q_proj"],
        key_bias=biases["k_proj"],
        value_bias=biases["v_proj"],
        output_bias="o_proj.bias" in tensors,
        query_norm=_norm_of(query),
        key_norm=_norm_of(key),
        value_norm=_norm_of(value),
        keys_as_values=keys_as_values,
        norm_scope=_scope(query, key, view),
        norm_after_rotary=any(source.norm is not None and source.norm.after_rotary for source in (query, key)),
        scale=rule.scale,
        softcap=rule.softcap,
        sinks=sinks is not None,
        clip=None if clip is None else scores.snap(clip, hints),
        value_scale=scores.snap(value_scale, [1.0, *hints]),
        gate=after_softmax.gate,
        gate_function=after_softmax.function,
        gate_bias="gate_bias" in tensors,
        output_norm=after_softmax.norm,
        alibi=rule.alibi is not None,
        alibi_scale=1.0 if rule.alibi is None else rule.alibi,
        differential_eps=after_softmax.differential_eps,
    )
    evidence = (*_evidence(view, spec, query, key, value, rule, window, chunk), *turning.evidence)
    return AttentionHypothesis(
        attention=spec, rotary=turning.rotary, window=window, chunk=chunk, tensors=tensors, evidence=evidence
    )


def share(key_ids: Tensor, value_ids: Tensor, where: str) -> Heads:
    """Group query heads by equal keys [H, D]; values must be shared alike."""
    first: dict[tuple[int, ...], int] = {}
    owner = [first.setdefault(tuple(ids), head) for head, ids in enumerate(key_ids.tolist())]
    leaders = sorted(set(owner))
    values = value_ids.tolist()
    if any(values[head] != values[leader] for head, leader in enumerate(owner)) or len(leaders) != len(
        {tuple(ids) for ids in values}
    ):
        raise UnsupportedError("keys and values shared by different heads", where=where, detail=f"key groups {owner}")
    sizes = {owner.count(leader) for leader in leaders}
    if len(sizes) != 1:
        raise UnsupportedError("groups of query heads of unequal size", where=where, detail=f"key groups {owner}")
    leaders.sort(key=lambda leader: min(key_ids[leader].tolist()))
    order = [head for leader in leaders for head in range(len(owner)) if owner[head] == leader]
    return Heads(torch.tensor(order), torch.tensor(leaders))


def growth_from(view: View, query: Source, start: int) -> Tensor:
    """Return the length of queries over what it was before positions came in, float64 [B, T, H], of the trace's tokens
    at positions from `start` on."""
    there = capture(view.context.model, view.name, view.context.trace.tokens, start=start)
    given, grown = query.before_rotary(there), _rotated(query, read(there, view.core).query, view)
    return grown.double().norm(dim=-1) / given.double().norm(dim=-1)


def _rotated(source: Source, operand: Tensor, view: View) -> Tensor:
    """[B, T, H, D] just after the rotation: the operand itself, or what enters the norm that follows."""
    if source.norm is None or not source.norm.after_rotary:
        return operand
    return output.norm_input(view, source, operand)


def _products(
    view: View, query: Source, key: Source, order: Tensor, rotary: RotarySpec | None, before: dict[str, Tensor]
) -> Tensor:
    """Return the query-key products [B, H, T, T] of the canonical queries and keys."""
    batch, length = view.run.batch, view.run.length
    positions = torch.arange(length).repeat(batch)
    rotation = None if rotary is None else reference.rotary(rotary)(positions, torch.float32)
    parts = []
    natural = query.ids()[0].argsort()
    for source, heads in ((query, before["q"]), (key, before["k"])):
        turned = rotate(heads[..., order].flatten(0, 1), rotation).unflatten(0, (batch, length))
        if source.norm is not None and source.norm.after_rotary:
            back = natural[order].argsort()
            turned = apply_norm(source.norm, turned[..., back])[..., natural[order]]
        parts.append(turned)
    grown = scale_query(parts[0].flatten(0, 1), rotation).unflatten(0, (batch, length))
    return torch.einsum("bqhd,bkhd->bhqk", grown, parts[1])


def _tensors(
    view: View, query: Source, key: Source, value: Source, heads: Heads, dims: Tensor
) -> tuple[dict[str, Tensor], dict[str, bool]]:
    """Return the canonical weights of projections and norms, and which projections have a bias."""
    tensors: dict[str, Tensor] = {}
    biases = {}
    parts = (("q", query, heads.order, dims), ("k", key, heads.kv, dims), ("v", value, heads.kv, None))
    for part, source, chosen, permutation in parts:
        weight, bias = rows(view.probe, source.match)
        for kind, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                by_head = tensor.unflatten(0, (source.heads, -1))[chosen]
                by_head = by_head if permutation is None else by_head[:, permutation]
                tensors[f"{part}_proj.{kind}"] = by_head.flatten(0, 1).contiguous()
        biases[f"{part}_proj"] = bias is not None
        if source.norm is not None:
            for kind, tensor in (("weight", source.norm.weight), ("bias", source.norm.bias)):
                if tensor is not None:
                    by_head = tensor[chosen]  # [heads, D], kept in the shape of the scope
                    by_head = by_head if permutation is None else by_head[:, permutation]
                    shapes = {"each_head": by_head, "full": by_head.flatten()}
                    tensors[f"{part}_norm.{kind}"] = shapes.get(source.norm.scope, by_head[0]).contiguous()
    return tensors, biases


def _norm_of(source: Source) -> NormSpec | None:
    return None if source.norm is None else source.norm.spec


def _scope(query: Source, key: Source, view: View) -> Literal["head", "each_head", "full"]:
    norms = [source.norm for source in (query, key) if source.norm is not None]
    if not norms:
        return "head"
    scopes = {norm.scope for norm in norms}
    if len(scopes) > 1 and not (scopes == {"head", "full"} and key.norm is not None and key.norm.scope == "head"):
        raise UnsupportedError(
            "different norms of queries and keys", where=view.name, detail=f"scopes {sorted(scopes)}"
        )
    if len({norm.after_rotary for norm in norms}) > 1:
        raise UnsupportedError("different norms of queries and keys", where=view.name, detail="one after the rotation")
    return "full" if "full" in scopes else norms[0].scope


def _evidence(
    view: View,
    spec: AttentionSpec,
    query: Source,
    key: Source,
    value: Source,
    rule: scores.ScoreRule,
    window: int | None,
    chunk: int | None,
) -> tuple[FeatureEvidence, ...]:
    events = view.probe.events
    found = [
        FeatureEvidence(
            feature=f"attention.{part}",
            value=f"{len(set(map(tuple, source.ids().tolist())))} heads of {source.ids().shape[1]}",
            source="probe",
            detail="rows of " + ", ".join(events[event].name for event in source.match.events()),  # type: ignore[union-attr]  # matches are projections
        )
        for part, source in (("queries", query), ("keys", key), ("values", value))
    ]
    found += [
        FeatureEvidence(
            feature=f"attention.{part}_norm",
            value=f"{source.norm.spec.kind}, {source.norm.scope}"
            + ("" if part == "value" else f", {'after' if source.norm.after_rotary else 'before'} the rotation"),
            source="probe",
            detail=", ".join(source.norm.names),
            margin=source.norm.margin,
        )
        for part, source in (("query", query), ("key", key), ("value", value))
        if source.norm is not None
    ]
    found.append(rule.evidence())
    margins = {"softcap": rule.margin, "alibi": rule.margin}
    for feature, number in (("softcap", rule.softcap), ("alibi", rule.alibi), ("clip", spec.clip)):
        if number is not None:
            found.append(
                FeatureEvidence(
                    feature=f"attention.{feature}",
                    value=f"{number:g}",
                    source="probe",
                    detail=f"fitted to the scores of {view.name}",
                    margin=margins.get(feature),
                )
            )
    extent = f"window {window}" if window else f"chunks of {chunk}" if chunk else "causal"
    mask = FeatureEvidence(
        feature="attention.mask",
        value=extent,
        source="probe",
        detail=f"masked scores of {view.run.length} tokens in {view.name}",
    )
    return (*found, mask)
