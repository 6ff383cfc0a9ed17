"""Parity of a hypothesis about one attention module with what the module returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.models.blocks.attention import PackedAttention
from areal.porting import reference
from areal.porting.infer import capture as captures
from areal.porting.infer.output import output_projection
from areal.porting.infer.rotary import context_lengths, inverse_frequencies_of
from areal.porting.records import Evidence, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.infer.view import Found, View

LOCAL_TOLERANCE = 5e-5
"""Largest difference of an output, in standard deviations of the output."""
BEYOND = 8
"""Tokens by which a long sequence exceeds what the config calls long."""


def judge(view: View, found: Found) -> Evidence:
    """Raise UnsupportedError unless the hypothesis reproduces the module's output, in sequences of several lengths."""
    results = []
    for capture in (view.run, *_other_lengths(view, found)):
        expected = output_projection(capture).output.view_as(capture.output)
        error = float((run(view.context.layer, capture, found) - expected).abs().max())
        tolerance = LOCAL_TOLERANCE * float(expected.std())
        if not error <= tolerance:
            raise UnsupportedError(
                "an attention layer",
                where=view.name,
                detail=f"its parts were found but do not reproduce its output for {capture.length} tokens: off by "
                f"{error:.1e}, tolerance {tolerance:.1e}",
            )
        results.append(f"{error:.1e} for {capture.length} tokens (tolerance {tolerance:.1e})")
    return Evidence(
        feature="attention",
        value=type(found.attention).__name__,
        source="parity",
        detail=f"{view.name} reproduced to {', '.join(results)}",
    )


def _other_lengths(view: View, found: Found) -> Iterator[Capture]:
    """Longer sequences than the trace's, beyond what the config says is long; and shorter ones where it may matter."""
    vocabulary = view.context.trace.logits.shape[-1]
    lengths = context_lengths(view.context.config)
    wanted = [length + BEYOND for length in lengths[-1:] if length + BEYOND > view.run.length]
    if found.rotary is not None and len(inverse_frequencies_of(found.rotary)) > 1:
        wanted += [length for length in lengths[:1] if length < view.run.length]
    for length in wanted:
        tokens = torch.arange(length)[None] * 7 % vocabulary
        try:
            yield captures.capture(view.context.model, view.name, tokens)
        except (IndexError, RuntimeError, ValueError):
            continue  # learned positions end somewhere


@torch.no_grad()
def run(layer: int, capture: Capture, found: Found) -> Tensor:
    """The reference layer's output [B, T, hidden] for the module's input."""
    batch, length, hidden = capture.input.shape
    with torch.device("meta"):
        module = reference.attention(found.attention, hidden, layer, window=found.window, chunk=found.chunk)
    module.load_state_dict(dict(found.tensors), strict=True, assign=True)
    positions = torch.arange(length).repeat(batch)
    rotation = None if found.rotary is None else reference.rotary(found.rotary)(positions, torch.float32)
    bounds = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    backend = PackedAttention(bounds, batch * length, positions.device)
    result: Tensor = module.eval()(capture.input.flatten(0, 1), rotation, backend)
    return result.unflatten(0, (batch, length))
