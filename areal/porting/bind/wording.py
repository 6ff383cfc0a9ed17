"""Words for people: a sentence on what a family is, and the lines of the checklist."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from areal.porting.spec import LatentAttentionSpec, MoeSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from areal.porting.records import Evidence
    from areal.porting.spec import ArchitectureSpec, LayerSpec

BLOCKS = {
    "pre": "norms before each sub-layer",
    "post": "norms after each sub-layer",
    "sandwich": "norms before and after each sub-layer",
    "parallel": "attention and feed-forward side by side",
    "parallel_two_norms": "attention and feed-forward side by side, each with its own norm",
    "post_residual": "norms on the residual stream",
}


def title(spec: ArchitectureSpec) -> str:
    """One sentence on what the tiny instance is made of, e.g. "Decoder with grouped-query attention, ..."."""
    layers = spec.layers
    parts = [_attention(layers), _positions(spec), BLOCKS[layers[0].block], _feed_forward(layers)]
    parts.append("tied embeddings" if spec.tied else "")
    return "Decoder with " + ", ".join(part for part in parts if part) + "."


def _attention(layers: Sequence[LayerSpec]) -> str:
    first = layers[0].attention
    if isinstance(first, LatentAttentionSpec):
        return "multi-head latent attention"
    text = "multi-head attention" if first.num_heads == first.num_kv_heads else "grouped-query attention"
    extras = []
    if first.query_bias or first.key_bias or first.value_bias:
        extras.append("biases")
    if first.query_norm is not None:
        extras.append("query and key norms")
    if first.softcap is not None:
        extras.append("capped scores")
    if first.sinks:
        extras.append("sinks")
    if first.gate != "none":
        extras.append("output gate")
    windows = {layer.window for layer in layers}
    if windows != {None}:
        extras.append("sliding windows" if None not in windows else "sliding windows in some layers")
    if any(layer.chunk is not None for layer in layers):
        extras.append("chunks")
    return f"{text} ({', '.join(extras)})" if extras else text


def _positions(spec: ArchitectureSpec) -> str:
    if spec.positions is not None:
        return f"{spec.positions.kind} positions"
    if not spec.rotaries:
        first = spec.layers[0].attention
        return "linear biases" if not isinstance(first, LatentAttentionSpec) and first.alibi else "no positions"
    some = " in some layers" if any(layer.rotary is None for layer in spec.layers) else ""
    pairs = "interleaved " if spec.rotaries[0].interleaved else ""
    return f"{pairs}rotary positions{some}"


def _feed_forward(layers: Sequence[LayerSpec]) -> str:
    mixtures = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, MoeSpec)]
    if not mixtures:
        first = layers[0].feed_forward
        assert not isinstance(first, MoeSpec)
        return f"{'gated' if first.gated else 'plain'} {first.activation} feed-forward layers"
    first_mixture = mixtures[0]
    text = f"mixtures of experts ({first_mixture.router.score} router"
    text += ", shared experts)" if first_mixture.shared is not None else ")"
    return text if len(mixtures) == len(layers) else f"{text} and dense layers"


def checklist(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Lines as JSON; what is the same in several layers is said once."""
    lines: dict[tuple[str, str], Evidence] = {}
    layers: dict[tuple[str, str], list[str]] = {}
    for line in evidence:
        number = re.match(r"layers\.(\d+)\.", line.feature)
        feature = f"layer.{line.feature[number.end() :]}" if number else line.feature
        key = (feature, line.value)
        if number:
            layers.setdefault(key, []).append(number.group(1))
        if key not in lines:
            lines[key] = replace(line, feature=feature)
            continue
        margins = [each for each in (lines[key].margin, line.margin) if each is not None]
        lines[key] = replace(lines[key], margin=min(margins, default=None))
    found = []
    for key, line in lines.items():
        several = len(layers.get(key, ())) > 1
        detail = f"{line.detail} (and layers {', '.join(layers[key][1:])})" if several else line.detail
        found.append(asdict(replace(line, detail=detail)))
    return found
