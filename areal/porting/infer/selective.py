"""Mamba-1: which rows are gates, inputs, steps, keys and queries, in any layout.

The filters say which rows are inputs; matrices that read them, convolved and activated, make steps, keys and queries.
Every assignment of their rows, and of the vectors beside them, is run through the plain recurrence: its first token
alone, which needs no decay, and then all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import recurrences
from areal.porting.infer.capture import Projection
from areal.porting.infer.delta import KNOWN_EPSILONS, activations_of
from areal.porting.infer.mixer_parts import MixerHypothesis, convolved, filtered
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.spec import Mamba1Spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from areal.porting.infer.mixer_parts import Filtered, MixerParts

PARTS: Final = ("step", "b", "c")


@dataclass(frozen=True)
class _Inputs:
    """What the filters give, activated, and the matrices that read it."""

    filters: Filtered
    gate_rows: Tensor
    activation: str
    values: Tensor
    """[B, T, channels], in float64."""
    matrix: Tensor
    """[rows, channels], all of them one below the other."""


@dataclass(frozen=True)
class _Steps:
    """What steps and decays are made with."""

    rates: Tensor
    """[channels, N], the logarithms."""
    weight: Tensor
    """[channels, rank]."""
    bias: Tensor
    skip: Tensor


@dataclass(frozen=True)
class _Norms:
    """Of steps, keys and queries; without an epsilon there are none."""

    eps: float | None
    weights: Mapping[str, Tensor]


def selective_mambas(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the Mamba-1 layers that give what enters the last projection."""
    filters = filtered(parts)
    total = parts.projected().shape[-1]
    if filters is None or len(filters.rows) != parts.width or total != 2 * parts.width:
        return
    taken = set(filters.rows.tolist())
    gate_rows = torch.tensor([row for row in range(total) if row not in taken])
    mixed = convolved(parts.projected().double()[..., filters.rows], filters.kernel)
    for activation in activations_of(parts):
        values = ACTIVATIONS[activation](mixed)
        matrices = readers_of(parts, values)
        if matrices:
            inputs = _Inputs(filters, gate_rows, activation, values, torch.cat(matrices))
            for steps in steps_of(parts, inputs):
                yield from fitting(parts, inputs, steps)


def readers_of(parts: MixerParts, values: Tensor) -> list[Tensor]:
    """Return the matrices without biases that read these values, but for the last projection."""
    found = []
    for each in parts.run.of(Projection):
        given = each.input.reshape(-1)
        is_other = each is not parts.last and each.bias is None and given.numel() == values.numel()
        if is_other and error(given.view_as(values), values.float()) <= LOCAL:
            found.append(each.weight)
    return found


def steps_of(parts: MixerParts, inputs: _Inputs) -> Iterator[_Steps]:
    """Yield every choice of rates, of the second matrix of steps, and of two vectors, that the shapes allow."""
    channels, rows = parts.width, len(inputs.matrix)
    held = [value.detach() for _, value in parts.context.module.named_parameters()]
    vectors = [value.reshape(-1) for value in held if value.numel() == max(value.shape) == channels]
    matrices = [value for value in held if value.dim() == 2 and channels in value.shape]
    turned = [value if value.shape[0] == channels else value.T for value in matrices]
    for rates, weight in itertools.permutations(turned, 2):
        if 2 * rates.shape[1] + weight.shape[1] == rows:
            for bias, skip in itertools.permutations(vectors, 2):
                yield _Steps(rates, weight, bias, skip)


def fitting(parts: MixerParts, inputs: _Inputs, steps: _Steps) -> Iterator[MixerHypothesis]:
    """Yield the hypotheses with these steps that hold, one for each order of rows and each kind of norms."""
    gate = functional.silu(parts.projected().double()[..., inputs.gate_rows])
    target = parts.entering().double()
    sizes = {"step": steps.weight.shape[1], "b": steps.rates.shape[1], "c": steps.rates.shape[1]}
    made = functional.linear(inputs.values, inputs.matrix.double())
    for order in itertools.permutations(PARTS):
        places = dict(zip(order, torch.arange(len(inputs.matrix)).split([sizes[part] for part in order]), strict=True))
        split = {part: made[..., place] for part, place in places.items()}
        for norms in norms_of(parts, sizes):
            # The first token reads what it has written itself, whatever the rates are.
            if not _gives(split, inputs.values, steps, norms, gate, target, 1):
                continue
            if _gives(split, inputs.values, steps, norms, gate, target, target.shape[1]):
                spec = Mamba1Spec(
                    inner_size=parts.width,
                    state_size=sizes["b"],
                    step_rank=sizes["step"],
                    kernel_size=inputs.filters.kernel.weight.shape[1],
                    norm_eps=norms.eps,
                    norm_weights=bool(norms.weights),
                    bias=parts.last.bias is not None,
                    conv_bias=inputs.filters.bias is not None,
                    conv_activation=inputs.activation,
                )
                yield MixerHypothesis(
                    spec, _tensors(parts, inputs, steps, norms, places), f"rows of {', '.join(order)}"
                )


def norms_of(parts: MixerParts, sizes: Mapping[str, int]) -> Iterator[_Norms]:
    """Yield none first, then every choice of weights and epsilon that the module allows."""
    yield _Norms(None, {})
    held = [value for child in parts.context.module.modules() for value in vars(child).values()]
    own = [value for value in held if isinstance(value, float)]
    known = [value for value in (*own, *numbers_of(parts.context.config), *KNOWN_EPSILONS) if 0 < value < 0.1]
    vectors = [value for value in parts.parameters.values() if value.dim() == 1]
    chosen = [{}, *(dict(zip(PARTS, three, strict=True)) for three in itertools.permutations(vectors, 3))]
    for weights in chosen:
        if all(len(weights[part]) == sizes[part] for part in weights):
            yield from (_Norms(eps, weights) for eps in dict.fromkeys(known))


def _gives(
    split: Mapping[str, Tensor],
    inputs: Tensor,
    steps: _Steps,
    norms: _Norms,
    gate: Tensor,
    target: Tensor,
    length: int,
) -> bool:
    """Return whether the first tokens of the target come out."""
    found = {part: values[:, :length] for part, values in split.items()}
    if norms.eps is not None:
        found = {part: recurrences.rms(values, norms.eps) for part, values in found.items()}
        found = {part: values * norms.weights.get(part, torch.ones(())).double() for part, values in found.items()}
    raw = functional.linear(found["step"], steps.weight.double(), steps.bias.double())
    inputs = inputs[:, :length]
    # Rows of the batch side by side.
    query, key, value, step = (
        part.transpose(0, 1) for part in (found["c"], found["b"], inputs, functional.softplus(raw))
    )
    scanned = recurrences.selective_scan(query, key, value, step, -steps.rates.double().exp()).transpose(0, 1)
    given = (scanned + steps.skip.double() * inputs) * gate[:, :length]
    return error(given.float(), target[:, :length].float()) <= 10 * LOCAL


def _tensors(
    parts: MixerParts, inputs: _Inputs, steps: _Steps, norms: _Norms, places: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    found = {
        "conv.weight": inputs.filters.kernel.weight,
        "dt_proj.weight": steps.weight,
        "dt_bias": steps.bias,
        "A_log": steps.rates,
        "D": steps.skip,
        "o_proj.weight": parts.last.weight,
    }
    if inputs.filters.bias is not None:
        found["conv.bias"] = inputs.filters.bias
    for part, rows in (("z", inputs.gate_rows), ("x", inputs.filters.rows)):
        found[f"{part}_proj.weight"], bias = parts.rows(rows)
        if bias is not None:
            found[f"{part}_proj.bias"] = bias
    if parts.last.bias is not None:
        found["o_proj.bias"] = parts.last.bias
    for part, place in places.items():
        found[f"{part}_proj.weight"] = inputs.matrix[place]
        if part in norms.weights:
            found[f"{part}_norm.weight"] = norms.weights[part]
    return {name: value.contiguous() for name, value in found.items()}
