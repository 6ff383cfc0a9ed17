"""Lightning attention: which rows are queries, keys, values and gates, in any layout.

The module's tables say how many heads there are, since slopes follow from that; every arrangement of the rows is run
through the plain recurrence.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from areal.models.blocks.lightning import TABLES, decay_tables, slope_rates
from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import recurrences
from areal.porting.infer.delta import KNOWN_EPSILONS, activations_of
from areal.porting.infer.mixer_parts import MixerHypothesis
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import EQUAL, LOCAL, error
from areal.porting.spec import LightningSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.porting.infer.mixer_parts import MixerParts


def lightnings(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the lightning attentions that give what enters the last projection."""
    width, total = parts.width, parts.projected().shape[-1]
    weights = [value for value in parts.parameters.values() if value.shape == (width,)]
    if total != 4 * width or any(each.bias is not None for each in (*parts.first, parts.last)):
        return
    for heads in (number for number in range(1, width + 1) if width % number == 0):
        tables = tables_of(parts, heads)
        if tables is None:
            continue
        for weight, (rows, gate, layout) in itertools.product(weights, arrangements(width, heads)):
            yield from fitting(parts, tables, weight, rows, gate, layout)


def tables_of(parts: MixerParts, heads: int) -> dict[str, Tensor] | None:
    """Return the module's tables by our names, if it has all of those of so many heads."""
    slopes = slope_rates(heads, parts.context.layer, parts.context.num_layers)
    held = [value.detach() for _, value in parts.context.module.named_buffers(recurse=False)]
    sizes = {value.shape[-1] for value in held if value.dim() == 4}
    for size in sizes:
        found = {}
        for name, table in decay_tables(slopes, size).items():
            alike = [each for each in held if each.shape == table.shape]
            found[name] = next((each for each in alike if error(each.float(), table) <= LOCAL), None)
        if all(value is not None for value in found.values()):
            return {name: value for name, value in found.items() if value is not None}
    return None


def arrangements(width: int, heads: int) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor, str]]:
    """Yield the rows of queries, keys and values, those of gates, and words for them."""
    everything = torch.arange(4 * width)
    for gate, rest in ((everything[3 * width :], everything[: 3 * width]), (everything[:width], everything[width:])):
        by_head = rest.view(heads, 3, -1)
        for order in itertools.permutations("qkv"):
            places = [by_head[:, order.index(part)].flatten() for part in "qkv"]
            yield (places[0], places[1], places[2]), gate, f"{', '.join(order)} of every head"
            pieces = [rest.view(3, -1)[order.index(part)] for part in "qkv"]
            yield (pieces[0], pieces[1], pieces[2]), gate, f"{', '.join(order)} one below the other"


def fitting(
    parts: MixerParts,
    tables: dict[str, Tensor],
    weight: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    gate: Tensor,
    layout: str,
) -> Iterator[MixerHypothesis]:
    """Yield the hypotheses with these rows that hold, one for each activation."""
    projected, target = parts.projected().double(), parts.entering().double()
    scale = weight.double() * projected[..., gate].sigmoid()
    heads = len(tables["slope_rate"])
    slopes = tables["slope_rate"].double().flatten()
    for activation in activations_of(parts):
        split = [ACTIVATIONS[activation](projected[..., places]).unflatten(-1, (heads, -1)) for places in rows]
        # The first token reads its own value, whatever the decay is: a multiple of it in every head.
        alone = (target / scale)[:, 0].unflatten(-1, (heads, -1))
        value = split[2][:, 0]
        factor = (alone * value).sum(-1, keepdim=True) / value.square().sum(-1, keepdim=True).clamp_min(1e-300)
        if error((value * factor).float(), alone.float()) > 10 * LOCAL:
            continue
        batch, length = projected.shape[:2]
        # Rows of the batch are heads of their own.
        query, key, value = (part.transpose(0, 1).flatten(1, 2) for part in split)
        decay = -slopes.repeat(batch).expand(length, -1)
        given = recurrences.state_space(query, key, value, decay, torch.ones_like(decay))
        given = given.unflatten(1, (batch, -1)).transpose(0, 1).flatten(-2)
        eps = epsilon_of(parts, given, scale, target)
        if eps is None:
            continue
        spec = LightningSpec(
            num_heads=heads,
            head_dim=parts.width // heads,
            num_layers=parts.context.num_layers,
            table_size=tables["diagonal_decay"].shape[-1],
            norm_eps=eps,
            activation=activation,
        )
        tensors = {f"{part}_proj.weight": parts.rows(places)[0] for part, places in zip("qkv", rows, strict=True)}
        tensors |= {"gate_proj.weight": parts.rows(gate)[0], "norm.weight": weight, "o_proj.weight": parts.last.weight}
        tensors = {name: value.contiguous() for name, value in (tensors | {n: tables[n] for n in TABLES}).items()}
        yield MixerHypothesis(spec, tensors, layout)


def epsilon_of(parts: MixerParts, given: Tensor, scale: Tensor, target: Tensor) -> float | None:
    """Return the epsilon of the norm over all heads with which the target comes out."""
    square = given.square().mean(-1, keepdim=True)
    scaled = given * scale
    factor = (scaled * target).sum(-1, keepdim=True) / scaled.square().sum(-1, keepdim=True).clamp_min(1e-300)
    if error((scaled * factor).float(), target.float()) > 10 * LOCAL:
        return None
    held = [value for child in parts.context.module.modules() for value in vars(child).values()]
    own = [value for value in held if isinstance(value, float)]
    known = [value for value in (*own, *numbers_of(parts.context.config), *KNOWN_EPSILONS) if 0 < value < 0.1]

    def off(eps: float) -> float:
        return error((scaled * (square + eps).rsqrt()).float(), target.float())

    # Squares are large beside it: of those that fit equally well, as far as can be measured, it is the module's own.
    errors = {eps: off(eps) for eps in dict.fromkeys(known)}
    best = min(errors.values())
    if best <= LOCAL:
        return next(eps for eps in errors if errors[eps] <= max(2 * best, EQUAL))
    measured = float((factor.clamp_min(1e-30) ** -2 - square).flatten()[square.argmin()])
    return measured if measured > 0 and off(measured) <= LOCAL else None
