"""Words for people: a sentence on what a family is, and the lines of the checklist."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.accounting import SKIPPED
from areal.porting.bind.expressions import ROTARY_FIELD, fields_of, look_up
from areal.porting.bind.variations import MISSING, changed
from areal.porting.family import ProvenVariant
from areal.porting.spec import (
    BLOCKS,
    STATEFUL,
    AttentionSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    MoeSpec,
    RGLRUSpec,
    ShortConvolutionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from areal.porting.bind.binder import Binder
    from areal.porting.bind.observing import ConfigOutcome
    from areal.porting.records import FeatureEvidence
    from areal.porting.spec import ArchitectureSpec, LayerSpec


STATEFUL_WORDS: Final[dict[type, str]] = {
    ShortConvolutionSpec: "gated short convolutions",
    GatedDeltaSpec: "gated delta rules",
    LightningSpec: "lightning attention",
    Mamba1Spec: "Mamba-1 layers",
    Mamba2Spec: "Mamba-2 layers",
    RGLRUSpec: "gated linear recurrent units",
}
"""Mixer with a state to what a sentence calls it."""


def title(spec: ArchitectureSpec) -> str:
    """Return one sentence on what the tiny instance is made of, e.g. "Decoder with grouped-query attention, ..."."""
    layers = spec.layers
    parts = [_attention(layers), _positions(spec), BLOCKS[layers[0].block].wiring, _feed_forward(layers)]
    parts.append("tied embeddings" if spec.tied else "")
    return "Decoder with " + ", ".join(part for part in parts if part) + "."


def _attention(layers: Sequence[LayerSpec]) -> str:
    mixers = [layer.attention for layer in layers if layer.attention is not None]
    kinds = list(dict.fromkeys(STATEFUL_WORDS.get(type(mixer), "") for mixer in mixers))
    first = next((mixer for mixer in mixers if not isinstance(mixer, STATEFUL)), None)
    words = [word for word in kinds if word]
    text = " and ".join([*words, *([] if first is None else [_softmax_attention(first, layers)])])
    beside = next((layer.beside for layer in layers if layer.beside is not None), None)
    return text if beside is None else f"{text} beside {STATEFUL_WORDS[type(beside.mixer)]}"


def _softmax_attention(first: AttentionSpec | LatentAttentionSpec, layers: Sequence[LayerSpec]) -> str:
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
        alibi = any(isinstance(layer.attention, AttentionSpec) and layer.attention.alibi for layer in spec.layers)
        return "linear biases" if alibi else "no positions"
    attending = [layer for layer in spec.layers if isinstance(layer.attention, AttentionSpec | LatentAttentionSpec)]
    some = " in some layers" if any(layer.rotary is None for layer in attending) else ""
    pairs = "interleaved " if spec.rotaries[0].interleaved else ""
    return f"{pairs}rotary positions{some}"


def _feed_forward(layers: Sequence[LayerSpec]) -> str:
    there = [layer.feed_forward for layer in layers if layer.feed_forward is not None]
    mixtures = [each for each in there if isinstance(each, MoeSpec)]
    if not there:
        return ""
    if not mixtures:
        first = there[0]
        assert not isinstance(first, MoeSpec)
        return f"{'gated' if first.gated else 'plain'} {first.activation} feed-forward layers"
    first_mixture = mixtures[0]
    text = f"mixtures of experts ({first_mixture.router.score} router"
    text += ", shared experts)" if first_mixture.shared is not None else ")"
    return text if len(mixtures) == len(there) else f"{text} and dense layers"


def checklist(evidence: Iterable[FeatureEvidence]) -> list[dict[str, Any]]:
    """Return the lines as JSON; what is the same in several layers is said once."""
    lines: dict[tuple[str, str], FeatureEvidence] = {}
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


# ------------------------------------------------------------------------------------------------------------- variants

# Which of the proven configs a generated test runs again: few, and each for a reason that its name says.


MOST: Final = 12
MOST_JOINT: Final = 2
STEADY: Final = 1 / 4
"""Part of the tolerance that rounding may take in a config of the test: it has other tokens, which round otherwise."""


def choose(binder: Binder) -> list[ProvenVariant]:
    """Choose configs: flipped flags, other rotary types, nulls, lists, other numbers, in this order, then some of many
    changes."""
    # Others were proven as well, but no expressions explain them: families refuse them.
    explained = [dict(each.changes) for each in binder.observations]
    proven, joint = (
        [
            each
            for each in outcomes
            if each.kind == "proven"
            and each.parity <= STEADY * each.tolerance
            and dict(each.changes) in explained
            and MISSING not in each.changes.values()
            and not set(each.changes) & (binder.restricted.keys() | SKIPPED)
        ]
        for outcomes in (binder.outcomes, binder.joint_outcomes)
    )
    # Rotary settings may be proven and yet refused, since no expression says what they change.
    rotary = [changes[ROTARY_FIELD] for changes in binder.choices.get(ROTARY_FIELD, ())]
    proven = [each for each in proven if ROTARY_FIELD not in each.changes or each.changes[ROTARY_FIELD] in rotary]
    ranked = sorted(proven, key=lambda each: _rank(binder, each))
    chosen: dict[str, ProvenVariant] = {}
    for outcome in ranked:
        name = _name(binder, outcome)
        if name not in chosen and len(chosen) < MOST - MOST_JOINT:
            chosen[name] = _variant(binder, name, outcome)
    joint.sort(key=lambda each: -len(each.changes))
    for number, outcome in enumerate(joint[:MOST_JOINT], 1):
        name = f"many changes {number}"
        chosen[name] = _variant(binder, name, outcome)
    return list(chosen.values())


def _variant(binder: Binder, name: str, outcome: ConfigOutcome) -> ProvenVariant:
    """Return the variant of a proven config. Its overrides are whole fields: an object is written out."""
    whole = changed(binder.observer.base, outcome.changes)
    tops = {key if key in whole else key.partition(".")[0] for key in outcome.changes}
    overrides = {key: whole[key] for key in sorted(tops, key=list(whole).index)}
    return ProvenVariant(name=name, overrides=overrides, parity=outcome.parity, tolerance=outcome.tolerance)


def _main_field(outcome: ConfigOutcome) -> str:
    return next((name for name, value in outcome.changes.items() if not isinstance(value, list)), min(outcome.changes))


def _rank(binder: Binder, outcome: ConfigOutcome) -> tuple[int, int]:
    """Return the changes that decide something before those of sizes; the more slots read the field, the later."""
    name = _main_field(outcome)
    value = outcome.changes[name]
    kind = 5
    if isinstance(value, bool):
        kind = 0
    elif name == ROTARY_FIELD:
        kind = 1
    elif value is None or look_up(binder.observer.base, name) is None:
        kind = 2
    elif isinstance(value, list):
        kind = 3
    elif value in (0, 1):
        kind = 2
    elif isinstance(value, str):
        kind = 4
    readers = sum(name in fields_of(expression) for expression in binder.expressions.values())
    return kind, readers if kind == 5 else 0


def _name(binder: Binder, outcome: ConfigOutcome) -> str:
    name = _main_field(outcome)
    value: Any = outcome.changes[name]
    if name == ROTARY_FIELD:
        kinds = [entry.get("rope_type") for entry in value.values() if isinstance(entry, dict)] or [
            value.get("rope_type")
        ]
        base = look_up(binder.observer.base, ROTARY_FIELD)
        if isinstance(base, dict) and value.get("partial_rotary_factor") != base.get("partial_rotary_factor"):
            return f"partial rotary {value.get('partial_rotary_factor')}"
        return "rotary " + " ".join(dict.fromkeys(str(kind) for kind in kinds))
    if isinstance(value, list):
        return f"other {name}"
    return f"{name} {value}".lower() if isinstance(value, bool | None) else f"{name} {value}"
