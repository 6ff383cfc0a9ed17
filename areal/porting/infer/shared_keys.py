"""Attention to the keys and values of an earlier layer: which one gives them, and what it makes of its own input.

A layer that shares keys has operands that no projection of its own gives. They are looked for among the operands of
earlier attention modules: the one that has the same is captured too, and what happened there is put before what
happened in the layer, so that queries, keys and values are explained as those of any other layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.porting import reference
from areal.porting.infer import capture as captures
from areal.porting.infer.capture import Other, Projection
from areal.porting.infer.operands import find_core, read
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from areal.models.blocks.attention import PackedAttention
    from areal.models.blocks.rotary import Rotation
    from areal.porting.infer.capture import Capture
    from areal.porting.infer.operands import AttentionHypothesis, View
    from areal.porting.infer.sources import Source
    from areal.porting.spec import AttentionSpec

KEY_PARTS: Final = ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
"""Tensors that a layer which shares keys has not."""


@dataclass(frozen=True)
class SharedKeys:
    """The module that a layer takes its keys and values from, and both watched as one."""

    name: str
    view: View
    input: Tensor
    """[B, T, hidden], of that module."""


def earlier_owners(view: View, probed: Tensor) -> Iterator[SharedKeys]:
    """Yield the earlier attention modules with the same keys and values, the last one first. probed: the tokens of
    `view.probe`."""
    context = view.context
    orders = {each.module: each.order for each in reversed(context.trace.softmaxes)}
    own = next((order for module, order in orders.items() if module.startswith(context.name)), 0)
    for name in sorted((each for each in orders if orders[each] < own), key=lambda each: -orders[each]):
        try:
            run = captures.capture(context.model, name, context.trace.tokens, calls=context.calls)
            core = find_core(run)
            operands = read(run, core)
            pairs = ((operands.key, view.operands.key), (operands.value, view.operands.value))
            if not all(theirs.shape == ours.shape and torch.equal(theirs, ours) for theirs, ours in pairs):
                continue
            probe = captures.capture(context.model, name, probed, calls=context.calls)
        except UnsupportedError:
            continue
        joined = replace(view, run=_joined(run, view.run), probe=_joined(probe, view.probe))
        yield SharedKeys(name, joined, run.input)


def check_sources(shared: SharedKeys, *sources: Source) -> None:
    """Raise UnsupportedError where keys or values are no projections of the input of the module that they are taken
    from: those of latent attention are not."""
    for event in (event for source in sources for event in source.match.events()):
        projection = shared.view.run.events[event]
        assert isinstance(projection, Projection)
        given = projection.input.flatten()
        if given.shape != shared.input.flatten().shape or not torch.allclose(given, shared.input.flatten()):
            detail = f"{projection.name} does not read the input of {shared.name}"
            raise UnsupportedError("keys shared by layers of another kind", where=shared.view.name, detail=detail)


def _joined(first: Capture, second: Capture) -> Capture:
    """Return the second capture with the projections and norms of the first before its own."""
    before = tuple(event for event in first.events if isinstance(event, Projection | Other))
    return replace(second, events=(*before, *second.events))


def without_keys(found: AttentionHypothesis) -> AttentionHypothesis:
    """Return the hypothesis about a layer without what it takes from another one."""
    attention: Any = found.attention
    tensors = {name: value for name, value in found.tensors.items() if not name.startswith(KEY_PARTS)}
    return replace(found, attention=replace(attention, shares_keys=True), tensors=tensors)


def hand_on(
    backend: PackedAttention,
    whole: AttentionHypothesis,
    rotation: Rotation | None,
    model: nn.Module,
    name: str,
    tokens: Tensor,
) -> None:
    """Let a backend keep the keys and values that module `name` makes of its input for tokens [B, T], as those of
    layer 0. whole: the hypothesis with the projections of both layers."""
    source = captures.capture(model, name, tokens)
    spec: AttentionSpec = whole.attention  # type: ignore[assignment]  # latent attention shares no keys
    with torch.device("meta"):
        module: Any = reference.attention(spec, source.input.shape[-1], 0, window=whole.window, chunk=whole.chunk)
    module.load_state_dict(dict(whole.tensors), strict=True, assign=True)
    module.is_shared = True
    module.eval()(source.input.flatten(0, 1), rotation, backend)
