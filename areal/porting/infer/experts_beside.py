"""Experts beside a feed-forward layer: what their router reads and gives, what they compute, and the norms around them.

The block calls router and experts itself, so each of them is asked alone: the router for random tokens, the experts for
random tokens, choices and weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.porting import reference
from areal.porting.infer.experts import TOLERANCE, arrangements, fit_experts, stacks_of
from areal.porting.infer.norms import fit_norm, infer_norm
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.router import Observed, infer_routing
from areal.porting.infer.tensors import LOCAL, error, same
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import ExpertsBesideSpec, MlpSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from areal.porting.infer.experts import Fit
    from areal.porting.infer.router import Routing
    from areal.porting.records import LayerRoles, ModuleCall, Trace
    from areal.porting.spec import NormSpec

TOKENS: Final = 192
LARGE: Final = 30.0
"""Factor on further tokens, which limits in the experts cannot escape."""
UNKNOWN: Final = "experts beside a feed-forward layer, of an unknown form"


def infer_experts_beside(
    model: nn.Module, roles: LayerRoles, trace: Trace, config: Mapping[str, Any], fed: ModuleCall
) -> tuple[Inferred[ExpertsBesideSpec], Tensor]:
    """Infer the experts beside the feed-forward layer `fed` of a block, and return them with the sum that both give.

    Tensors: "router.weight", "router_norm.weight", "expert_scale", "experts.gate_proj", "mlp_norm.weight", ... Raises
    UnsupportedError where the block does something else with them.
    """
    assert roles.experts_beside is not None, "called for blocks with experts beside"
    router, experts = (trace.calls[name][0] for name in roles.experts_beside)
    calls = [trace.calls[name][0] for name in roles.norms]
    around = {
        "mlp_norm": [call for call in calls if same(call.input, fed.output)],
        "input_norm": [call for call in calls if same(call.output, experts.input)],
        "output_norm": [call for call in calls if same(call.input, experts.output)],
    }
    absent = [name for name, found in around.items() if not found]
    if absent:
        raise UnsupportedError(UNKNOWN, where=roles.block, detail=f"no norm of the block is the {absent[0]}")
    stream = around["input_norm"][0].input
    if not same(stream, router.input):
        raise UnsupportedError(UNKNOWN, where=router.name, detail="it does not read what the experts read, normed")
    norms = {
        name: infer_norm(model.get_submodule(found[0].name), found[0].input, found[0].output, name=found[0].name)
        for name, found in around.items()
    }
    routed, routing, multiplier = infer_normed_router(model, router, experts, config)
    fit = infer_called_experts(model, experts, config)
    matrices = {name: value.contiguous() for name, value in fit.form.tensors.items()}
    if any(name.endswith("_bias") for name in matrices):
        raise UnsupportedError(UNKNOWN, where=experts.name, detail="biases of experts")
    spec = ExpertsBesideSpec(
        router=routing.spec,
        experts=MlpSpec(
            gated=fit.form.gated,
            activation=fit.form.activation,
            intermediate_size=matrices["up_proj"].shape[1],
            clamp=fit.form.clamp,
            up_offset=fit.form.up_offset,
        ),
        router_norm=routed.spec,
        router_multiplier=multiplier,
        **{name: found.spec for name, found in norms.items()},
    )
    tensors = {**routed.tensors, **{f"experts.{name}": value for name, value in matrices.items()}}
    tensors |= {f"{name}.{key}": value for name, found in norms.items() for key, value in found.tensors.items()}
    evidence = FeatureEvidence(
        feature="experts_beside",
        value=f"{routing.spec.num_experts} of {fit.form.describe()}",
        source="probe",
        detail=f"{experts.name}: random outputs explained to {fit.error:.1e}",
        margin=fit.runner_up[1] / TOLERANCE if fit.runner_up else None,
    )
    summed = around["mlp_norm"][0].output + around["output_norm"][0].output.reshape(fed.output.shape)
    found = Inferred(spec=spec, tensors=tensors, evidence=(evidence, *routing.evidence))
    with torch.device("meta"):
        module = reference.experts_beside(spec, stream.shape[-1])
    module.load_state_dict(tensors, strict=True, assign=True)
    with torch.no_grad():
        off = error(module(*(each.reshape(-1, stream.shape[-1]) for each in (stream, fed.output))), summed)
    if off > LOCAL:
        detail = f"its parts were found, but are off by {off:.2g} (relative)"
        raise UnsupportedError(UNKNOWN, where=roles.block, detail=detail)
    return found, summed


def infer_normed_router(
    model: nn.Module, call: ModuleCall, experts: ModuleCall, config: Mapping[str, Any]
) -> tuple[Inferred[NormSpec], Routing, float]:
    """Return the norm of what the router's matrix reads, with the tensors of the whole router; how it chooses; and the
    factor behind that norm."""
    module, width = model.get_submodule(call.name), call.input.shape[-1]
    linear = [
        (name, each) for name, each in module.named_modules() if getattr(each, "weight", torch.empty(0)).ndim == 2
    ]
    chosen = [place - 1 for place in map(call.place_of, experts.inputs.values()) if place]
    if len(linear) != 1 or len(chosen) != 2:
        detail = f"{len(linear)} matrices, of which experts get {len(chosen)} results"
        raise UnsupportedError("a router of more than one matrix", where=call.name, detail=detail)
    hidden = torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(2))
    seen: dict[str, Tensor] = {}
    handle = linear[0][1].register_forward_hook(lambda _, given, result: seen.update(given=given[0], result=result))
    with torch.no_grad():
        outputs = module(hidden)
    handle.remove()
    first, second = (outputs[place] for place in chosen)
    weights, index = (second, first) if second.is_floating_point() else (first, second)
    matrix: Tensor = linear[0][1].weight.detach()
    if not same(seen["result"], seen["given"] @ matrix.T):
        raise UnsupportedError("a bias of a router with a norm", where=call.name, detail=linear[0][0])
    own = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    vectors = {name: value for name, value in own.items() if value.shape == (width,)}
    scales = {name: value for name, value in own.items() if value.shape == (len(matrix),)}
    numbers = [number for number in numbers_of(config) if number > 0]
    for multiplier in (1.0, 1 / math.sqrt(width), *numbers):
        try:
            norm = fit_norm(hidden, seen["given"] / multiplier, vectors, epsilons=numbers, name=call.name)
        except UnsupportedError:
            continue
        break
    else:
        raise UnsupportedError("a router of something else than a norm", where=call.name, detail=linear[0][0])
    refusal: UnsupportedError | None = None
    for scale in scales.values():
        plain = torch.zeros(TOKENS, len(matrix), dtype=torch.float64)
        plain = plain.scatter(1, index, weights.double() / scale.double()[index])
        try:
            routing = infer_routing(Observed(seen["given"], plain), matrix, {}, config, where=call.name)
        except UnsupportedError as problem:
            refusal = refusal or problem
            continue
        tensors = {"router.weight": matrix, "expert_scale": scale}
        tensors |= {f"router_norm.{key}": value for key, value in norm.tensors.items()}
        return replace(norm, tensors=tensors), routing, multiplier
    raise refusal or UnsupportedError(UNKNOWN, where=call.name, detail="no number of each expert beside the matrix")


def infer_called_experts(model: nn.Module, call: ModuleCall, config: Mapping[str, Any]) -> Fit:
    """Return what experts compute of random tokens, with random choices and weights."""
    module, width = model.get_submodule(call.name), call.input.shape[-1]
    stack = next(iter(stacks_of({name: value.detach() for name, value in module.named_parameters()}, width)), None)
    index = next((each for each in call.inputs.values() if not each.is_floating_point()), None)
    if stack is None or index is None:
        raise UnsupportedError(UNKNOWN, where=call.name, detail="no stack of matrices that tokens choose of")
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(TOKENS, width, generator=generator)
    inputs = torch.cat((inputs, LARGE * inputs[: TOKENS // 3]))
    choices = torch.rand(len(inputs), stack.num_experts, generator=generator).topk(index.shape[-1], -1).indices
    weights = torch.rand(choices.shape, generator=generator) + 0.1
    given = [each for each in call.inputs.values() if each is not call.input]
    with torch.no_grad():
        outputs = module(inputs, *(weights if each.is_floating_point() else choices for each in given))
    forms = arrangements(stack, width)
    if not forms:
        raise UnsupportedError(UNKNOWN, where=call.name, detail="experts of other than two or three matrices")
    fit = fit_experts(forms, inputs, outputs, inputs[:, None][:, :0], config)
    if fit.error >= TOLERANCE:
        detail = f"the closest form of an expert ({fit.form.describe()}) leaves an error of {fit.error:.1e}"
        raise UnsupportedError("experts of an unknown form", where=call.name, detail=detail)
    return fit
