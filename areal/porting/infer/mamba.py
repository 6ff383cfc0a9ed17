"""Mamba-2: which rows are gates, inputs, keys, queries and steps, in any layout.

As for delta rules, the filters say which rows are inputs, keys and queries; every assignment of the rest is run through
the plain recurrence.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import recurrences
from areal.porting.infer.delta import EPSILON_TOLERANCE, KNOWN_EPSILONS, activations_of
from areal.porting.infer.mixer_parts import MixerHypothesis, convolved, filtered
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import LOCAL, error, snapped
from areal.porting.spec import Mamba2Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.porting.infer.mixer_parts import Filtered, MixerParts

ORDERS: Final = ("xbc", "xcb", "bcx", "cbx")
"""Of inputs, keys and queries among the filters, the usual one first."""
NO_LIMITS: Final = (0.0, math.inf)


@dataclass(frozen=True)
class _Shape:
    """How many heads and groups there are, and the vectors that belong to them."""

    heads: int
    groups: int
    state_size: int
    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor
    weight: Tensor | None
    """Of the norm; None without one."""


def mambas(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the Mamba-2 layers that give what enters the last projection."""
    filters = filtered(parts)
    keys = 0 if filters is None else (len(filters.rows) - parts.width) // 2
    if filters is None or keys < 1 or 2 * keys + parts.width != len(filters.rows):
        return
    taken = set(filters.rows.tolist())
    left = torch.tensor([row for row in range(parts.projected().shape[-1]) if row not in taken])
    for shape in shapes_of(parts, keys):
        if len(left) != parts.width + shape.heads:
            continue
        for gate, step in (left.split([parts.width, shape.heads]), left.split([shape.heads, parts.width])[::-1]):
            yield from fitting(parts, filters, shape, gate, step)


def shapes_of(parts: MixerParts, keys: int) -> Iterator[_Shape]:
    """Yield every split into heads and groups that the vectors of the module allow. keys: features of all keys."""
    vectors = [value.reshape(-1) for value in parts.parameters.values() if value.numel() == max(value.shape)]
    weights: list[Tensor | None] = [each for each in vectors if len(each) == parts.width]
    for three in itertools.permutations(vectors, 3):
        count = len(three[0])
        if any(len(each) != count for each in three) or parts.width % count or count == parts.width:
            continue
        groups = [number for number in range(1, count + 1) if count % number == 0 and keys % number == 0]
        for weight, number in itertools.product(weights or [None], groups):
            yield _Shape(count, number, keys // number, *three, weight)


def fitting(
    parts: MixerParts, filters: Filtered, shape: _Shape, gate_rows: Tensor, step_rows: Tensor
) -> Iterator[MixerHypothesis]:
    """Yield the hypotheses with these heads and rows that hold."""
    projected, keys = parts.projected().double(), shape.groups * shape.state_size
    mixed = convolved(projected[..., filters.rows], filters.kernel)
    raw = functional.softplus(projected[..., step_rows] + shape.dt_bias.double())
    gate, target = functional.silu(projected[..., gate_rows]), parts.entering().double()
    for activation, order, limits in itertools.product(activations_of(parts), ORDERS, limits_of(parts)):
        sizes = [parts.width if part == "x" else keys for part in order]
        split = dict(zip(order, ACTIVATIONS[activation](mixed).split(sizes, -1), strict=True))
        inputs = split["x"].unflatten(-1, (shape.heads, -1))
        step = raw.clamp(*limits)
        given = given_by(split, inputs, step, shape)
        places = dict(zip(order, torch.arange(len(filters.rows)).split(sizes), strict=True))
        inputs_rows, key_rows, query_rows = (filters.rows[places[part]] for part in "xbc")
        sections = (gate_rows, inputs_rows, key_rows, query_rows, step_rows)
        multipliers = factors_of(parts, sections)
        for norm_first in (False, True) if shape.weight is not None else (False,):
            if shape.weight is None:
                found = without_norm(given, gate, target)
            else:
                found = _normed(given, gate, target, shape, parts, norm_first=norm_first)
            if found is None or multipliers is None:
                continue
            eps, groups = found
            tensors, biased = _tensors(parts, filters, shape, gate_rows, step_rows, places)
            spec = Mamba2Spec(
                num_heads=shape.heads,
                head_dim=parts.width // shape.heads,
                num_groups=shape.groups,
                state_size=shape.state_size,
                kernel_size=filters.kernel.weight.shape[1],
                norm_eps=eps,
                norm_groups=groups,
                norm_first=norm_first,
                bias=biased,
                output_bias=parts.last.bias is not None,
                conv_bias=filters.bias is not None,
                conv_activation=activation,
                step_limits=limits,
                multipliers=multipliers,
            )
            yield MixerHypothesis(spec, tensors, f"filters of {order}")


def factors_of(
    parts: MixerParts, sections: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> tuple[float, float, float, float, float] | None:
    """Return the factors of gates, inputs, keys, queries and steps; None where one of them has several."""
    found = [parts.factor(rows) for rows in sections]
    known = numbers_of(parts.context.config)
    gate, inputs, keys, queries, steps = (None if each is None else snapped(each, known) for each in found)
    if gate is None or inputs is None or keys is None or queries is None or steps is None:
        return None
    return gate, inputs, keys, queries, steps


def given_by(split: dict[str, Tensor], inputs: Tensor, step: Tensor, shape: _Shape) -> Tensor:
    """Return what the states give and what passes them by, [B, T, H, P]."""
    key, query = (split[part].unflatten(-1, (-1, shape.state_size)) for part in "bc")
    decay = -shape.a_log.double().exp() * step
    # Rows of the batch are heads of their own.
    flat = (part.transpose(0, 1).flatten(1, 2) for part in (query, key, inputs, decay, step))
    summed = recurrences.state_space(*flat).unflatten(1, (len(inputs), -1)).transpose(0, 1)
    return summed + shape.skip.double()[:, None] * inputs


def without_norm(given: Tensor, gate: Tensor, target: Tensor) -> tuple[float | None, int] | None:
    """Return the epsilon and groups of no norm, if the target comes out without one."""
    return (None, 1) if error((given.flatten(-2) * gate).float(), target.float()) <= LOCAL else None


def _normed(
    given: Tensor, gate: Tensor, target: Tensor, shape: _Shape, parts: MixerParts, *, norm_first: bool
) -> tuple[float | None, int] | None:
    """Return the epsilon of the norm and the number of its groups with which the target comes out."""
    assert shape.weight is not None, "a norm with a weight"
    flat = given.flatten(-2)
    before = flat if norm_first else flat * gate
    scaled = before * shape.weight.double() * (gate if norm_first else 1.0)
    for groups in dict.fromkeys((shape.groups, 1, shape.heads)):
        parts_of = before.unflatten(-1, (groups, -1))
        square = parts_of.square().mean(-1, keepdim=True)
        values, wanted = scaled.unflatten(-1, (groups, -1)), target.unflatten(-1, (groups, -1))
        factor = (values * wanted).sum(-1, keepdim=True) / values.square().sum(-1, keepdim=True).clamp_min(1e-300)
        if error((values * factor).float(), wanted.float()) > 10 * LOCAL:
            continue
        measured = float((factor.clamp_min(1e-30) ** -2 - square).median())
        held = [value for child in parts.context.module.modules() for value in vars(child).values()]
        own = [value for value in held if isinstance(value, float)]
        known = [value for value in (*own, *numbers_of(parts.context.config), *KNOWN_EPSILONS) if 0 < value < 0.1]
        for eps in (snapped(measured, known, tolerance=EPSILON_TOLERANCE), *known):
            if eps >= 0 and error((values * (square + eps).rsqrt()).float(), wanted.float()) <= LOCAL:
                return eps, groups
    return None


def limits_of(parts: MixerParts) -> list[tuple[float, float]]:
    """Return the bounds of steps that the module or the config may mean, none first."""
    held: list[Any] = [*vars(parts.context.module).values(), *parts.context.config.values()]
    pairs = [tuple(map(float, value)) for value in held if is_pair(value)]
    return list(dict.fromkeys([NO_LIMITS, *((low, high) for low, high in pairs)]))


def is_pair(value: Any) -> bool:
    numbers = isinstance(value, list | tuple) and len(value) == 2
    return numbers and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)


def _tensors(
    parts: MixerParts, filters: Filtered, shape: _Shape, gate: Tensor, step: Tensor, places: dict[str, Tensor]
) -> tuple[dict[str, Tensor], bool]:
    """Return the canonical tensors, and whether the projections have biases."""
    found = {"A_log": shape.a_log, "dt_bias": shape.dt_bias, "D": shape.skip}
    found |= {} if shape.weight is None else {"norm.weight": shape.weight}
    rows = {"z": gate, "dt": step} | {part: filters.rows[place] for part, place in places.items()}
    for part, place in places.items():
        found[f"{part}_conv.weight"] = filters.kernel.weight[place]
        if filters.bias is not None:
            found[f"{part}_conv.bias"] = filters.bias[place]
    biases = []
    for part, place in rows.items():
        found[f"{part}_proj.weight"], bias = parts.rows(place)
        if bias is not None:
            found[f"{part}_proj.bias"] = bias
        biases.append(bias is not None)
    found["o_proj.weight"] = parts.last.weight
    if parts.last.bias is not None:
        found["o_proj.bias"] = parts.last.bias
    return {name: value.contiguous() for name, value in found.items()}, any(biases)
