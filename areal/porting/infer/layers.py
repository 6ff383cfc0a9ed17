"""Infers one block: its attention, its feed-forward layer and the wiring between them, from the traced tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal.porting.infer.attention import infer_attention
from areal.porting.infer.mlp import infer_mlp
from areal.porting.infer.moe import NotMoe, infer_moe
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import MATRIX_DIMENSIONS, inside, matrix_calls, same
from areal.porting.infer.wiring import BlockTensors, infer_wiring
from areal.porting.records import Inferred, LayerContext, UnsupportedError
from areal.porting.spec import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from areal.porting.infer.attention import AttentionFinding
    from areal.porting.records import LayerRoles, ModuleCall, Trace
    from areal.porting.spec import MlpSpec, MoeSpec, RotarySpec


@dataclass(frozen=True)
class LayerFinding:
    """A layer's spec (its `rotary` is still None), and the rotation that it uses."""

    layer: LayerSpec
    rotary: RotarySpec | None


@dataclass(frozen=True)
class Surroundings:
    """What all layers of a model share."""

    model: nn.Module
    trace: Trace
    config: Mapping[str, Any]
    num_layers: int


def infer_layer(around: Surroundings, roles: LayerRoles, number: int) -> Inferred[LayerFinding]:
    """Infer everything about block `number`. Tensors: "self_attn.*", "mlp.*" and the norms of the block kind."""
    trace = around.trace
    attention_call = _at_edges(around, trace.calls[roles.attention][0])
    fed, feed_forward_call = feed_forward_of(around, roles, number)
    attended = attention_of(around, roles, number)
    wired = infer_wiring(
        BlockTensors(
            name=roles.block,
            input=trace.calls[roles.block][0].input,
            attention_input=attention_call.input,
            attention_output=attention_call.output,
            feed_forward_input=feed_forward_call.input,
            feed_forward_output=feed_forward_call.output,
            output=trace.calls[roles.block][0].output,
            norms=[(call, around.model.get_submodule(name)) for name in roles.norms for call in trace.calls[name]],
            parameters=_loose_vectors(around, roles),
            epsilons=[number for number in numbers_of(around.config) if 0 < number < 0.1],
            multipliers=numbers_of(around.config),
        )
    )
    finding = attended.spec
    layer = LayerSpec(
        block=wired.spec.block,
        norms=wired.spec.norms,
        attention=finding.attention,
        feed_forward=fed.spec,
        residual_multiplier=wired.spec.residual_multiplier,
        window=finding.window,
        chunk=finding.chunk,
    )
    tensors = {
        **{f"self_attn.{name}": value for name, value in attended.tensors.items()},
        **{f"mlp.{name}": value for name, value in fed.tensors.items()},
        **wired.tensors,
    }
    evidence = (*wired.evidence, *attended.evidence, *fed.evidence)
    return Inferred(spec=LayerFinding(layer, finding.rotary), tensors=tensors, evidence=evidence)


def _context(around: Surroundings, name: str, number: int, trace: Trace, shared: str | None = None) -> LayerContext:
    return LayerContext(
        model=around.model,
        module=around.model.get_submodule(name),
        name=name,
        layer=number,
        num_layers=around.num_layers,
        config=around.config,
        trace=trace,
        shared=shared,
    )


def attention_of(around: Surroundings, roles: LayerRoles, number: int) -> Inferred[AttentionFinding]:
    """Infer the attention of block `number` by itself."""
    return infer_attention(_context(around, roles.attention, number, around.trace))


# ------------------------------------------------------------------------------------------------------- feed-forward


def feed_forward_of(
    around: Surroundings, roles: LayerRoles, number: int
) -> tuple[Inferred[MlpSpec] | Inferred[MoeSpec], ModuleCall]:
    """Return the feed-forward layer of block `number` by itself, and its call as the wiring should see it."""
    if not roles.feed_forward:
        # A feed-forward layer whose matrices the block holds itself.
        matrices = matrix_calls(around.model, around.trace, roles.block, outside=(roles.attention,))
        block = around.trace.calls[roles.block][0]
        edges = replace(block, input=matrices[0].input, output=matrices[-1].output)
        calls = {name: call for name, call in around.trace.calls.items() if not inside(name, roles.attention)}
        trace = _with_call(replace(around.trace, calls=calls), edges)
        return infer_mlp(_context(around, roles.block, number, trace)), edges
    call = around.trace.calls[roles.feed_forward][0]
    if roles.shared_feed_forward is None:
        edges = _at_edges(around, call)
        trace = _with_call(around.trace, edges)
        try:
            _check_matrices(around, roles.feed_forward)
            return infer_mlp(_context(around, roles.feed_forward, number, trace)), edges
        except UnsupportedError as dense_error:
            try:
                return infer_moe(_context(around, roles.feed_forward, number, around.trace)), call
            except NotMoe:
                raise dense_error from None
    shared = around.trace.calls[roles.shared_feed_forward][0]
    try:
        found = infer_moe(_context(around, roles.feed_forward, number, around.trace, shared=roles.shared_feed_forward))
    except NotMoe:
        detail = f"{roles.feed_forward} and {roles.shared_feed_forward} read the same input"
        raise UnsupportedError("two feed-forward layers side by side", where=roles.block, detail=detail) from None
    return found, replace(call, output=call.output.reshape(shared.output.shape) + shared.output)


def _check_matrices(around: Surroundings, name: str) -> None:
    """Check that a dense layer is made of linear layers only; what else holds matrices (experts) is not to be
    overlooked."""
    held = {
        f"{name}.{inner}": value
        for inner, value in around.model.get_submodule(name).named_parameters()
        if value.ndim >= MATRIX_DIMENSIONS
    }
    called = {call.name for call in matrix_calls(around.model, around.trace, name)}
    others = [inner for inner in held if inner.rpartition(".")[0] not in called]
    if others:
        detail = f"{', '.join(others)}: no linear layer that ran"
        raise UnsupportedError("matrices of unknown use in feed-forward", where=name, detail=detail)


def _at_edges(around: Surroundings, call: ModuleCall) -> ModuleCall:
    """Return the call from its first matrix to its last one: without norms and residual sums that run inside the
    module."""
    matrices = matrix_calls(around.model, around.trace, call.name)
    width = call.input.shape[-1]
    if not matrices or matrices[0].input.shape[-1] != width or matrices[-1].output.shape[-1] != width:
        return call
    first, last = matrices[0].input, matrices[-1].output
    if call.input.numel() != first.numel() or call.input.numel() != last.numel():
        return call
    return replace(
        call,
        input=call.input if same(first, call.input) else first,
        output=call.output if same(last, call.output) else last,
    )


def _with_call(trace: Trace, call: ModuleCall) -> Trace:
    return replace(trace, calls={**trace.calls, call.name: (call,)})


def _loose_vectors(around: Surroundings, roles: LayerRoles) -> dict[str, Tensor]:
    """Return the vectors of the block that belong neither to attention nor to feed-forward."""
    inner: Sequence[str] = [name for name in (roles.attention, roles.feed_forward, roles.shared_feed_forward) if name]
    named: Iterable[tuple[str, nn.Parameter]] = around.model.get_submodule(roles.block).named_parameters()
    found = {}
    for name, value in named:
        full = f"{roles.block}.{name}"
        if value.ndim == 1 and not any(inside(full, part) for part in inner):
            found[name] = value.detach()
    return found
