"""Infers one block: its attention, its feed-forward layer and the wiring between them, from the traced tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal.porting.infer.attention import AttentionFinding, infer_attention
from areal.porting.infer.experts_beside import infer_experts_beside
from areal.porting.infer.layer_embeddings import infer_layer_input
from areal.porting.infer.mixers import infer_mixer, infer_scaled_mixer
from areal.porting.infer.mlp import infer_mlp
from areal.porting.infer.moe import NotMoe, infer_moe
from areal.porting.infer.replay import KnownCalls, numbers_of
from areal.porting.infer.tensors import EQUAL, MATRIX_DIMENSIONS, combination, inside, matrix_calls, same, snapped
from areal.porting.infer.wiring import EXACT, BlockTensors, infer_one_part, infer_wiring
from areal.porting.records import Inferred, LayerContext, UnsupportedError
from areal.porting.spec import AttentionSpec, BesideSpec, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from areal.porting.infer.wiring import WiringFinding
    from areal.porting.records import LayerRoles, ModelRoles, ModuleCall, Trace
    from areal.porting.spec import MlpSpec, MoeSpec, RotarySpec


@dataclass(frozen=True)
class LayerFinding:
    """A layer's spec (its `rotary` is still None), and the rotation that it uses."""

    layer: LayerSpec
    rotary: RotarySpec | None


@dataclass(frozen=True)
class LayerSurroundings:
    """What all layers of a model share."""

    model: nn.Module
    trace: Trace
    config: Mapping[str, Any]
    num_layers: int
    calls: Callable[[str, Tensor], ModuleCall | None]


def surroundings(model: nn.Module, trace: Trace, config: Mapping[str, Any], roles: ModelRoles) -> LayerSurroundings:
    """Return what all layers of a traced model share."""
    mixers = [name for layer in roles.layers for name in (layer.attention, layer.beside) if name is not None]
    # A mixer whose parts the model calls before it cannot run alone: `mixer(hidden, mixer.offered(hidden))`.
    begun = {name: calls[0].order for name, calls in trace.calls.items()}
    alone = [
        name for name in mixers if not any(inside(part, name) and begun[part] < begun[name] for part in trace.calls)
    ]
    return LayerSurroundings(model, trace, config, len(roles.layers), KnownCalls(model, trace, alone).of)


def infer_layer(around: LayerSurroundings, roles: LayerRoles, number: int) -> Inferred[LayerFinding]:
    """Infer everything about block `number`. Tensors: "self_attn.*", "mlp.*" and the norms of the block kind."""
    trace = around.trace
    fed, attended = None, None
    if roles.feed_forward is not None:
        fed, feed_forward_call = feed_forward_of(around, roles, number)
    if roles.attention is not None:
        attended = attention_of(around, roles, number)
        attention_call = _at_edges(around, trace.calls[roles.attention][0])
    if fed is None:
        feed_forward_call = attention_call
    if attended is None:
        attention_call = feed_forward_call
    mixed = None
    if roles.experts_beside is not None:
        mixed, summed = infer_experts_beside(around.model, roles, trace, around.config, feed_forward_call)
        feed_forward_call = replace(feed_forward_call, output=summed)
    beside = None
    if roles.beside is not None and fed is not None:
        beside, attention_call = beside_of(around, roles, number, attention_call, feed_forward_call)
    output = trace.calls[roles.block][0].output
    scalars = {
        name: value.detach()
        for name, value in around.model.get_submodule(roles.block).state_dict(keep_vars=True).items()
        if value.shape == (1,) and "." not in name
    }
    given = None
    if roles.layer_input is not None:
        given, output = infer_layer_input(around.model, roles, trace, around.config, scalars)
        scalars = {}
    joined = BlockTensors(
        name=roles.block,
        input=trace.calls[roles.block][0].input,
        attention_input=attention_call.input,
        attention_output=attention_call.output,
        feed_forward_input=feed_forward_call.input,
        feed_forward_output=feed_forward_call.output,
        output=output,
        norms=[(call, around.model.get_submodule(name)) for name in roles.norms for call in trace.calls[name]],
        parameters=_loose_vectors(around, roles),
        scalars=scalars,
        epsilons=[number for number in numbers_of(around.config) if 0 < number < 0.1],
        multipliers=numbers_of(around.config),
        number=number,
    )
    if fed is None or attended is None:
        wired = infer_one_part(joined)
    else:
        try:
            wired = infer_wiring(joined)
        except UnsupportedError as error:
            attended, wired = with_bias_of_block(around, roles, attended, joined, error)
    finding = None if attended is None else attended.spec
    layer = LayerSpec(
        block=wired.spec.block,
        norms=wired.spec.norms,
        attention=None if finding is None else finding.attention,
        feed_forward=None if fed is None else fed.spec,
        residual_multiplier=wired.spec.residual_multiplier,
        output_scale=wired.spec.output_scale or (given is not None and "output_scale" in given.tensors),
        experts_beside=None if mixed is None else mixed.spec,
        layer_input=None if given is None else given.spec,
        counted_sums=wired.spec.counted_sums,
        window=None if finding is None else finding.window,
        chunk=None if finding is None else finding.chunk,
        beside=None if beside is None else beside.spec,
        factors=wired.spec.factors,
    )
    tensors, evidence = dict(wired.tensors), [*wired.evidence]
    parts = (("self_attn.", attended), ("beside.", beside), ("mlp.", fed), ("experts_beside.", mixed), ("", given))
    for place, part in parts:
        if part is not None:
            tensors |= {f"{place}{name}": value for name, value in part.tensors.items()}
            evidence += part.evidence
    rotary = None if finding is None else finding.rotary
    return Inferred(spec=LayerFinding(layer, rotary), tensors=tensors, evidence=tuple(evidence))


def beside_of(
    around: LayerSurroundings, roles: LayerRoles, number: int, attention: ModuleCall, fed: ModuleCall
) -> tuple[Inferred[BesideSpec], ModuleCall]:
    """Infer the mixer beside the attention of block `number`, and the factors of both.

    Returns it with a call that goes from the norm that both read to the sum of what both give. Raises UnsupportedError
    where they read different things, or are not added to the residual stream.
    """
    assert roles.beside is not None, "a layer of two mixers"
    trace, block = around.trace, around.trace.calls[roles.block][0]
    call = _at_edges(around, trace.calls[roles.beside][0])
    found, inner = infer_scaled_mixer(_context(around, roles.beside, number, trace))
    call = replace(call, input=trace.calls[roles.beside][0].input)
    known = (1.0, *numbers_of(around.config))
    normed = None
    for each in (each for name in roles.norms for each in trace.calls[name]):
        ratios = [combination(part.input, (each.output,)) for part in (attention, call)]
        if max(off for _, off in ratios) <= EQUAL:
            normed, inputs = each, [snapped(factors[0], known) for factors, _ in ratios]
    if normed is None:
        detail = f"{roles.attention} and {roles.beside} do not read the same norm, whatever the factors"
        raise UnsupportedError("two mixers of different inputs", where=roles.block, detail=detail)
    factors, off = combination(block.output, (block.input, attention.output, call.output, fed.output))
    if off > EXACT or any(abs(factors[part] - 1.0) > 1e-4 for part in (0, 3)):
        listed = ", ".join(f"{each:.6g}" for each in factors)
        detail = f"the output is off by {off:.2g} (relative) from a sum of {listed} times input, mixers, feed-forward"
        raise UnsupportedError("two mixers that are added in an unknown way", where=roles.block, detail=detail)
    outputs = [snapped(factor, known) for factor in factors[1:3]]
    spec = BesideSpec(
        mixer=found.spec,
        input_multiplier=snapped(inputs[1] * inner, known),
        output_multiplier=outputs[1],
        attention_input_multiplier=inputs[0],
        attention_output_multiplier=outputs[0],
    )
    summed = outputs[0] * attention.output + outputs[1] * call.output.reshape(attention.output.shape)
    joined = replace(attention, input=normed.output, output=summed)
    evidence = [replace(line, feature="beside") for line in found.evidence]
    return Inferred(spec=spec, tensors=found.tensors, evidence=tuple(evidence)), joined


def with_bias_of_block(
    around: LayerSurroundings,
    roles: LayerRoles,
    attended: Inferred[AttentionFinding],
    joined: BlockTensors,
    error: UnsupportedError,
) -> tuple[Inferred[AttentionFinding], Inferred[WiringFinding]]:
    """Return attention with a bias that the block adds to its output: a vector of the attention module with which the
    residual stream can be explained. Raises `error` where there is none."""
    attention = attended.spec.attention
    if not isinstance(attention, AttentionSpec) or attention.output_bias:
        raise error
    assert roles.attention is not None, "what was found of attention is given"
    named = around.model.get_submodule(roles.attention).named_parameters(recurse=False)
    for vector in (value.detach() for _, value in named if value.shape == joined.input.shape[-1:]):
        try:
            wired = infer_wiring(replace(joined, attention_output=joined.attention_output + vector))
        except UnsupportedError:
            continue
        finding = replace(attended.spec, attention=replace(attention, output_bias=True))
        return replace(attended, spec=finding, tensors={**attended.tensors, "o_proj.bias": vector}), wired
    raise error


def _context(
    around: LayerSurroundings, name: str, number: int, trace: Trace, shared: str | None = None
) -> LayerContext:
    return LayerContext(
        model=around.model,
        module=around.model.get_submodule(name),
        name=name,
        layer=number,
        num_layers=around.num_layers,
        config=around.config,
        trace=trace,
        shared=shared,
        calls=around.calls,
    )


def attention_of(around: LayerSurroundings, roles: LayerRoles, number: int) -> Inferred[AttentionFinding]:
    """Infer the attention of block `number`, which it has, or the mixer in its place, by itself."""
    assert roles.attention is not None, "a layer with a mixer"
    context = _context(around, roles.attention, number, around.trace)
    if any(inside(softmax.module, roles.attention) for softmax in around.trace.softmaxes):
        return infer_attention(context)
    found = infer_mixer(context)
    return Inferred(
        spec=AttentionFinding(found.spec, rotary=None, window=None, chunk=None),
        tensors=found.tensors,
        evidence=found.evidence,
    )


# ------------------------------------------------------------------------------------------------------- feed-forward


def feed_forward_of(
    around: LayerSurroundings, roles: LayerRoles, number: int
) -> tuple[Inferred[MlpSpec] | Inferred[MoeSpec], ModuleCall]:
    """Return the feed-forward layer of block `number`, which it has, by itself, and its call as the wiring should see
    it."""
    outside = (roles.attention,) if roles.attention else ()
    if not roles.feed_forward:
        # A feed-forward layer whose matrices the block holds itself.
        matrices = matrix_calls(around.model, around.trace, roles.block, outside=outside)
        block = around.trace.calls[roles.block][0]
        edges = replace(block, input=matrices[0].input, output=matrices[-1].output)
        calls = {
            name: call for name, call in around.trace.calls.items() if not any(inside(name, each) for each in outside)
        }
        trace = _with_call(replace(around.trace, calls=calls), edges)
        return infer_mlp(_context(around, roles.block, number, trace)), edges
    call = around.trace.calls[roles.feed_forward][0]
    if roles.shared_feed_forward is None:
        edges = at_scaled_edges(call, _at_edges(around, call))
        trace = _with_call(around.trace, edges)
        try:
            _check_matrices(around, roles.feed_forward)
            return infer_mlp(_context(around, roles.feed_forward, number, trace)), edges
        except UnsupportedError as dense_error:
            try:
                return infer_moe(_context(around, roles.feed_forward, number, around.trace)), call
            except NotMoe:
                raise dense_error from None
            except UnsupportedError:
                # A norm that gives what the layer gives, inside of it, is the block's, in truth.
                inner_norms = (around.trace.calls[name][0] for name in roles.norms if inside(name, call.name))
                normed = next((each for each in inner_norms if same(each.output, call.output)), None)
                if normed is None:
                    raise
                inner = replace(_context(around, roles.feed_forward, number, around.trace), end=normed.name)
                return infer_moe(inner), replace(call, output=normed.input.reshape(call.output.shape))
    shared = around.trace.calls[roles.shared_feed_forward][0]
    try:
        found = infer_moe(_context(around, roles.feed_forward, number, around.trace, shared=roles.shared_feed_forward))
    except NotMoe:
        detail = f"{roles.feed_forward} and {roles.shared_feed_forward} read the same input"
        raise UnsupportedError("two feed-forward layers side by side", where=roles.block, detail=detail) from None
    return found, replace(call, output=call.output.reshape(shared.output.shape) + shared.output)


def _check_matrices(around: LayerSurroundings, name: str) -> None:
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


def _at_edges(around: LayerSurroundings, call: ModuleCall) -> ModuleCall:
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


def at_scaled_edges(call: ModuleCall, edges: ModuleCall) -> ModuleCall:
    """Return the call at its edges, to the output of the module where that is the last matrix's times a number."""
    if same(call.output, edges.output) or call.output.numel() != edges.output.numel():
        return edges
    _, off = combination(call.output.reshape(edges.output.shape), (edges.output,))
    return replace(edges, output=call.output.reshape(edges.output.shape)) if off <= EQUAL else edges


def _with_call(trace: Trace, call: ModuleCall) -> Trace:
    return replace(trace, calls={**trace.calls, call.name: (call,)})


def _loose_vectors(around: LayerSurroundings, roles: LayerRoles) -> dict[str, Tensor]:
    """Return the vectors of the block that belong neither to attention nor to feed-forward."""
    inner: Sequence[str] = [name for name in (roles.attention, roles.feed_forward, roles.shared_feed_forward) if name]
    named: Iterable[tuple[str, nn.Parameter]] = around.model.get_submodule(roles.block).named_parameters()
    found = {}
    for name, value in named:
        full = f"{roles.block}.{name}"
        if value.ndim == 1 and not any(inside(full, part) for part in inner):
            found[name] = value.detach()
    return found
