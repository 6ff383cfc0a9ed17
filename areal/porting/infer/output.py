"""Explains the layer's output by attended values: gates, sinks that act after the softmax, the output projection."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn import functional

from areal.porting.infer import scores
from areal.porting.infer.capture import Projection
from areal.porting.infer.differential import difference_of
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.sources import Columns, match, per_token
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.infer.operands import Operands, View
    from areal.porting.infer.sources import Source
    from areal.porting.records import Inferred
    from areal.porting.spec import NormSpec

GateKind = Literal["none", "elementwise", "headwise"]
GateFunction = Literal["sigmoid", "softplus"]

OUTPUT_TOLERANCE = 2e-5
"""Relative to the largest number."""
GATE_FUNCTIONS: Final[dict[GateFunction, Callable[[Tensor], Tensor]]] = {
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
}
_KINDS: Final[tuple[GateKind, ...]] = ("headwise", "elementwise")


@dataclass(frozen=True)
class AfterSoftmax:
    """What happens to attended values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    gate: GateKind = "none"
    function: GateFunction = "sigmoid"
    norm: NormSpec | None = None
    sinks: Tensor | None = None
    """[H], in the module's order of heads."""
    differential_eps: float | None = None
    """Of the norm of differences of heads."""


def explain(view: View, operands: Operands, order: Tensor) -> AfterSoftmax:
    """Explain what happens to attended values. order: canonical order of the module's query heads. Raises
    UnsupportedError where something else happens."""
    projection = output_projection(view.run)
    normed = norm_before(view, projection)
    given = projection.input if normed is None else normed[0]
    given = given.reshape(view.run.batch * view.run.length, -1)
    attended = operands.attended
    if view.core.second is not None:
        return _differential(view, operands, order, projection)
    _, _, heads, width = attended.shape
    if given.shape[1] != heads * width:
        raise UnsupportedError(
            "an output projection of something else than attended values",
            where=projection.name,
            detail=f"its input has {given.shape[1]} numbers per token, attention gives {heads} heads of {width}",
        )
    found = match(attended.flatten(0, 1).flatten(1), [Columns(0, given)])
    columns = torch.arange(heads * width)
    gate: _Gate | None = None
    tensors: dict[str, Tensor] = {}
    sinks = None
    if found.found and float((found.factor - 1).abs().max()) < OUTPUT_TOLERANCE:
        columns = found.column
    else:
        by_head = given.view(view.run.batch, view.run.length, heads, width)
        sinks = _sinks(operands, by_head)
        if sinks is None:
            gate = _gate(view, attended, by_head)
            rows = gate.rows[order]
            tensors["gate_proj.weight"] = rows.flatten(0, -2) if gate.kind == "elementwise" else rows
            if gate.bias is not None:
                tensors["gate_bias"] = gate.bias[order]
    canonical = columns.view(heads, width)[order].flatten()
    tensors["o_proj.weight"] = projection.weight[:, canonical].contiguous()
    if projection.bias is not None:
        tensors["o_proj.bias"] = projection.bias
    norm = None
    if normed is not None:
        norm = normed[1].spec
        tensors |= {f"output_norm.{kind}": tensor[canonical] for kind, tensor in normed[1].tensors.items()}
    kind, function = ("none", "sigmoid") if gate is None else (gate.kind, gate.function)
    return AfterSoftmax(tensors, kind, function, norm, sinks)  # type: ignore[arg-type]  # words of the pair above


def _differential(view: View, operands: Operands, order: Tensor, projection: Projection) -> AfterSoftmax:
    """Explain differences of heads. Raises UnsupportedError for what is none."""
    if order.tolist() != list(range(len(order))):
        detail = f"query heads {order.tolist()} stand behind each other, of which halves are taken from each other"
        raise UnsupportedError("an order of heads and tokens", where=view.name, detail=detail)
    tensors, eps = difference_of(view, operands, projection.input.reshape(view.run.batch, view.run.length, -1))
    tensors["o_proj.weight"] = projection.weight
    if projection.bias is not None:
        tensors["o_proj.bias"] = projection.bias
    return AfterSoftmax(tensors, differential_eps=eps)


def norm_before(view: View, projection: Projection) -> tuple[Tensor, Inferred[NormSpec]] | None:
    """Return what entered a norm whose output is what the output projection reads, and the norm; None without one."""
    for call in view.run.calls.values():
        if call.output.shape == projection.input.shape == call.input.shape and torch.equal(
            call.output, projection.input
        ):
            try:
                return call.input, infer_norm(call.module, call.input, call.output, name=call.name)
            except UnsupportedError:
                continue
    return None


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


@dataclass(frozen=True)
class _Gate:
    kind: GateKind
    function: GateFunction
    rows: Tensor
    """[H, V, hidden] or [H, hidden]."""
    bias: Tensor | None
    """[H]."""


def _gate(view: View, attended: Tensor, given: Tensor) -> _Gate:
    """Return the gate between attended and given [B, T, H, V]."""
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
    parameters = view.context.model.get_submodule(view.name).parameters(recurse=False)
    biases = [each.detach().flatten() for each in parameters if each.numel() == attended.shape[1]]
    for kind, function, bias in itertools.product(_KINDS, GATE_FUNCTIONS, (None, *biases)):
        chosen = rows_of_gates(kind, logits, attended, given, GATE_FUNCTIONS[function], bias)
        if chosen is None:
            continue
        if bool(biased[chosen.flatten()].any()):
            raise UnsupportedError("a gate with a bias", where=view.name, detail=f"{kind} gate of attended values")
        return _Gate(kind, function, weights[chosen], bias)
    raise UnsupportedError(
        "something between attention and its output projection",
        where=view.name,
        detail="attended values are neither passed on, nor normed together, nor gated by the "
        f"{' or '.join(GATE_FUNCTIONS)} of a projection of the input",
    )


def rows_of_gates(
    kind: GateKind,
    logits: Tensor,
    attended: Tensor,
    given: Tensor,
    function: Callable[[Tensor], Tensor],
    bias: Tensor | None,
) -> Tensor | None:
    """Return which column of logits [tokens, rows] gates each head, or each of its elements; None where none does."""
    allowed = OUTPUT_TOLERANCE * float(given.abs().max())
    chosen = torch.empty(attended.shape[1:] if kind == "elementwise" else attended.shape[1:2], dtype=torch.long)
    for head in range(attended.shape[1]):
        gates = function(logits if bias is None else logits + bias[head])
        for place in [(head,)] if kind == "headwise" else [(head, each) for each in range(attended.shape[2])]:
            part = (attended[(slice(None), *place)], given[(slice(None), *place)])
            before, after = (each.reshape(len(each), -1, 1) for each in part)
            misfit = (before * gates[:, None, :] - after).abs().amax((0, 1))
            if float(misfit.min()) > allowed:
                return None
            chosen[place] = misfit.argmin()
    return chosen
