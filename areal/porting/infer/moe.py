"""Inference of mixtures of experts: which module parts are router, experts and shared experts, and what they compute.

Names order the hypotheses; what decides is whether the module's outputs for random inputs are explained, and in the end
whether the reference layer made of the spec agrees with it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import torch

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import reference
from areal.porting.infer.experts import (
    SCREENED_TOKENS,
    TOLERANCE,
    Fit,
    Stack,
    arrangements,
    fit_experts,
    outputs_of,
    solve,
    stacks_of,
)
from areal.porting.infer.mlp import infer_mlp
from areal.porting.infer.replay import numbers_of, probe, replaced, strings_of
from areal.porting.infer.router import Observed, Routing, infer_routing
from areal.porting.infer.tensors import snapped
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import MlpSpec, MoeSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

    from areal.porting.infer.experts import ExpertForm
    from areal.porting.infer.replay import Replay
    from areal.porting.records import LayerContext


LOGIT_SCALES: Final = (0.3, 1.0, 3.0)
"""Standard deviations of router logits that random tokens are made for: weights nearly equal, and far apart."""
TOKENS_PER_SCALE: Final = 64
CLAMP_SCALE: Final = 30.0
"""Standard deviation of what goes into activations for further tokens, which limits in the experts cannot escape."""
WHOLE: Final = 0.01
"""Distance from 1 of a weight that can only be 0 or 1."""
ROUTER_HINTS: Final = ("router", "gate", "classifier", "wg")


class NotMoe(Exception):
    """The module has no experts with a router."""


@dataclass(frozen=True)
class _Parts:
    """Which tensors of the module are taken for what."""

    stack: Stack
    router: str
    """Parameter name of the router's matrix."""
    matrix: Tensor
    """[experts, hidden]."""
    vectors: Mapping[str, Tensor]
    """Everything of size [experts] outside the stack."""


def infer_moe(context: LayerContext) -> Inferred[MoeSpec]:
    """Explain a feed-forward layer as router, experts and shared experts.

    Raises NotMoe for a layer without experts, and UnsupportedError for experts that no MoeSpec describes."""
    hidden_size = context.call.input.shape[-1]
    readings = _readings(context, hidden_size)
    first_error: UnsupportedError | None = None
    for parts in readings:
        try:
            return _explain(context, parts)
        except UnsupportedError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _tensors(context: LayerContext) -> dict[str, Tensor]:
    module = context.module
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _readings(context: LayerContext, hidden_size: int) -> list[_Parts]:
    """Return every way to see experts and a router in the module; likely ones first. Raises NotMoe if there is none."""
    tensors = _tensors(context)
    found: list[tuple[bool, _Parts]] = []
    short: list[str] = []
    for stack in stacks_of(tensors, hidden_size):
        rest = {name: tensor for name, tensor in tensors.items() if name not in stack.names}
        # A router's matrix may lie beside stacked experts and look like their biases.
        rest |= {name: vector for name, vector in stack.vectors.items() if name in tensors}
        for name, tensor in rest.items():
            if tensor.dim() != 2 or not tensor.is_floating_point():
                matrix = None
            elif tensor.shape[1] == hidden_size and tensor.shape[0] > 1:
                matrix = tensor
            else:
                matrix = tensor.T if tensor.shape[0] == hidden_size and tensor.shape[1] > 1 else None
            if matrix is None or len(matrix) < stack.num_experts:
                continue
            if len(matrix) > stack.num_experts:
                short.append(f"{name} has {len(matrix)} rows for {stack.num_experts} experts")
                continue
            vectors = {other: t.flatten() for other, t in rest.items() if other != name and t.numel() == len(matrix)}
            biases = {other: vector for other, vector in stack.vectors.items() if other != name}
            unlikely = not any(hint in name.lower() for hint in ROUTER_HINTS)
            found.append((unlikely, _Parts(replace(stack, vectors=biases), name, matrix, vectors)))
    if not found and short:
        feature = "a router of more than the routed experts"
        raise UnsupportedError(feature, where=context.name, detail="; ".join(dict.fromkeys(short)))
    stacked = {name: list(tensor.shape) for name, tensor in tensors.items() if tensor.dim() == 3}
    counts = {shape[0] for shape in stacked.values()}
    if not found and any(tensor.dim() == 2 and len(tensor) in counts for tensor in tensors.values()):
        shapes = ", ".join(f"{name} {shape}" for name, shape in stacked.items())
        raise UnsupportedError("experts of an unknown form", where=context.name, detail=f"stacked tensors {shapes}")
    if not found:
        raise NotMoe(f"{context.name} has no experts with a router")
    return [parts for _, parts in sorted(found, key=lambda item: item[0])]


def _explain(context: LayerContext, parts: _Parts) -> Inferred[MoeSpec]:
    hidden_size = context.call.input.shape[-1]
    inputs = _inputs(parts, hidden_size)
    generator = torch.Generator().manual_seed(1)
    random = {name: torch.randn(vector.shape, generator=generator) * 0.3 for name, vector in parts.vectors.items()}
    shapes = {name: tensor.shape for name, tensor in _tensors(context).items()}
    # Biases of the choice are often zero or close to it; with random ones no choice is explained without them.
    with replaced(context.module, {name: value.reshape(shapes[name]) for name, value in random.items()}):
        seen = probe(context, inputs)
    taken = {*parts.stack.names, parts.router}
    candidates = shared_candidates(context, seen, taken)
    columns = torch.stack([candidate.outputs for candidate in candidates], 1) if candidates else inputs[:, None][:, :0]
    routed = len(LOGIT_SCALES) * TOKENS_PER_SCALE
    count = parts.stack.num_experts
    factors = None
    try:
        fit = _fit(context, parts, seen, columns)
    except UnsupportedError as error:
        # The clamp's tokens are left out: sigmoids of their logits are 1.
        found = fit_weighted(context, parts, seen, columns, rows=routed)
        if found is None:
            raise error
        fit, factors = found
    outputs = outputs_of(fit.form, inputs, factors=factors)
    solution = solve(torch.cat((outputs, columns.double()), 1), seen.outputs)
    weights = solution.weights[:, :count]
    weights = weights if factors is None else _whole(weights) * factors
    observed = Observed(inputs[:routed], weights[:routed])
    routing = infer_routing(observed, parts.matrix, random, context.config, where=context.name)
    shared = infer_shared(context, seen, candidates, solution.weights[:, count:], taken)
    inferred = _assemble(context, parts, fit, routing, shared, weigh_inputs=factors is not None)
    judged = inputs[:routed]
    if routing.spec.score == "sparse_mixer":
        judged = torch.cat((judged, close_tokens(parts.matrix)))
    _judge(context, inferred, judged)
    return inferred


def _inputs(parts: _Parts, hidden_size: int) -> Tensor:
    """[N, hidden]: tokens for every scale of router logits, then those for clamps."""
    generator = torch.Generator().manual_seed(0)
    router = float(parts.matrix.float().norm(dim=1).square().mean().sqrt())
    largest = max(float(matrix.float().square().mean().sqrt()) for matrix in parts.stack.matrices.values())
    scales = [scale / max(router, 1e-6) for scale in LOGIT_SCALES]
    scales.append(CLAMP_SCALE / max(largest * math.sqrt(hidden_size), 1e-6))
    return torch.cat([torch.randn(TOKENS_PER_SCALE, hidden_size, generator=generator) * scale for scale in scales])


def close_tokens(matrix: Tensor) -> Tensor:
    """Return tokens [N, hidden] whose largest logits of a router [experts, hidden] are close to each other."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(TOKENS_PER_SCALE, len(matrix), generator=generator)
    best, place = logits.max(1, keepdim=True)
    gaps = torch.logspace(-3, -0.3, TOKENS_PER_SCALE)[:, None]
    logits = logits.scatter(1, (place + 1) % len(matrix), best - gaps * best.abs())
    return (torch.linalg.pinv(matrix.double()) @ logits.double().T).T.float()


def _fit(context: LayerContext, parts: _Parts, seen: Replay, columns: Tensor) -> Fit:
    hidden_size, count = seen.inputs.shape[1], parts.stack.num_experts + columns.shape[1]
    if count >= hidden_size:
        raise UnsupportedError(
            "as many experts as hidden dimensions",
            where=context.name,
            detail=f"{count} outputs in {hidden_size} dimensions cannot be distinguished; analyse a config with fewer",
        )
    forms = arrangements(parts.stack, hidden_size)
    if not forms:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in parts.stack.matrices.items())
        raise UnsupportedError(
            "experts that are no feed-forward layers of two or three matrices", where=context.name, detail=shapes
        )
    fit = fit_experts(forms, seen.inputs, seen.outputs, columns, context.config)
    if fit.error >= TOLERANCE:
        raise _unexplained(context, parts, fit, seen, columns)
    return fit


def fit_weighted(
    context: LayerContext, parts: _Parts, seen: Replay, columns: Tensor, *, rows: int
) -> tuple[Fit, Tensor] | None:
    """Return the experts whose inputs are multiplied by scores of the router, and these scores [N, experts]; None where
    that explains nothing. An expert without biases gives nothing where it gets nothing, so those that are not chosen
    have the weight 0, and the chosen ones 1."""
    hidden_size = seen.inputs.shape[1]
    logits = seen.inputs.double() @ parts.matrix.double().T
    names = dict.fromkeys((*(name for name in strings_of(context.config) if name in ACTIVATIONS), "silu", "gelu"))
    for scores, arranged, name in itertools.product(
        (logits.sigmoid(), logits.softmax(-1)), arrangements(parts.stack, hidden_size), names
    ):
        form = replace(arranged, activation=name)
        if any(key.endswith("_bias") for key in form.tensors):
            continue
        experts = outputs_of(form, seen.inputs, factors=scores)
        sources, outputs = torch.cat((experts, columns.double()), 1)[:rows], seen.outputs[:rows].double()
        weights = solve(sources, outputs).weights
        whole = torch.cat((_whole(weights[:, : experts.shape[1]]), weights[:, experts.shape[1] :]), 1)
        off = (outputs - torch.einsum("nc,nch->nh", whole, sources)).abs().amax(1)
        error = float((off / outputs.square().mean(1).sqrt()).max())
        if error < TOLERANCE:
            return Fit(form, error, None), scores
    return None


def _whole(weights: Tensor) -> Tensor:
    """Return 1 for weights that are, and 0 for all others: those of outputs close to nothing are not known at all."""
    return ((weights - 1).abs() < WHOLE).to(weights.dtype)


def _unexplained(context: LayerContext, parts: _Parts, fit: Fit, seen: Replay, columns: Tensor) -> UnsupportedError:
    """Say what is in the outputs besides experts of a known form, if one of a few further things explains
    them."""
    hidden_size = seen.inputs.shape[1]
    vectors = {name: tensor for name, tensor in _tensors(context).items() if tensor.shape == (hidden_size,)}
    rows = torch.linspace(0, len(seen.inputs) - 1, SCREENED_TOKENS).long()
    seen = replace(seen, inputs=seen.inputs[rows], outputs=seen.outputs[rows])
    columns = columns[rows]
    names = dict.fromkeys((*(name for name in strings_of(context.config) if name in ACTIVATIONS), "silu"))
    for arranged, name in itertools.product(arrangements(parts.stack, hidden_size), names):
        form = replace(arranged, activation=name)
        outputs = outputs_of(form, seen.inputs)

        def explains(*more: Tensor, experts: Tensor = outputs) -> bool:
            return solve(torch.cat((experts, columns.double(), *more), 1), seen.outputs).error < TOLERANCE

        if explains(seen.inputs.double()[:, None]):
            detail = "the hidden states themselves are part of what is mixed"
            return UnsupportedError("experts that compute nothing", where=context.name, detail=detail)
        for vector_name, vector in vectors.items():
            if explains(vector.double().expand(len(outputs), 1, hidden_size)):
                detail = f"{vector_name} is part of what is mixed"
                return UnsupportedError("a bias on the mixture of experts", where=context.name, detail=detail)
    detail = f"the closest form of an expert ({fit.form.describe()}) leaves an error of {fit.error:.1e}"
    return UnsupportedError("experts of an unknown form", where=context.name, detail=detail)


def _assemble(
    context: LayerContext, parts: _Parts, fit: Fit, routing: Routing, shared: Shared, *, weigh_inputs: bool
) -> Inferred[MoeSpec]:
    own = _tensors(context)
    biases = {name for name in ("gate", "up", "down") if f"{name}_bias" in fit.form.tensors}
    if biases not in (set(), {"gate", "up", "down"} if fit.form.gated else {"up", "down"}):
        raise UnsupportedError(
            "experts with biases on some matrices only", where=context.name, detail=f"biases of {sorted(biases)}"
        )
    experts = _spec_of(fit.form)
    tensors: dict[str, Tensor] = {"router.weight": parts.matrix}
    if routing.bias is not None:
        tensors["router.bias"] = own[routing.bias].flatten()
    if routing.selection_bias is not None:
        tensors["router.selection_bias"] = own[routing.selection_bias].flatten().float()
    tensors |= {f"experts.{name}": tensor for name, tensor in fit.form.tensors.items()}
    tensors |= shared.tensors
    margin = fit.runner_up[1] / TOLERANCE if fit.runner_up else None
    evidence = FeatureEvidence(
        feature="experts",
        value=f"{parts.stack.num_experts} of {fit.form.describe()}{', inputs weighted' if weigh_inputs else ''}",
        source="probe",
        detail=f"{context.name}: {', '.join(parts.stack.matrices)}; random outputs explained to {fit.error:.1e}",
        margin=margin,
    )
    spec = MoeSpec(
        router=routing.spec,
        experts=experts,
        shared=shared.spec,
        shared_gate=shared.gated,
        shared_scale=shared.scale,
        weigh_inputs=weigh_inputs,
    )
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return Inferred(spec=spec, tensors=contiguous, evidence=(evidence, *routing.evidence, *shared.evidence))


def _judge(context: LayerContext, inferred: Inferred[MoeSpec], inputs: Tensor) -> None:
    """Check that the reference layer does what the module does, on random inputs and on those of the trace."""
    with torch.device("meta"):
        layer = reference.feed_forward(inferred.spec, inputs.shape[1])
    layer.load_state_dict(dict(inferred.tensors), strict=True, assign=True)
    seen = probe(context, inputs)
    traced = context.call.input.reshape(-1, inputs.shape[1])
    ends = context.call.output if context.end is None else context.trace.calls[context.end][0].input
    expected = ends.reshape(traced.shape)
    if context.shared is not None:
        expected = expected + context.trace.calls[context.shared][0].output.reshape(traced.shape)
    with torch.no_grad():
        for kind, given, wanted in (("random", inputs, seen.outputs), ("traced", traced, expected)):
            size = wanted.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
            error = float(((layer(given) - wanted).abs() / size).max())
            if not error < TOLERANCE:
                raise UnsupportedError(
                    "a mixture of experts of an unknown form",
                    where=context.name,
                    detail=f"{inferred.spec} is off by {error:.1e} on {kind} inputs",
                )


# ------------------------------------------------------------------------------------------------------- shared experts

# Shared experts: the part of a mixture that every token goes through, with or without a gate of its own.


@dataclass(frozen=True)
class SharedCandidate:
    """A part whose output may be added to that of the routed experts."""

    name: str
    """Qualified name: of a feed-forward layer, or of its last matrix where the mixture itself holds the matrices."""
    outputs: Tensor
    """[N, hidden], for the probe's inputs."""
    whole: bool
    """Whether it is a module of its own, with the same input as the mixture."""


@dataclass(frozen=True)
class Shared:
    """What was found; tensors have their canonical names in the mixture."""

    spec: MlpSpec | None = None
    gated: bool = False
    scale: float = 1.0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    evidence: tuple[FeatureEvidence, ...] = ()


def shared_candidates(context: LayerContext, seen: Replay, taken: Collection[str]) -> list[SharedCandidate]:
    """Return the modules that turn the mixture's input into hidden states. taken: parameters of router and routed
    experts."""
    routed = {f"{context.name}.{name}" for name in taken}
    found: list[SharedCandidate] = []
    loose: list[SharedCandidate] = []
    for name, call in sorted(seen.calls.items(), key=lambda item: item[0].count(".")):
        inside = any(name.startswith(f"{other.name}.") for other in found)
        inner = context.model.get_submodule(name).named_parameters()
        matrices = {f"{name}.{key}" for key, parameter in inner if parameter.dim() > 1}
        if name == context.name or inside or routed & matrices or call.output.numel() != seen.outputs.numel():
            continue
        outputs = call.output.reshape(seen.outputs.shape)
        if len(matrices) > 1 and _same(call.input, seen.inputs):
            found.append(SharedCandidate(name, outputs, whole=True))
        elif len(matrices) == 1 and not _same(call.input, seen.inputs):
            loose.append(SharedCandidate(name, outputs, whole=False))
    return found or loose


def infer_shared(
    context: LayerContext, seen: Replay, candidates: list[SharedCandidate], factors: Tensor, taken: Collection[str]
) -> Shared:
    """Infer the shared experts. factors [N, candidates]: how much of each candidate's output is in the mixture's.
    UnsupportedError for more than one, and for factors that are neither the same for all tokens nor a sigmoid of a
    linear layer."""
    if not candidates:
        return Shared()
    if len(candidates) > 1:
        names = ", ".join(candidate.name for candidate in candidates)
        raise UnsupportedError("several shared experts", where=context.name, detail=names)
    candidate, factor = candidates[0], factors[:, 0]
    gate, scale, gate_evidence = _gate(context, seen, candidate, factor)
    if candidate.whole:
        module = context.model.get_submodule(candidate.name)
        inferred = infer_mlp(replace(context, module=module, name=candidate.name, shared=None))
    else:
        inferred = _loose(context, seen, candidate, taken)
    tensors = {f"shared_experts.{name}": tensor for name, tensor in inferred.tensors.items()}
    if gate is not None:
        tensors["shared_gate.weight"] = gate
    form = f"{'gated ' if inferred.spec.gated else ''}{inferred.spec.activation}"
    evidence = FeatureEvidence(
        feature="shared_experts",
        value=f"{form} of size {inferred.spec.intermediate_size}",
        source="probe",
        detail=f"{candidate.name}: added to the routed experts, {gate_evidence}",
    )
    return Shared(inferred.spec, gate is not None, scale, tensors, (evidence,))


def _gate(
    context: LayerContext, seen: Replay, candidate: SharedCandidate, factor: Tensor
) -> tuple[Tensor | None, float, str]:
    """Return the gate's weight [1, hidden] for a factor per token, or None; and a factor for all tokens."""
    inputs, outputs = seen.inputs.double(), seen.outputs.double()
    # What is a small part of an output says little about its factor: differences count by what they do to the output.
    weight = candidate.outputs.double().abs().amax(1) / outputs.square().mean(1).sqrt().clamp_min(1e-30)

    def agrees(expected: Tensor | float) -> bool:
        return float(((factor - expected).abs() * weight.clamp(max=1.0)).max()) < TOLERANCE

    if agrees(1.0):
        return None, 1.0, "in full"
    for own, parameter in context.module.named_parameters():
        if parameter.numel() == inputs.shape[1] and agrees((inputs @ parameter.detach().double().flatten()).sigmoid()):
            return parameter.detach().reshape(1, -1), 1.0, f"times sigmoid of {own}"
    typical = snapped(float(factor[weight.argmax()]), (0.5, *numbers_of(context.config)), tolerance=TOLERANCE)
    if agrees(typical):
        return None, typical, f"times {typical:g}"
    raise UnsupportedError(
        "a factor on shared experts", where=candidate.name, detail="its output is multiplied by something per token"
    )


def _loose(
    context: LayerContext, seen: Replay, candidate: SharedCandidate, taken: Collection[str]
) -> Inferred[MlpSpec]:
    """Return the matrices that the mixture itself holds, read like experts of which there is one."""
    hidden_size = seen.inputs.shape[1]
    rest = {name: tensor.detach() for name, tensor in context.module.named_parameters() if name not in taken}
    matrices = {name: tensor[None] for name, tensor in rest.items() if tensor.dim() == 2 and min(tensor.shape) > 1}
    vectors = {name: tensor[None] for name, tensor in rest.items() if tensor.dim() == 1}
    forms = arrangements(Stack(1, matrices, vectors, frozenset(rest)), hidden_size)
    none = seen.inputs[:, None][:, :0]
    fit = fit_experts(forms, seen.inputs, candidate.outputs, none, context.config) if forms else None
    if fit is None or fit.error >= TOLERANCE:
        shapes = ", ".join(f"{name} {list(tensor.shape[1:])}" for name, tensor in matrices.items())
        raise UnsupportedError("shared experts of an unknown form", where=candidate.name, detail=shapes)
    form = fit.form
    kinds = {"proj": "proj.weight", "bias": "proj.bias"}
    tensors = {
        f"{role}_{kinds[kind]}": tensor[0]
        for name, tensor in form.tensors.items()
        for role, _, kind in (name.partition("_"),)
    }
    return Inferred(spec=_spec_of(form), tensors=tensors)


def _spec_of(form: ExpertForm) -> MlpSpec:
    return MlpSpec(
        gated=form.gated,
        activation=form.activation,
        intermediate_size=form.tensors["up_proj"].shape[1],
        bias="up_bias" in form.tensors,
        output_bias="down_bias" in form.tensors,
        clamp=form.clamp,
        up_offset=form.up_offset,
    )


def _same(left: Tensor, right: Tensor) -> bool:
    return left.numel() == right.numel() and torch.equal(left.reshape(right.shape), right)
