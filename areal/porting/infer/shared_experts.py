"""Shared experts: the part of a mixture that every token goes through, with or without a gate of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from areal.porting.infer.experts import TOLERANCE, Stack, arrangements, fit_experts
from areal.porting.infer.mlp import infer_mlp
from areal.porting.infer.probe import numbers_of
from areal.porting.infer.tensors import snapped
from areal.porting.records import Evidence, Inferred, UnsupportedError
from areal.porting.spec import MlpSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor, nn

    from areal.porting.infer.probe import Probe
    from areal.porting.records import LayerContext


@dataclass(frozen=True)
class Candidate:
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
    evidence: tuple[Evidence, ...] = ()


def shared_candidates(context: LayerContext, seen: Probe, taken: Collection[str]) -> list[Candidate]:
    """Modules that turn the mixture's input into hidden states. taken: parameters of router and routed experts."""
    routed = {f"{context.name}.{name}" for name in taken}
    found: list[Candidate] = []
    loose: list[Candidate] = []
    for name, call in sorted(seen.calls.items(), key=lambda item: item[0].count(".")):
        inside = any(name.startswith(f"{other.name}.") for other in found)
        matrices = _matrices(context.model.get_submodule(name), name)
        if name == context.name or inside or routed & matrices or call.output.numel() != seen.outputs.numel():
            continue
        outputs = call.output.reshape(seen.outputs.shape)
        if len(matrices) > 1 and _same(call.input, seen.inputs):
            found.append(Candidate(name, outputs, whole=True))
        elif len(matrices) == 1 and not _same(call.input, seen.inputs):
            loose.append(Candidate(name, outputs, whole=False))
    return found or loose


def infer_shared(
    context: LayerContext, seen: Probe, candidates: list[Candidate], factors: Tensor, taken: Collection[str]
) -> Shared:
    """factors [N, candidates]: how much of each candidate's output is in the mixture's. UnsupportedError for more than
    one, and for factors that are neither the same for all tokens nor a sigmoid of a linear layer."""
    if not candidates:
        return Shared()
    if len(candidates) > 1:
        names = ", ".join(candidate.name for candidate in candidates)
        raise UnsupportedError("several shared experts", where=context.name, detail=names)
    candidate, factor = candidates[0], factors[:, 0]
    gate, scale, gate_evidence = _gate(context, seen, candidate, factor)
    inferred = _whole(context, candidate) if candidate.whole else _loose(context, seen, candidate, taken)
    tensors = {f"shared_experts.{name}": tensor for name, tensor in inferred.tensors.items()}
    if gate is not None:
        tensors["shared_gate.weight"] = gate
    form = f"{'gated ' if inferred.spec.gated else ''}{inferred.spec.activation}"
    evidence = Evidence(
        feature="shared_experts",
        value=f"{form} of size {inferred.spec.intermediate_size}",
        source="probe",
        detail=f"{candidate.name}: added to the routed experts, {gate_evidence}",
    )
    return Shared(inferred.spec, gate is not None, scale, tensors, (evidence,))


def _gate(context: LayerContext, seen: Probe, candidate: Candidate, factor: Tensor) -> tuple[Tensor | None, float, str]:
    """The gate's weight [1, hidden] for a factor per token, or None; and a factor for all tokens."""
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


def _whole(context: LayerContext, candidate: Candidate) -> Inferred[MlpSpec]:
    module = context.model.get_submodule(candidate.name)
    return infer_mlp(replace(context, module=module, name=candidate.name, shared=None))


def _loose(context: LayerContext, seen: Probe, candidate: Candidate, taken: Collection[str]) -> Inferred[MlpSpec]:
    """Matrices that the mixture itself holds, read like experts of which there is one."""
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
    spec = MlpSpec(
        gated=form.gated,
        activation=form.activation,
        intermediate_size=form.tensors["up_proj"].shape[1],
        bias="up_bias" in form.tensors,
        output_bias="down_bias" in form.tensors,
        clamp=form.clamp,
        up_offset=form.up_offset,
    )
    return Inferred(spec=spec, tensors=tensors)


def _matrices(module: nn.Module, prefix: str) -> set[str]:
    return {f"{prefix}.{name}" for name, parameter in module.named_parameters() if parameter.dim() > 1}


def _same(left: Tensor, right: Tensor) -> bool:
    return left.numel() == right.numel() and torch.equal(left.reshape(right.shape), right)
