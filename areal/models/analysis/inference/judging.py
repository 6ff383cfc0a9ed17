"""Parity of a hypothesis about one attention module with what the module returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.models.analysis import reference
from areal.models.analysis.inference.output import output_projection
from areal.models.analysis.records import Evidence, UnsupportedError
from areal.models.blocks.attention import PackedAttention

if TYPE_CHECKING:
    from torch import Tensor

    from areal.models.analysis.inference.view import Found, View

LOCAL_TOLERANCE = 5e-5
"""Largest difference of an output, in standard deviations of the output."""


def judge(view: View, found: Found) -> Evidence:
    """Raise UnsupportedError unless the hypothesis reproduces the module's output."""
    expected = output_projection(view).output.view_as(view.run.output)
    actual = run(view, found)
    tolerance = LOCAL_TOLERANCE * float(expected.std())
    error = float((actual - expected).abs().max())
    if not error <= tolerance:
        raise UnsupportedError(
            "an attention layer",
            where=view.name,
            detail=f"its parts were found but do not reproduce its output: off by {error:.1e}, tolerance {tolerance:.1e}",
        )
    return Evidence(
        feature="attention",
        value=type(found.attention).__name__,
        source="parity",
        detail=f"{view.name} reproduced to {error:.1e} (tolerance {tolerance:.1e})",
    )


@torch.no_grad()
def run(view: View, found: Found) -> Tensor:
    """The reference layer's output [B, T, hidden] for the module's input."""
    batch, length, hidden = view.run.input.shape
    with torch.device("meta"):
        layer = reference.attention(found.attention, hidden, view.context.layer, window=found.window, chunk=found.chunk)
    layer.load_state_dict(dict(found.tensors), strict=True, assign=True)
    positions = torch.arange(length).repeat(batch)
    rotation = None if found.rotary is None else reference.rotary(found.rotary)(positions, torch.float32)
    bounds = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    backend = PackedAttention(bounds, batch * length, positions.device)
    result: Tensor = layer.eval()(view.run.input.flatten(0, 1), rotation, backend)
    return result.unflatten(0, (batch, length))
