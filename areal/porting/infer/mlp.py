"""What a dense feed-forward layer computes: which matrix is gate, up and down, the activation, fused layouts, clamps.

Every hypothesis is an element-wise formula between the outputs of the first matrices and the input of the last one, so
it is tested on traced tensors without running anything; the winner then has to predict the layer on larger inputs too,
where clamps show that usual activations never reach.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS, LEARNED_ACTIVATIONS
from areal.porting.infer.norms import apply_norm, infer_norm
from areal.porting.infer.replay import leaves, numbers_of
from areal.porting.infer.tensors import (
    EQUAL,
    LOCAL,
    MatrixCall,
    combination,
    error,
    inside,
    matrix_calls,
    rows,
    same,
    snapped,
)
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import MlpSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from areal.porting.records import LayerContext
    from areal.porting.spec import NormSpec


PROBE_SCALE = 40.0
"""Inputs this many times larger show clamps that traced values do not reach."""
PROBED = 10 * LOCAL
INNER: Final = "inner_norm."
"""Of the canonical names of a norm before the last matrix."""
KNOWN_CLAMPS = (7.0, 10.0)


@dataclass(frozen=True)
class _Rows:
    """Some output rows of a matrix, as a matrix of their own."""

    weight: Tensor
    bias: Tensor | None
    output: Tensor
    """[N, rows]."""


@dataclass(frozen=True)
class _Formula:
    """What stands between the first and the last matrix."""

    activation: Activation
    up: _Rows
    gate: _Rows | None = None
    clamp: float | None = None
    up_offset: float = 0.0
    layout: str = "separate matrices"
    gate_factor: float = 1.0

    def apply(self, up: Tensor, gate: Tensor | None) -> Tensor:
        act = self.activation
        if gate is None:
            return act(up)
        gate = gate if self.gate_factor == 1.0 else gate * self.gate_factor
        if self.clamp is not None:
            gate, up = gate.clamp(max=self.clamp), up.clamp(-self.clamp, self.clamp)
        return act(gate) * (up + self.up_offset)

    def error(self, target: Tensor) -> float:
        """Return the distance to what enters the last matrix, relative to its size."""
        return error(self.apply(self.up.output, None if self.gate is None else self.gate.output), target)


def infer_mlp(context: LayerContext) -> Inferred[MlpSpec]:
    """Infer the feed-forward layer `context.module`. Tensors: gate_proj.weight and so on, [out, in].

    Raises UnsupportedError when no gated or plain layer of three or two matrices gives its output.
    """
    calls = matrix_calls(context.model, context.trace, context.name)
    first, last, scale = _ends(calls, context)
    normed = norm_before(last, context)
    fits = list(_explained(first, last, context, normed, scale))
    for spec, formula in fits:
        tensors = _tensors(formula, last, normed)
        off = _probe_error(context, spec, tensors)
        if off <= PROBED:
            break
    else:
        spec, formula = fits[0]
        tensors = _tensors(formula, last, normed)
        clamped = _clamped(context, spec, tensors)
        if clamped is None:
            detail = f"it fits usual inputs, but on {PROBE_SCALE:g} times larger ones it is off by {off:.2g} (relative)"
            raise UnsupportedError("an unknown bound in feed-forward", where=context.name, detail=detail)
        spec = clamped
    return Inferred(spec=spec, tensors=tensors, evidence=(_evidence(context, spec, formula, calls, normed),))


def _evidence(
    context: LayerContext, spec: MlpSpec, formula: _Formula, calls: Sequence[MatrixCall], normed: _InnerNorm | None
) -> FeatureEvidence:
    """Return the line on a layer, with the activation that comes next."""
    form = "gated" if spec.gated else "plain"
    entering = calls[-1].input if normed is None else normed.input
    target = entering.reshape(-1, entering.shape[-1])
    own = formula.error(target)
    others = ((name, replace(formula, activation=Activation(name, {})).error(target)) for name in ACTIVATIONS)
    other = min(((name, off) for name, off in others if off > LOCAL), key=lambda each: each[1], default=None)
    detail = (
        f"{context.name}: {formula.layout}; reproduced between {', '.join(call.name for call in calls)} to {own:.1e}"
    )
    return FeatureEvidence(
        feature="feed_forward",
        value=f"{form}, {spec.activation}"
        + (f", clamped to {spec.clamp:g}" if spec.clamp is not None else "")
        + (f", then a {spec.inner_norm.kind} norm" if spec.inner_norm is not None else ""),
        source="parity",
        detail=detail if other is None else f"{detail}; next best: {other[0]}",
        margin=None if other is None else other[1] / LOCAL,
    )


def apply_mlp(spec: MlpSpec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what a feed-forward layer of `spec` with these canonical tensors gives for hidden [..., H]."""
    up = functional.linear(hidden, tensors["up_proj.weight"], tensors.get("up_proj.bias"))
    act = of_tensors(spec.activation, tensors)
    if spec.gated:
        gate = functional.linear(hidden, tensors["gate_proj.weight"], tensors.get("gate_proj.bias"))
        gate = gate * spec.multipliers[0]
        if spec.clamp is not None:
            gate, up = gate.clamp(max=spec.clamp), up.clamp(-spec.clamp, spec.clamp)
        inner = act(gate) * (up + spec.up_offset)
    else:
        inner = act(up)
    if spec.inner_norm is not None:
        norm = {kind: tensors[f"{INNER}{kind}"] for kind in ("weight", "bias") if f"{INNER}{kind}" in tensors}
        inner = apply_norm(spec.inner_norm, norm, inner)
    given = functional.linear(inner, tensors["down_proj.weight"], tensors.get("down_proj.bias"))
    return given * spec.multipliers[1]


def _ends(calls: Sequence[MatrixCall], context: LayerContext) -> tuple[list[MatrixCall], MatrixCall, float]:
    """Return the matrices that read the layer's input, the one that gives its output, and the factor on that."""
    if not calls:
        raise UnsupportedError("feed-forward without linear layers", where=context.name, detail=_kind(context))
    last = calls[-1]
    first = [call for call in calls if call is not last]
    start = rows(context.call.input)
    strangers = [call.name for call in first if error(rows(call.input), start) > EQUAL]
    if strangers or not first:
        names = ", ".join(strangers or [last.name])
        detail = f"{names} in {_kind(context)} reads something else than the layer's input"
        raise UnsupportedError("feed-forward of an unknown form", where=context.name, detail=detail)
    scale = 1.0
    if error(rows(last.output), rows(context.call.output)) > EQUAL:
        (factor,), _ = combination(context.call.output.reshape(last.output.shape), (last.output,))
        scale = snapped(factor, numbers_of(context.config))
    if error(rows(last.output) * scale, rows(context.call.output)) > EQUAL:
        detail = f"{_kind(context)}: what it returns is not the output of its last matrix {last.name}"
        raise UnsupportedError("feed-forward with a changed output", where=context.name, detail=detail)
    return first, last, scale


@dataclass(frozen=True)
class _InnerNorm:
    found: Inferred[NormSpec]
    input: Tensor


def norm_before(last: MatrixCall, context: LayerContext) -> _InnerNorm | None:
    """Return the norm whose output the last matrix reads; None without one."""
    for name, calls in context.trace.calls.items():
        if inside(name, context.name) and name != context.name and same(calls[0].output, last.input):
            module, call = context.model.get_submodule(name), calls[0]
            if call.input.shape != call.output.shape or not call.input.is_floating_point():
                continue
            # On inputs without the zeros that activations leave, which would say nothing of a weight.
            dense = torch.randn(call.input.shape, generator=torch.Generator().manual_seed(3))
            given = _called(module, dense, call.input, call.output)
            try:
                found = infer_norm(module, dense, call.output if given is None else given, name=name)
            except UnsupportedError:
                continue  # an activation, say
            if same(apply_norm(found.spec, found.tensors, call.input), call.output, LOCAL):
                return _InnerNorm(found, call.input)
    return None


def _explained(
    first: Sequence[MatrixCall], last: MatrixCall, context: LayerContext, normed: _InnerNorm | None, scale: float
) -> Iterator[tuple[MlpSpec, _Formula]]:
    """Yield the formulas that give the input of the last matrix, or of the norm before it, at least one. scale: factor
    on what the last matrix gives."""
    entering = last.input if normed is None else normed.input
    target = entering.reshape(-1, entering.shape[-1])
    best, found = math.inf, False
    known = [Activation(name, {}) for name in activation_names(context.config)]
    known += learned_activations(context.module)
    for formula in _formulas(first, target.shape[-1], known, _numbers(context), factors_in(context)):
        off = formula.error(target)
        best = min(best, off)
        if found and (formula.clamp is not None or formula.gate_factor != 1.0):
            return  # a bound that the trace does not reach is the probe's business
        if off <= LOCAL:
            found = True
            has_bias = formula.up.bias is not None
            if formula.gate is not None and (formula.gate.bias is not None) != has_bias:
                detail = "gate and up differ in having a bias"
                raise UnsupportedError("bias of only one of gate and up", where=context.name, detail=detail)
            spec = MlpSpec(
                gated=formula.gate is not None,
                activation=formula.activation.name,
                intermediate_size=target.shape[-1],
                bias=has_bias,
                output_bias=last.bias is not None,
                clamp=formula.clamp,
                up_offset=formula.up_offset,
                inner_norm=None if normed is None else normed.found.spec,
                multipliers=(formula.gate_factor, scale),
            )
            yield spec, formula
    if found:
        return
    shapes = ", ".join(f"{call.name} {tuple(call.weight.shape)}" for call in (*first, last))
    detail = (
        f"no activation and arrangement of {shapes} gives the input of {last.name} (best: off by {best:.2g}, relative)"
    )
    raise UnsupportedError("feed-forward of an unknown form", where=context.name, detail=detail)


def _formulas(
    first: Sequence[MatrixCall],
    width: int,
    activations: Sequence[Activation],
    numbers: Sequence[float],
    factors: Sequence[float],
) -> Iterator[_Formula]:
    """Yield the hypotheses, usual ones first."""
    pairs = list(_gate_and_up(first, width))
    if len(first) == 1 and first[0].weight.shape[0] == width:
        up = _rows_of(first[0], slice(None))
        yield from (_Formula(each, up) for each in activations)
    for gate, up, layout in pairs:
        yield from (_Formula(each, up, gate, layout=layout) for each in activations)
    for gate, up, layout in pairs:
        for each in activations:
            for offset in (0.0, 1.0):
                if offset:
                    yield _Formula(each, up, gate, up_offset=offset, layout=layout)
                yield from (_Formula(each, up, gate, clamp, offset, layout) for clamp in numbers)
    for gate, up, layout in pairs:
        yield from (
            _Formula(each, up, gate, layout=layout, gate_factor=factor)
            for each, factor in itertools.product(activations, factors)
        )


def _gate_and_up(first: Sequence[MatrixCall], width: int) -> Iterator[tuple[_Rows, _Rows, str]]:
    if len(first) == 2 and all(call.weight.shape[0] == width for call in first):
        left, right = (_rows_of(call, slice(None)) for call in first)
        yield left, right, "separate matrices"
        yield right, left, "separate matrices"
    elif len(first) == 1 and first[0].weight.shape[0] == 2 * width:
        halves = [_rows_of(first[0], part) for part in (slice(0, width), slice(width, None))]
        yield halves[0], halves[1], "one matrix, gate above up"
        yield halves[1], halves[0], "one matrix, up above gate"
        turns = [_rows_of(first[0], part) for part in (slice(0, None, 2), slice(1, None, 2))]
        yield turns[0], turns[1], "one matrix, rows of gate and up in turn"
        yield turns[1], turns[0], "one matrix, rows of up and gate in turn"


def _rows_of(call: MatrixCall, part: slice) -> _Rows:
    output = call.output.reshape(-1, call.output.shape[-1])
    return _Rows(call.weight[part], None if call.bias is None else call.bias[part], output[:, part])


def _tensors(formula: _Formula, last: MatrixCall, normed: _InnerNorm | None) -> dict[str, Tensor]:
    parts = {"gate_proj": formula.gate, "up_proj": formula.up, "down_proj": last}
    tensors = formula.activation.canonical
    if normed is not None:
        tensors |= {f"{INNER}{kind}": tensor for kind, tensor in normed.found.tensors.items()}
    for name, part in parts.items():
        if part is not None:
            tensors[f"{name}.weight"] = part.weight.contiguous()
            if part.bias is not None:
                tensors[f"{name}.bias"] = part.bias.contiguous()
    return tensors


def activation_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names that the config mentions first: several names stand for one function, and the config's should be
    kept."""
    mentioned = [value for _, value in leaves("", config) if isinstance(value, str) and value in ACTIVATIONS]
    usual = ["silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu"]
    return list(dict.fromkeys([*mentioned, *usual, *ACTIVATIONS]))


def _numbers(context: LayerContext) -> list[float]:
    """Return the positive numbers of the config and the module: possible clamps."""
    attributes = [value for value in vars(context.module).values() if isinstance(value, float)]
    values = [
        *attributes,
        *(value for _, value in leaves("", context.config) if isinstance(value, float)),
        *KNOWN_CLAMPS,
    ]
    return list(dict.fromkeys(float(value) for value in values if value >= 0.1))


def factors_in(context: LayerContext) -> list[float]:
    """Return the numbers of the config and the module that a gate may be multiplied by."""
    values = [value for value in vars(context.module).values() if isinstance(value, float)]
    values += [value for _, value in leaves("", context.config) if isinstance(value, float)]
    return [value for value in dict.fromkeys(values) if value not in (0.0, 1.0) and math.isfinite(value)]


def _probe_error(context: LayerContext, spec: MlpSpec, tensors: Mapping[str, Tensor]) -> float:
    """Return the relative error on larger inputs; 0 where the module cannot be called alone."""
    hidden = context.call.input * PROBE_SCALE
    expected = _called(context.module, hidden, context.call.input, context.call.output)
    return 0.0 if expected is None else error(apply_mlp(spec, tensors, hidden), expected)


def _called(module: nn.Module, hidden: Tensor, known_input: Tensor, known_output: Tensor) -> Tensor | None:
    """Return what the module gives alone; None if it needs more than hidden states."""
    with torch.no_grad():
        try:
            check, out = module(known_input), module(hidden)
        except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
            return None
    if not isinstance(check, torch.Tensor) or check.shape != known_output.shape or error(check, known_output) > EQUAL:
        return None
    return out if isinstance(out, torch.Tensor) else None


def _clamped(context: LayerContext, spec: MlpSpec, tensors: Mapping[str, Tensor]) -> MlpSpec | None:
    """Return the same layer with a clamp that only larger inputs reach."""
    if not spec.gated:
        return None
    fields = {name: value for name, value in vars(spec).items() if name != "clamp"}
    candidates: Iterable[MlpSpec] = (MlpSpec(**fields, clamp=clamp) for clamp in _numbers(context))
    return next((each for each in candidates if _probe_error(context, each, tensors) <= PROBED), None)


def _kind(context: LayerContext) -> str:
    return type(context.module).__name__


# -------------------------------------------------------------------------------------------------------------- learned

# Activations with parameters of their own: which small tensors of a module are which of theirs.


PREFIX: Final = "activation."
"""Of canonical names below a feed-forward layer."""
_MOST_TENSORS: Final = 6
"""Of one number each, in a module: with more of them there are too many ways to tell which is which."""


@dataclass(frozen=True)
class Activation:
    """A function, and the tensors that it is made with if it learns."""

    name: str
    tensors: Mapping[str, Tensor]
    """By its own names: "alpha_p"."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Any shape; in the dtype of the inputs."""
        if self.name in ACTIVATIONS:
            return ACTIVATIONS[self.name](inputs)
        module = LEARNED_ACTIVATIONS[self.name]()
        tensors = {name: tensor.to(inputs.dtype) for name, tensor in self.tensors.items()}
        result: Tensor = torch.func.functional_call(module, tensors, (inputs,))
        return result

    @property
    def canonical(self) -> dict[str, Tensor]:
        """Its tensors, by canonical names below the layer."""
        return {f"{PREFIX}{name}": tensor for name, tensor in self.tensors.items()}


def of_tensors(name: str, tensors: Mapping[str, Tensor]) -> Activation:
    """Return the activation of a layer with these canonical tensors."""
    own = {key.removeprefix(PREFIX): tensor for key, tensor in tensors.items() if key.startswith(PREFIX)}
    return Activation(name, own)


def learned_activations(module: nn.Module) -> Iterator[Activation]:
    """Yield every activation that learns, with the numbers of a module in every order in which they fit."""
    # A module that is held twice has its tensors in the state twice.
    stored = {value.data_ptr(): value.detach() for value in module.state_dict(keep_vars=True).values()}
    numbers = [value for value in stored.values() if value.numel() == 1 and value.is_floating_point()]
    if not 0 < len(numbers) <= _MOST_TENSORS:
        return
    for name, kind in LEARNED_ACTIVATIONS.items():
        wanted = kind().state_dict()
        for chosen in itertools.permutations(numbers, len(wanted)):
            pairs = zip(wanted.items(), chosen, strict=True)
            yield Activation(name, {key: value.reshape(blank.shape) for (key, blank), value in pairs})
