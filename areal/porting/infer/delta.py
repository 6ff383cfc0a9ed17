"""Gated delta rules: which rows are queries, keys, values, gates, decays and rates, in any layout.

The filters say which rows are queries, keys and values; what is left are gates, decays and rates, or what a second
matrix makes gates and decays of. Every assignment is run through the plain recurrence, and the one that gives what
enters the last projection is the right one: the norm's epsilon and the factor that its weight leaves open follow from
the numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import recurrences
from areal.porting.infer.mixer_parts import MixerHypothesis, convolved, filtered
from areal.porting.infer.replay import numbers_of, strings_of
from areal.porting.infer.tensors import LOCAL, error, snapped
from areal.porting.spec import GatedDeltaSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from areal.porting.infer.mixer_parts import Filtered, MixerParts

ORDERS: Final = ("qkv", "kqv", "vqk", "vkq", "qvk", "kvq")
"""Of queries, keys and values among the filters, the usual one first."""
GATES: Final[tuple[Literal["silu", "sigmoid"], ...]] = ("silu", "sigmoid")
ROLES: Final = ("gate", "rate", "decay")
RANKED: Final = ("decay", "gate")
"""Of these, those that may be products of two matrices."""
FEW: Final = 4
"""First tokens, which most wrong hypotheses contradict: the second is the first with a state to decay and correct."""
KNOWN_EPSILONS: Final = (1e-5, 1e-6, 1e-8, 1e-12)
EPSILON_TOLERANCE: Final = 0.02
"""Relative; what is measured of an epsilon in float32."""


@dataclass(frozen=True)
class _Signal:
    """What the layer's input gives for gates, rates or decays."""

    values: Tensor
    """[B, T, features]."""
    weight: Tensor
    down: Tensor | None = None
    """The matrix before it, where there are two."""


@dataclass(frozen=True)
class _Rest:
    """What is made of the rows without filters."""

    gate: _Signal
    rate: _Signal
    decay: _Signal
    layout: str


@dataclass(frozen=True)
class _Heads:
    """How many heads there are, and the vectors that belong to them."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    a_log: Tensor
    dt_bias: Tensor
    weight: Tensor

    @property
    def by_channel(self) -> bool:
        """Whether each channel of the keys decays by itself."""
        return len(self.dt_bias) > self.values


def gated_deltas(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the gated delta rules that give what enters the last projection."""
    filters = filtered(parts)
    keys = 0 if filters is None else (len(filters.rows) - parts.width) // 2
    if filters is None or filters.bias is not None or keys < 1 or 2 * keys + parts.width != len(filters.rows):
        return
    rows = convolved(parts.projected().double()[..., filters.rows], filters.kernel)
    begins: dict[tuple[Any, ...], bool] = {}
    for heads in splits_into_heads(parts, keys):
        for rest in splits_of_rest(parts, filters, heads):
            yield from fitting(parts, filters, rows, heads, rest, begins)


def splits_into_heads(parts: MixerParts, keys: int) -> Iterator[_Heads]:
    """Yield every split into heads that the vectors of the module allow. keys: features of all keys."""
    vectors = [value.reshape(-1) for value in parts.parameters.values() if value.numel() == max(value.shape)]
    for first, second in itertools.permutations(vectors, 2):
        count = len(first)
        if len(second) % count or parts.width % count:
            continue
        value_dim = parts.width // count
        weights = [each for each in vectors if len(each) == value_dim and each is not first and each is not second]
        groups = [number for number in range(count, 0, -1) if count % number == 0 and keys % number == 0]
        groups = [number for number in groups if len(second) in (count, count * (keys // number))]
        for weight, number in itertools.product(weights, groups):
            yield _Heads(number, count, keys // number, value_dim, first, second, weight)


def splits_of_rest(parts: MixerParts, filters: Filtered, heads: _Heads) -> Iterator[_Rest]:
    """Yield the ways in which the rows without filters may give gates, rates and decays."""
    sizes = {"gate": parts.width, "rate": heads.values, "decay": len(heads.dt_bias)}
    taken = set(filters.rows.tolist())
    taken.update(place for inner, _ in parts.second for place in parts.places_of(inner).tolist())
    left = torch.tensor([row for row in range(parts.projected().shape[-1]) if row not in taken], dtype=torch.int64)
    for ranked in itertools.permutations(RANKED, len(parts.second)):
        if any(len(outer.weight) != sizes[role] for role, (_, outer) in zip(ranked, parts.second, strict=True)):
            continue
        shape = (parts.run.batch, parts.run.length, -1)
        pairs = {
            role: _Signal(outer.output.reshape(shape).double(), outer.weight, inner.weight)
            for role, (inner, outer) in zip(ranked, parts.second, strict=True)
        }
        words = "".join(f", {role} by two matrices" for role in ranked)
        rows = [role for role in ROLES if role not in ranked]
        if len(left) != sum(sizes[role] for role in rows):
            continue
        for order in itertools.permutations(rows):
            pieces = dict(zip(order, left.split([sizes[role] for role in order]), strict=True))
            direct = {role: _rows(parts, places) for role, places in pieces.items()}
            yield _Rest(**pairs, **direct, layout=f"{', '.join(order)} one below the other{words}")
            if ranked or heads.by_channel or order.index("gate") == 1 or heads.keys == 1:
                continue
            small = [role for role in order if role != "gate"]
            together = torch.cat([pieces[role] for role in small])
            halves = together.view(heads.keys, 2 * (heads.values // heads.keys)).chunk(2, 1)
            turned = {role: _rows(parts, half.flatten()) for role, half in zip(small, halves, strict=True)}
            yield _Rest(gate=direct["gate"], **turned, layout=f"{' and '.join(small)} by key head")


def _rows(parts: MixerParts, places: Tensor) -> _Signal:
    return _Signal(parts.projected()[..., places].double(), parts.rows(places)[0])


def decays_of(parts: MixerParts, heads: _Heads, raw: Tensor) -> Iterator[tuple[float | None, Tensor]]:
    """Yield the log decays that a projection may mean, with the floor of those that have one."""
    raw, scale = raw + heads.dt_bias.double(), heads.a_log.double().exp()
    if heads.by_channel:
        raw, scale = raw.unflatten(-1, (heads.values, -1)), scale[:, None]
    yield None, -scale * functional.softplus(raw)
    own = [value for child in parts.context.module.modules() for value in vars(child).values()]
    known = [*(value for value in own if isinstance(value, float)), *numbers_of(parts.context.config)]
    for floor in dict.fromkeys(value for value in known if value < 0):
        yield floor, floor * (scale * raw).sigmoid()


def fitting(
    parts: MixerParts,
    filters: Filtered,
    filtered_rows: Tensor,
    heads: _Heads,
    rest: _Rest,
    begins: dict[tuple[Any, ...], bool],
) -> Iterator[MixerHypothesis]:
    """Yield the hypotheses with these heads and rows that hold, one for each form of the gate and the rate.

    filtered_rows: what the filters give, [B, T, channels], double. begins: what is known of the first token, which most
    hypotheses have in common.
    """
    width = parts.width
    rate = rest.rate.values.sigmoid()
    target = parts.entering().double().unflatten(-1, (heads.values, -1))
    gates = rest.gate.values.unflatten(-1, (heads.values, -1))
    keys = heads.keys * heads.key_dim
    gated = gates[:, :1].contiguous().numpy().tobytes()
    for activation, order in itertools.product(activations_of(parts), ORDERS):
        sizes = [width if part == "v" else keys for part in order]
        # The first token gets a multiple of its value, whatever keys, decays and rates are.
        start = sum(sizes[: order.index("v")])
        known = (activation, start, heads.values, id(heads.weight), gated)
        if known not in begins:
            value = ACTIVATIONS[activation](filtered_rows[:, :1, start : start + width])
            alone = value.unflatten(-1, (heads.values, -1)) * heads.weight.double()
            begins[known] = any(_is_multiple(alone * ACTIVATIONS[form](gates[:, :1]), target[:, :1]) for form in GATES)
        if not begins[known]:
            continue
        split = dict(zip(order, ACTIVATIONS[activation](filtered_rows).split(sizes, -1), strict=True))
        places = dict(zip(order, torch.arange(len(filters.rows)).split(sizes), strict=True))
        decays = decays_of(parts, heads, rest.decay.values)
        few = {part: values[:, :FEW] for part, values in split.items()}
        for (floor, decay), max_rate in itertools.product(decays, (1.0, 2.0)):
            # What the first tokens already contradict needs no recurrence over all of them: none reads a later one.
            begun = scan(few, decay[:, :FEW], rate[:, :FEW] * max_rate, heads) * heads.weight.double()
            if not any(_is_multiple(begun * ACTIVATIONS[form](gates[:, :FEW]), target) for form in GATES):
                continue
            given = scan(split, decay, rate * max_rate, heads)
            eps, gate = _normed(given, gates, heads.weight.double(), target, parts)
            if gate is not None:
                spec = GatedDeltaSpec(
                    num_key_heads=heads.keys,
                    num_value_heads=heads.values,
                    key_dim=heads.key_dim,
                    value_dim=heads.value_dim,
                    kernel_size=filters.kernel.weight.shape[1],
                    norm_eps=eps,
                    conv_activation=activation,
                    max_rate=max_rate,
                    gate=gate,
                    by_channel=heads.by_channel,
                    decay_floor=floor,
                    decay_rank=None if rest.decay.down is None else len(rest.decay.down),
                    gate_rank=None if rest.gate.down is None else len(rest.gate.down),
                )
                layout = f"filters of {order}, {rest.layout}"
                yield MixerHypothesis(spec, _tensors(parts, filters, heads, rest, places), layout)


def scan(split: dict[str, Tensor], decay: Tensor, rate: Tensor, heads: _Heads) -> Tensor:
    """Return what the rule gives, [B, T, H, d_v]."""
    query, key = (split[part].unflatten(-1, (-1, heads.key_dim)) for part in "qk")
    share = heads.values // heads.keys
    query, key = (recurrences.unit(part).repeat_interleave(share, dim=2) for part in (query, key))
    value = split["v"].unflatten(-1, (-1, heads.value_dim))
    batch = len(value)
    # Rows of the batch are heads of their own.
    flat = (part.transpose(0, 1).flatten(1, 2) for part in (query * heads.key_dim**-0.5, key, value, decay, rate))
    return recurrences.delta_rule(*flat).unflatten(1, (batch, -1)).transpose(0, 1)


def _normed(
    given: Tensor, gates: Tensor, weight: Tensor, target: Tensor, parts: MixerParts
) -> tuple[float, Literal["silu", "sigmoid"] | None]:
    """Return the epsilon and the form of the gate with which the norm of what is given becomes the target; None where
    none does."""
    square = given.square().mean(-1, keepdim=True)
    for form in GATES:
        scaled = given * weight * ACTIVATIONS[form](gates)
        if not _is_multiple(scaled, target):
            continue
        factor = _factor(scaled, target)
        measured = float((factor.clamp_min(1e-30) ** -2 - square).median())
        module = [value for child in parts.context.module.modules() for value in vars(child).values()]
        own = [value for value in module if isinstance(value, float)]
        known = [value for value in (*own, *numbers_of(parts.context.config), *KNOWN_EPSILONS) if 0 < value < 0.1]
        for eps in (snapped(measured, known, tolerance=EPSILON_TOLERANCE), *known):
            if eps >= 0 and error((scaled * (square + eps).rsqrt()).float(), target.float()) <= LOCAL:
                return eps, form
    return 0.0, None


def _factor(values: Tensor, target: Tensor) -> Tensor:
    """Return what each vector is multiplied by to come nearest to the target."""
    return (values * target).sum(-1, keepdim=True) / values.square().sum(-1, keepdim=True).clamp_min(1e-300)


def _is_multiple(values: Tensor, target: Tensor) -> bool:
    """Return whether vectors are multiples of those of the target, each of its own. Of the first tokens only: whether
    they may be so far, since what these are off by is not more beside others; the tenth above is for rounding."""
    first = target[:, : values.shape[1]]
    off = error((values * _factor(values, first)).float(), first.float())
    if first.shape == target.shape:
        return off <= 10 * LOCAL
    return off * float(first.abs().max()) <= 11 * LOCAL * float(target.abs().max())


def activations_of(parts: MixerParts) -> Sequence[str]:
    """Return the activations that the config names, then the usual one."""
    named = [each for each in strings_of(parts.context.config) if each in ACTIVATIONS]
    return list(dict.fromkeys((*named, "silu")))


def _tensors(
    parts: MixerParts, filters: Filtered, heads: _Heads, rest: _Rest, places: dict[str, Tensor]
) -> dict[str, Tensor]:
    """places: of queries, keys and values among the filters."""
    found = {
        "A_log": heads.a_log,
        "dt_bias": heads.dt_bias,
        "norm.weight": heads.weight,
        "o_proj.weight": parts.last.weight,
    }
    for part, place in places.items():
        found[f"{part}_proj.weight"] = parts.rows(filters.rows[place])[0]
        found[f"{part}_conv.weight"] = filters.kernel.weight[place]
    for role in ROLES:
        signal: _Signal = getattr(rest, role)
        found[f"{role}_proj.weight"] = signal.weight
        if signal.down is not None:
            found[f"{role}_down.weight"] = signal.down
    return {name: value.contiguous() for name, value in found.items()}
