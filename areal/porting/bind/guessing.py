"""First guesses of expressions from a single config. They are tested at once, and save inferences where right."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import ROTARY_FIELD, fields_of, look_up, same
from areal.porting.bind.fitting import collapse, fit, likeness
from areal.porting.bind.observing import SlotSample
from areal.porting.bind.slots import ABSENT, ROTARY_SLOT, LayerValues
from areal.porting.family import Constant, Field, PerLayer, Power, Product, Sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.porting.bind.observing import Observation
    from areal.porting.family import Expression


HINTS: Final = {
    "tied": ("tie_word_embeddings",),
    "key_bias": ("attention_bias", "qkv_bias", "use_bias", "bias"),
    "layer.feed_forward.bias": ("mlp_bias", "use_bias", "bias"),
    "layer.experts_beside.experts.output_bias": (),
    "layer.experts_beside.router.selection_bias": (),
    "layer.feed_forward.experts.output_bias": (),
    "layer.feed_forward.shared.output_bias": (),
    "layer.feed_forward.output_bias": ("mlp_bias", "use_bias", "bias"),
    "layer_embeddings": (),
    "normalize": ("norm_topk_prob",),
    "kv_bias": ("attention_bias", "qkv_bias", "use_bias", "bias"),
    "layer.feed_forward": (
        "first_k_dense_replace",
        "mlp_layer_types",
        "num_dense_layers",
        "moe_layers",
        "moe_layer_start_index",
        "decoder_sparse_step",
        "moe_layer_freq",
    ),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "output_bias": ("attention_bias", "use_bias", "bias"),
    "top_k": ("num_experts_per_tok", "moe_top_k", "moe_topk", "num_experts_per_token", "moe_k"),
    "query_bias": ("attention_bias", "qkv_bias", "use_bias", "bias"),
    "value_bias": ("attention_bias", "qkv_bias", "use_bias", "bias"),
}
"""Slot, or its last part, to usual names of the field behind it. Only an order of what is tried; a slot that has none
is not guessed by its name either."""


_IN_ROTARY_FIELD: Final = ("layer.rotary.query_growth", "layer.rotary.growth_length")
"""Slots that a number inside rope_parameters may be."""


def first_guesses(samples: Mapping[str, SlotSample], names: Sequence[str]) -> dict[str, Expression]:
    """Return an expression for every slot that is right for this one config."""
    everything = sorted(names)
    names = [name for name in everything if not name.startswith(ROTARY_FIELD)]
    found: dict[str, Expression] = {}
    for slot, sample in samples.items():
        if slot == "layer.rotary":
            continue
        collapsed = collapse([sample])
        if collapsed is not None:
            found[slot] = _value(slot, collapsed[0], everything if slot in _IN_ROTARY_FIELD else names)
        else:
            found[slot] = _pattern(slot, sample, names) or Constant(None)
    _derive(found, samples)
    # The scale of latent attention is that of both parts of a head together.
    path = "layer.attention."
    parts = [found.get(path + name) for name in ("nope_dim", "rope_dim")]
    sizes = [_first(samples.get(path + name)) for name in ("nope_dim", "rope_dim", "scale")]
    if all(isinstance(part, Field) for part in parts) and same(sum(sizes[:2]) ** -0.5, sizes[2]):
        found[path + "scale"] = Power(1.0, Sum(tuple(part for part in parts if part is not None)), -0.5)
    return found


def value_guess(slot: str, samples: Sequence[SlotSample], names: Sequence[str]) -> Expression:
    """Return a guess for a slot that always had the same value."""
    collapsed = collapse(samples)
    assert collapsed, f"{slot} was seen with different values"
    equal = [
        name for name in sorted(names) if all(same(look_up(sample.config, name), sample.value) for sample in collapsed)
    ]
    return _value(slot, collapsed[0], equal)


def _value(slot: str, sample: SlotSample, names: Sequence[str]) -> Expression:
    """Return the field of the same value whose name is most alike, else a constant."""
    value = sample.value
    if isinstance(value, bool | int):
        for name in HINTS.get(slot, HINTS.get(slot.rpartition(".")[2], ())):
            if name in names and same(look_up(sample.config, name), value):
                return Field(name)
    if HINTS.get(slot) == ():
        return Constant(value)
    telling = value is not None and not isinstance(value, bool) and value not in (0, 1)
    equal = [(likeness(slot, name), name) for name in names if same(look_up(sample.config, name), value)]
    score, name = max(equal, default=(0.0, ""))
    return Field(name) if equal and (telling or score > 0.7) else Constant(value)


def _pattern(slot: str, sample: SlotSample, names: Sequence[str]) -> Expression | None:
    """Return a choice between layers, by a list over layers before anything else."""
    lists = [name for name in names if isinstance(look_up(sample.config, name), list)]
    usual = [name for name in HINTS.get(slot, ()) if name in names]
    found = (usual and fit(slot, [sample], usual)) or fit(slot, [sample], lists) or fit(slot, [sample], names)
    return None if found is None else _with_fields(slot, found, sample, names)


def _with_fields(slot: str, expression: Expression, sample: SlotSample, names: Sequence[str]) -> Expression:
    match expression:
        case Constant(value):
            return _value(slot, SlotSample(sample.config, value, sample.depth), names)
        case PerLayer(condition, then, otherwise):
            sides = (_with_fields(slot, side, sample, names) for side in (then, otherwise))
            return PerLayer(condition, *sides)
    return expression


def _derive(found: dict[str, Expression], samples: Mapping[str, SlotSample]) -> None:
    """Add what is usually computed: the size of a head, the scale of scores, a multiplier that is a square root."""
    hidden, heads = found.get("hidden_size"), found.get("layer.attention.num_heads")
    for slot in ("layer.attention.head_dim", "layer.attention.value_dim", "layer.rotary.dim"):
        parts = [_first(samples.get(name)) for name in (slot, "hidden_size", "layer.attention.num_heads")]
        whole = all(isinstance(part, int) for part in parts) and parts[0] * parts[2] == parts[1]
        if whole and isinstance(found.get(slot), Constant) and isinstance(hidden, Field) and isinstance(heads, Field):
            found[slot] = Product(1.0, ((hidden.name, 1.0), (heads.name, -1.0)), integer=True)
    for slot, of, power in (
        ("layer.attention.scale", "layer.attention.head_dim", -0.5),
        ("layer.attention.scale", "layer.attention.head_dim", -1.0),
        ("embedding_multiplier", "hidden_size", 0.5),
    ):
        value, size = _first(samples.get(slot)), _first(samples.get(of))
        if (
            not isinstance(value, float)
            or not isinstance(size, int)
            or not math.isclose(value, size**power, rel_tol=1e-5)
        ):
            continue
        base = found.get(of)
        if isinstance(base, Field):
            found[slot] = Product(1.0, ((base.name, power),))
        elif isinstance(base, Product):
            # Of the size as it is rounded: 97 channels of 4 heads are heads of 24, and 1 / 24 is not 4 / 97.
            found[slot] = Power(1.0, base, power)


def _first(sample: SlotSample | None) -> Any:
    collapsed = None if sample is None else collapse([sample])
    return None if collapsed is None else collapsed[0].value


# --------------------------------------------------------------------------------------------------------------- nearby

# What a single change of a field may mean where the expressions of the moment are wrong about it. A guess that is tried
# by parity takes a fraction of the time of an inference, and most wrong expressions are wrong about one slot: a bias
# that is not there, a width that is a multiple, a scale that is a power.


MOST: Final = 8
"""Guesses for one config."""

POWERS: Final = (-1.0, -0.5, 0.5)
"""Of a field, that a factor may be."""


def nearby(
    expressions: Mapping[str, Expression], base: Observation, changes: Mapping[str, Any]
) -> Iterator[dict[str, Expression]]:
    """Yield the expressions with another one for one slot each; nothing for several changes at once, or none to a
    value.

    Example: attention_bias goes from False to True, and the slot layer.attention.query_bias, False in the base, is
    still the constant False. Expressions with Field("attention_bias") in that slot are tried by parity first, which
    takes a fraction of an inference. A scale that was 24 ** -0.5 beside head_dim 24 is tried as 16 ** -0.5 when
    head_dim becomes 16.
    """
    if len(changes) != 1:
        return
    (name, now), was = next(iter(changes.items())), look_up(base.config, next(iter(changes)))
    if type(was) not in (bool, int, float, str) or type(now) is not type(was):
        return
    found: list[dict[str, Expression]] = []
    slots = expressions.keys() & base.values.keys() - {ROTARY_SLOT}
    # What no field is known for yet is the likeliest to be wrong.
    for slot in sorted(slots, key=lambda slot: (not isinstance(expressions[slot], Constant), slot)):
        value = common_value(base.values[slot])
        if value is ABSENT:
            continue
        if name in fields_of(expressions[slot]):
            found.append({slot: Constant(value)})
        else:
            found += [{slot: other} for other in _readings(name, was, now, value)]
    yield from ({**expressions, **each} for each in found[:MOST])


def common_value(value: Any) -> Any:
    """Return the value of a slot, in all layers that have it; ABSENT where these differ."""
    entries = [entry for entry in value if entry is not ABSENT] if isinstance(value, LayerValues) else [value]
    alike = bool(entries) and all(type(entry) is type(entries[0]) and same(entry, entries[0]) for entry in entries)
    return entries[0] if alike else ABSENT


def _readings(name: str, was: Any, now: Any, value: Any) -> Iterator[Expression]:
    """Yield what a slot may be that was this value before the field was changed."""
    if type(value) is type(was) and same(value, was):
        yield Field(name)
    if isinstance(was, bool | str) or isinstance(value, bool) or was <= 1 or now <= 0:
        return
    if isinstance(value, int) and isinstance(was, int) and value > was and value % was == 0:
        yield Constant(value // was * now)
    if isinstance(value, float):
        yield from (Constant(now**power) for power in POWERS if same(value, was**power))
