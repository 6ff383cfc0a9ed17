"""What an attention module computes, found from the operands of its products and judged by its output.

Steps: which rows of which matrices are queries, keys and values (equal numbers at position 0); how they turn with the
position; what makes scores out of products; which keys are visible; what happens to attended values. The finding counts
only if `reference.attention` with the found weights reproduces the traced output.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from areal.models.blocks.attention import PackedAttention
from areal.porting import reference
from areal.porting.infer import capture as captures
from areal.porting.infer import grouped, latent, selection, shared_keys
from areal.porting.infer.operands import View, check_weights, find_core, read
from areal.porting.infer.output import output_projection
from areal.porting.infer.rotary import context_lengths, inverse_frequencies_of
from areal.porting.infer.scores import visible_keys
from areal.porting.infer.sources import resolve
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import AttentionSpec, LatentAttentionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from areal.porting.infer.capture import Capture
    from areal.porting.infer.operands import AttentionHypothesis
    from areal.porting.infer.shared_keys import SharedKeys
    from areal.porting.infer.sources import Source
    from areal.porting.records import LayerContext
    from areal.porting.spec import Mixer, RotarySpec


PROBE_SEQUENCES = 96
"""Sequences that start with different tokens: numbers at position 0 identify rows of projections."""
PROBE_LENGTH = 3
"""Of these sequences. More than one token, since some operations take another way for dimensions of size one."""


@dataclass(frozen=True)
class AttentionFinding:
    """One attention layer. `window` and `chunk` as in `LayerSpec`."""

    attention: Mixer
    rotary: RotarySpec | None
    window: int | None
    chunk: int | None


def infer_attention(context: LayerContext) -> Inferred[AttentionFinding]:
    """Infer the attention layer of a context. Raises UnsupportedError for what no spec says, naming it.

    Tensors have canonical names relative to the layer ("q_proj.weight").
    """
    finding = _infer(context)
    attention = finding.spec.attention
    if not (isinstance(attention, AttentionSpec) and attention.alibi):
        return finding
    # Biases of scores are where eager attention has been seen to differ from the fused one, which is what people run.
    try:
        with fused_attention(context.model):  # which is called with other masks
            return _infer(replace(context, calls=None))
    except Exception:  # noqa: BLE001 - foreign code that has no fused form may fail in any way with masks of that form
        return finding


def _infer(context: LayerContext) -> Inferred[AttentionFinding]:
    view = look(context)
    shared = None
    try:
        query, key, value = _sources(view)
    except UnsupportedError as error:
        shared, (query, key, value) = _shared_sources(view, error)
        view = shared.view
    explain = latent.infer if shared is None and latent.is_latent(view, value) else grouped.infer
    found = explain(view, query, key, value)
    evidence = judge(view, found, None if shared is None else shared.name)
    if shared is not None:
        found = shared_keys.without_keys(found)
        evidence = replace(evidence, detail=f"{evidence.detail}; keys and values of {shared.name}")
    finding = AttentionFinding(found.attention, found.rotary, found.window, found.chunk)
    return Inferred(spec=finding, tensors=found.tensors, evidence=(*found.evidence, evidence))


def _sources(view: View) -> tuple[Source, Source, Source]:
    """Return where queries, keys and values come from. Raises UnsupportedError."""
    query, key, value = (
        resolve(getattr(view.single, part)[:, 0], view.probe, view.run, part=name, module=view.context.module)
        for part, name in (("query", "queries"), ("key", "keys"), ("value", "values"))
    )
    return query, key, value


def _shared_sources(view: View, error: UnsupportedError) -> tuple[SharedKeys, tuple[Source, Source, Source]]:
    """Return the earlier module that gives keys and values, and where these come from. Raises `error` where there is
    none."""
    for shared in shared_keys.earlier_owners(view, _probed_tokens(view.context)):
        try:
            sources = _sources(shared.view)
        except UnsupportedError:
            continue  # which may share them itself
        shared_keys.check_sources(shared, *sources[1:])
        return shared, sources
    raise error


def _probed_tokens(context: LayerContext) -> Tensor:
    """Return sequences [S, T] that start with different tokens."""
    vocabulary = context.trace.logits.shape[-1]
    starts = torch.arange(min(PROBE_SEQUENCES, vocabulary))[:, None]
    return (starts + torch.arange(PROBE_LENGTH)) % vocabulary


@contextmanager
def fused_attention(model: nn.Module) -> Iterator[None]:
    """Let a transformers model attend with scaled_dot_product_attention for a while; others are left as they are."""
    configs = {id(config): config for part in model.modules() if (config := getattr(part, "config", None)) is not None}
    before = {key: getattr(config, "_attn_implementation", None) for key, config in configs.items()}
    try:
        for key, config in configs.items():
            if before[key] == "eager":
                config._attn_implementation = "sdpa"
        yield
    finally:
        for key, config in configs.items():
            if before[key] == "eager":
                config._attn_implementation = "eager"


def look(context: LayerContext) -> View:
    """Capture the module on the trace's tokens and on many short sequences."""
    run = captures.capture(context.model, context.name, context.trace.tokens, calls=context.calls)
    core = find_core(run)
    operands = read(run, core)
    check_weights(run, core, operands)
    probe = captures.capture(context.model, context.name, _probed_tokens(context), calls=context.calls)
    return View(context=context, run=run, probe=probe, core=core, operands=operands, single=read(probe, core))


# -------------------------------------------------------------------------------------------------------------- judging

# Parity of a hypothesis about one attention module with what the module returned.


LOCAL_TOLERANCE = 5e-5
"""Largest difference of an output, in standard deviations of the output."""
BEYOND = 8
"""Tokens by which a long sequence exceeds what the config calls long."""


def judge(view: View, found: AttentionHypothesis, shared: str | None = None) -> FeatureEvidence:
    """Raise UnsupportedError unless the hypothesis reproduces the module's output, in sequences of several lengths.
    shared: the module whose keys and values it attends to, if they are not its own."""
    results = []
    for tokens, capture in ((view.context.trace.tokens, view.run), *_other_lengths(view, found)):
        expected = output_projection(capture).output.view_as(capture.output)
        origin = None if shared is None else (view.context.model, shared, tokens)
        error = float((run(view.context.layer, capture, found, origin) - expected).abs().max())
        tolerance = LOCAL_TOLERANCE * float(expected.std())
        if not error <= tolerance:
            raise UnsupportedError(
                "an attention layer",
                where=view.name,
                detail=f"its parts were found but do not reproduce its output for {capture.length} tokens: off by "
                f"{error:.1e}, tolerance {tolerance:.1e}",
            )
        results.append(f"{error:.1e} for {capture.length} tokens (tolerance {tolerance:.1e})")
    return FeatureEvidence(
        feature="attention",
        value=type(found.attention).__name__,
        source="parity",
        detail=f"{view.name} reproduced to {', '.join(results)}",
    )


def _other_lengths(view: View, found: AttentionHypothesis) -> Iterator[tuple[Tensor, Capture]]:
    """Yield longer sequences than the trace's, beyond what the config says is long; and shorter ones where it may
    matter. With their tokens [1, T]."""
    vocabulary = view.context.trace.logits.shape[-1]
    lengths = context_lengths(view.context.config)
    wanted = [length + BEYOND for length in lengths[-1:] if length + BEYOND > view.run.length]
    if found.rotary is not None and len(inverse_frequencies_of(found.rotary)) > 1:
        wanted += [length for length in lengths[:1] if length < view.run.length]
    for length in wanted:
        tokens = torch.arange(length)[None] * 7 % vocabulary
        try:
            yield tokens, captures.capture(view.context.model, view.name, tokens, calls=view.context.calls)
        except (IndexError, RuntimeError, ValueError):
            continue  # learned positions end somewhere


@torch.no_grad()
def run(
    layer: int, capture: Capture, found: AttentionHypothesis, origin: tuple[nn.Module, str, Tensor] | None = None
) -> Tensor:
    """Return the reference layer's output [B, T, hidden] for the module's input. origin: model, module and tokens whose
    keys and values it attends to, in place of its own."""
    batch, length, hidden = capture.input.shape
    whole = found
    if origin is not None:
        layer, found = 0, shared_keys.without_keys(found)
    with torch.device("meta"):
        module = reference.attention(found.attention, hidden, layer, window=found.window, chunk=found.chunk)
    module.load_state_dict(dict(found.tensors), strict=True, assign=True)
    positions = torch.arange(length).repeat(batch)
    rotation = None if found.rotary is None else reference.rotary(found.rotary)(positions, torch.float32)
    bounds = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    backend = PackedAttention(bounds, batch * length, positions.device)
    if isinstance(found.attention, LatentAttentionSpec) and found.attention.shares_selection:
        seen = read(capture, find_core(capture)).scores[..., :length]
        selection.take_over(backend, layer, visible_keys(seen))
    if origin is not None:
        shared_keys.hand_on(backend, whole, rotation, *origin)
    result: Tensor = module.eval()(capture.input.flatten(0, 1), rotation, backend)
    return result.unflatten(0, (batch, length))
