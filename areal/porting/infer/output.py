"""Explains the layer's output by attended values: gates, sinks that act after the softmax, the output projection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from areal.porting.infer import scores
from areal.porting.infer.capture import Projection
from areal.porting.infer.sources import Columns, match, per_token
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.infer.operands import Operands, View
    from areal.porting.infer.sources import Source

OUTPUT_TOLERANCE = 2e-5
"""Relative to the largest number."""


@dataclass(frozen=True)
class AfterSoftmax:
    """What happens to attended values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    gate: Literal["none", "elementwise", "headwise"] = "none"
    sinks: Tensor | None = None
    """[H], in the module's order of heads."""


def explain(view: View, operands: Operands, order: Tensor) -> AfterSoftmax:
    """Explain what happens to attended values. order: canonical order of the module's query heads. Raises
    UnsupportedError where something else happens."""
    projection = output_projection(view.run)
    given = projection.input.reshape(view.run.batch * view.run.length, -1)
    attended = operands.attended
    _, _, heads, width = attended.shape
    if given.shape[1] != heads * width:
        raise UnsupportedError(
            "an output projection of something else than attended values",
            where=projection.name,
            detail=f"its input has {given.shape[1]} numbers per token, attention gives {heads} heads of {width}",
        )
    found = match(attended.flatten(0, 1).flatten(1), [Columns(0, given)])
    columns = torch.arange(heads * width)
    gate: Literal["none", "elementwise", "headwise"] = "none"
    tensors: dict[str, Tensor] = {}
    sinks = None
    if found.found and float((found.factor - 1).abs().max()) < OUTPUT_TOLERANCE:
        columns = found.column
    else:
        by_head = given.view(view.run.batch, view.run.length, heads, width)
        sinks = _sinks(operands, by_head)
        if sinks is None:
            gate, rows = _gate(view, attended, by_head)
            tensors["gate_proj.weight"] = rows[order].flatten(0, -2) if gate == "elementwise" else rows[order]
    canonical = columns.view(heads, width)[order].flatten()
    tensors["o_proj.weight"] = projection.weight[:, canonical].contiguous()
    if projection.bias is not None:
        tensors["o_proj.bias"] = projection.bias
    return AfterSoftmax(tensors, gate, sinks)


def parameter_like(view: View, values: Tensor) -> Tensor:
    """Return the parameter of the module that holds these values, which are measured less exactly."""
    module = view.context.model.get_submodule(view.name)
    for parameter in module.parameters():
        if parameter.numel() == values.numel():
            flat = parameter.detach().flatten()
            if float((flat - values).abs().max()) < 1e-3:
                return flat.clone()
    raise UnsupportedError(
        "attention sinks that are computed", where=view.name, detail=f"no parameter holds {values.tolist()}"
    )


def norm_input(view: View, source: Source, operand: Tensor) -> Tensor:
    """Return what enters a norm after the rotation, as [B, T, H, D] in the order of the operand."""
    assert source.norm is not None
    batch, length, heads, width = operand.shape
    given = view.run.calls[source.norm.events[0]].input
    unique = given.numel() // (batch * length * width)
    orders = [given.reshape(batch, length, unique, width)]
    if given.dim() == 4 and given.shape[2] == length:
        orders.insert(0, given.transpose(1, 2))
    return orders[0].repeat_interleave(heads // unique, 2)


def output_projection(capture: Capture) -> Projection:
    """Return the projection whose result the module returns, possibly after adding a residual that it was given."""
    expected = capture.output
    tolerance = 1e-6 * float(expected.abs().max())
    for residual in (None, *capture.others):
        target = (expected if residual is None else expected - residual).flatten()
        for event in reversed(capture.of(Projection)):
            flat = event.output.flatten()
            if flat.shape == target.shape and torch.allclose(flat, target, rtol=1e-5, atol=tolerance):
                found: Projection = event
                return found
    raise UnsupportedError(
        "something after the output projection", where=capture.name, detail="no projection returns the layer's output"
    )


def _sinks(operands: Operands, given: Tensor) -> Tensor | None:
    """Return the sinks that scale attended values by sigmoid(logsumexp - sink)."""
    attended = operands.attended
    ratio = (given * attended).sum(-1) / attended.square().sum(-1)
    if float((given - ratio[..., None] * attended).abs().max()) > OUTPUT_TOLERANCE * float(given.abs().max()):
        return None
    return scores.sinks_after(operands.scores, ratio.transpose(1, 2))


def _gate(view: View, attended: Tensor, given: Tensor) -> tuple[Literal["elementwise", "headwise"], Tensor]:
    """Return the sigmoid gate between attended and given [B, T, H, V]: rows [H, V, hidden] or [H, hidden]."""
    kind: Literal["elementwise", "headwise"]
    events = view.run.events
    pool = [
        (event, flat)
        for event in events
        if isinstance(event, Projection)
        and (flat := per_token(event.output, view.run)) is not None
        and event.input.numel() == view.run.input.numel()
    ]
    logits = torch.cat([flat for _, flat in pool], 1)
    weights = torch.cat([event.weight for event, _ in pool])
    biased = torch.cat([torch.full((flat.shape[1],), event.bias is not None) for event, flat in pool])
    attended, given = attended.flatten(0, 1), given.flatten(0, 1)
    gates = logits.sigmoid()
    largest = float(given.abs().max())
    for kind in ("headwise", "elementwise"):
        chosen = torch.empty(attended.shape[1:] if kind == "elementwise" else attended.shape[1:2], dtype=torch.long)
        error = 0.0
        for index in torch.cartesian_prod(*(torch.arange(size) for size in chosen.shape)).view(-1, chosen.dim()):
            place = tuple(index.tolist())
            part = (attended[(slice(None), *place)], given[(slice(None), *place)])
            before, after = (each.reshape(len(each), -1, 1) for each in part)
            misfit = (before * gates[:, None, :] - after).abs().amax((0, 1))
            chosen[place] = misfit.argmin()
            error = max(error, float(misfit.min()))
        if error <= OUTPUT_TOLERANCE * largest:
            if bool(biased[chosen.flatten()].any()):
                raise UnsupportedError("a gate with a bias", where=view.name, detail=f"{kind} gate of attended values")
            return kind, weights[chosen]
    raise UnsupportedError(
        "something between attention and its output projection",
        where=view.name,
        detail="attended values are neither passed on nor gated by the sigmoid of a projection of the input",
    )
