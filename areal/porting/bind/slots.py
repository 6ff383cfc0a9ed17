"""Converts a spec to slots such as "layer.attention.head_dim" and back; `family` lists them."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from areal.porting.bind.expressions import EvaluationError, evaluate
from areal.porting.spec import (
    BLOCK_NORMS,
    EXTRA_NORMS,
    OPTIONAL_NORMS,
    STATEFUL,
    ArchitectureSpec,
    AttentionSpec,
    BesideSpec,
    ExpertsBesideSpec,
    GatedDeltaSpec,
    HeadTransformSpec,
    IndexerSpec,
    LatentAttentionSpec,
    LayerEmbeddingsSpec,
    LayerInputSpec,
    LayerSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    PositionSpec,
    RGLRUSpec,
    RotarySpec,
    RouterSpec,
    ShortConvolutionSpec,
    StreamFactorsSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.porting.family import Expression


ROTARY_SLOT: Final = "layer.rotary"
"""A whole table of rotations: the one slot whose values are compared by what they mean."""


ROTATED_SLOT: Final = "layer.rotary.dim"
HEAD_SLOT: Final = "layer.attention.head_dim"


class AbsentSlot:
    """Stands for the value of a slot in a layer that has no such part, e.g. a router in a dense layer."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = AbsentSlot()


class LayerValues(tuple[Any, ...]):
    """The values of one slot, one per layer; ABSENT where a layer lacks the part."""

    __slots__ = ()


class _Nested(NamedTuple):
    record: type
    optional: bool


_NESTED: Final[dict[type, dict[str, _Nested]]] = {
    ArchitectureSpec: {
        "final_norm": _Nested(NormSpec, True),
        "positions": _Nested(PositionSpec, True),
        "embedding_norm": _Nested(NormSpec, True),
        "layer_embeddings": _Nested(LayerEmbeddingsSpec, True),
        "head_transform": _Nested(HeadTransformSpec, True),
    },
    LayerEmbeddingsSpec: {"norm": _Nested(NormSpec, False)},
    LayerSpec: {
        "experts_beside": _Nested(ExpertsBesideSpec, True),
        "layer_input": _Nested(LayerInputSpec, True),
    },
    ExpertsBesideSpec: {
        "router": _Nested(RouterSpec, False),
        "experts": _Nested(MlpSpec, False),
        **dict.fromkeys(("router_norm", "mlp_norm", "input_norm", "output_norm"), _Nested(NormSpec, False)),
    },
    LayerInputSpec: {"norm": _Nested(NormSpec, False)},
    HeadTransformSpec: {"norm": _Nested(NormSpec, False)},
    AttentionSpec: {
        "query_norm": _Nested(NormSpec, True),
        "key_norm": _Nested(NormSpec, True),
        "value_norm": _Nested(NormSpec, True),
        "output_norm": _Nested(NormSpec, True),
    },
    MlpSpec: {"inner_norm": _Nested(NormSpec, True)},
    LatentAttentionSpec: {
        "query_norm": _Nested(NormSpec, True),
        "kv_norm": _Nested(NormSpec, False),
        "indexer": _Nested(IndexerSpec, True),
    },
    MoeSpec: {
        "router": _Nested(RouterSpec, False),
        "experts": _Nested(MlpSpec, False),
        "shared": _Nested(MlpSpec, True),
    },
}

_QUERY_KEY_NORMS: Final = ("query_norm", "key_norm")
_MEANINGLESS_WITHOUT: Final = {
    "norm_scope": _QUERY_KEY_NORMS,
    "norm_after_rotary": _QUERY_KEY_NORMS,
    "shared_scale": ("shared",),
    "norm_groups": ("norm_eps",),
    "norm_first": ("norm_eps",),
}
"""Values that mean nothing where there are none of these parts beside them: no slots there."""

_OF_GROWTH: Final = ("query_growth", "growth_length", "growth_shift", "growth_power")
_OF_ROTARIES: Final = ("dim", "interleaved", *_OF_GROWTH)
"""Values of a table of rotations beside what rope_parameters says."""
GROWTH: Final = "layer.growth"
"""Whether queries of a layer that is not rotated grow; below it how."""

_CHOICES: Final[dict[str, dict[str, type]]] = {
    "attention": {
        "attention": AttentionSpec,
        "latent": LatentAttentionSpec,
        "short_convolution": ShortConvolutionSpec,
        "delta": GatedDeltaSpec,
        "lightning": LightningSpec,
        "mamba": Mamba2Spec,
        "mamba1": Mamba1Spec,
        "rglru": RGLRUSpec,
        "none": type(None),
    },
    "feed_forward": {"mlp": MlpSpec, "moe": MoeSpec, "none": type(None)},
}

_PATHS: Final[dict[type, str]] = {
    ShortConvolutionSpec: "layer.convolution.",
    GatedDeltaSpec: "layer.delta.",
    LightningSpec: "layer.lightning.",
    Mamba1Spec: "layer.mamba1.",
    Mamba2Spec: "layer.mamba.",
    RGLRUSpec: "layer.rglru.",
}
"""Where the values of a mixer with a state stand: a model has these layers beside others, whose values are others."""

BESIDE: Final = "layer.beside"
"""Kind of a second mixer; there is no such slot where no layer has one."""

FACTORS: Final = "layer.factors."
"""Where the factors of "normed_stream" blocks stand."""

_OF_SOFTMAX: Final = ("window", "chunk")
"""Values of a layer that a mixer with a state has not."""


def slots_of(spec: ArchitectureSpec) -> dict[str, Any]:
    """Return a mapping from slot to value; slots that start with "layer" hold `LayerValues`.

    Example, a tiny granite with 2 layers: {"num_layers": 2, "hidden_size": 64, "embedding_multiplier": 6.0,
    "layer.attention.scale": LayerValues((0.2, 0.2)), "layer.window": LayerValues((None, None)), ...}.
    """
    slots: dict[str, Any] = {"num_layers": len(spec.layers)}
    _flatten(spec, "", slots, leave_out=("layers", "rotaries"))
    layers: list[dict[str, Any]] = [_layer_slots(layer, spec.rotaries) for layer in spec.layers]
    for name in sorted({name for layer in layers for name in layer}):
        slots[name] = LayerValues(layer.get(name, ABSENT) for layer in layers)
    return slots


def _layer_slots(layer: LayerSpec, rotaries: tuple[RotarySpec, ...]) -> dict[str, Any]:
    slots: dict[str, Any] = {}
    _flatten(layer, "layer.", slots, leave_out=("norms", "attention", "feed_forward", "rotary", "beside", "factors"))
    if layer.factors is not None:
        _flatten(layer.factors, FACTORS, slots)
    if layer.beside is not None:
        mixer = layer.beside.mixer
        slots[BESIDE] = next(name for name, kind in _CHOICES["attention"].items() if type(mixer) is kind)
        _flatten(layer.beside, f"{BESIDE}.", slots, leave_out=("mixer",))
        _flatten(mixer, _PATHS[type(mixer)], slots)
    for name, norm in layer.norms.items():
        _flatten(norm, f"layer.norms.{name}.", slots)
    for name in (*OPTIONAL_NORMS.get(layer.block, ()), *EXTRA_NORMS.get(layer.block, ())):
        slots[f"layer.norms.{name}"] = name in layer.norms
    for part, choices in _CHOICES.items():
        record = getattr(layer, part)
        slots[f"layer.{part}"] = next(name for name, kind in choices.items() if type(record) is kind)
        if record is not None:
            _flatten(record, _PATHS.get(type(record), f"layer.{part}."), slots)
    for name, parts in _MEANINGLESS_WITHOUT.items():
        for path in ("layer.attention.", "layer.feed_forward.", "layer.mamba."):
            if not any(slots.get(path + part) for part in parts):
                slots.pop(path + name, None)
    if isinstance(layer.attention, LatentAttentionSpec) and layer.attention.query_rank is None:
        # Nor is there a norm of compressed queries where none are compressed, whatever an expression says.
        slots = {name: value for name, value in slots.items() if not name.startswith("layer.attention.query_norm")}
    if layer.attention is None or isinstance(layer.attention, STATEFUL):
        return {name: value for name, value in slots.items() if name.removeprefix("layer.") not in _OF_SOFTMAX}
    rotary = None if layer.rotary is None else rotaries[layer.rotary]
    if rotary is None or not rotary.dim:
        # Queries of layers without rotation may grow by other rules than those of rotated ones.
        slots |= {"layer.rotary": None, GROWTH: rotary is not None}
        return slots | {f"{GROWTH}.{name}": getattr(rotary, name) for name in _OF_GROWTH if rotary is not None}
    slots["layer.rotary"] = {"theta": rotary.theta, "type": rotary.type, "parameters": rotary.parameters}
    return slots | {f"layer.rotary.{name}": getattr(rotary, name) for name in _OF_ROTARIES}


def _flatten(record: Any, path: str, slots: dict[str, Any], leave_out: tuple[str, ...] = ()) -> None:
    nested = _NESTED.get(type(record), {})
    for each in fields(record):
        if each.name in leave_out:
            continue
        value = getattr(record, each.name)
        if each.name not in nested:
            slots[path + each.name] = value
            continue
        if nested[each.name].optional:
            slots[path + each.name] = value is not None
        if value is not None:
            _flatten(value, f"{path}{each.name}.", slots)


# ---------------------------------------------------------------------------------------------------------------- back


def predict(slots: Mapping[str, Expression], config: Mapping[str, Any]) -> ArchitectureSpec:
    """Return the spec that expressions mean for a config. Raises EvaluationError where one has no value for it."""

    def read(slot: str, layer: int | None = None) -> Any:
        if slot not in slots:
            raise EvaluationError(f"no config that was looked at had {slot}")
        return evaluate(slots[slot], config, layer)

    has_beside = BESIDE in slots
    num_layers = read("num_layers")
    if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
        raise EvaluationError(f"num_layers is {num_layers!r}")
    rotaries: list[RotarySpec] = []
    layers = tuple(
        _predict_layer(partial(read, layer=layer), rotaries, has_beside=has_beside) for layer in range(num_layers)
    )
    values = _record(ArchitectureSpec, "", read, leave_out=("layers", "rotaries"))
    return ArchitectureSpec(layers=layers, rotaries=tuple(rotaries), **values)


def _predict_layer(read: Callable[[str], Any], rotaries: list[RotarySpec], *, has_beside: bool) -> LayerSpec:
    values: dict[str, Any] = {}
    for part, choices in _CHOICES.items():
        kind = choices[read(f"layer.{part}")]
        path = _PATHS.get(kind, f"layer.{part}.")
        values[part] = None if kind is type(None) else kind(**_record(kind, path, read))
    without_softmax = values["attention"] is None or isinstance(values["attention"], STATEFUL)
    left_out = ("norms", "attention", "feed_forward", "rotary", "beside", "factors")
    values |= _record(LayerSpec, "layer.", read, leave_out=(*left_out, *(_OF_SOFTMAX if without_softmax else ())))
    if values["block"] == "normed_stream":
        values["factors"] = StreamFactorsSpec(**_record(StreamFactorsSpec, FACTORS, read))
    if has_beside:
        mixer: Any = _CHOICES["attention"][read(BESIDE)]
        record = _record(BesideSpec, f"{BESIDE}.", read, leave_out=("mixer",))
        values["beside"] = BesideSpec(mixer=mixer(**_record(mixer, _PATHS[mixer], read)), **record)
    extra = EXTRA_NORMS.get(values["block"], ())
    values["norms"] = {
        name: NormSpec(**_record(NormSpec, f"layer.norms.{name}.", read))
        for name in (*BLOCK_NORMS[values["block"]], *extra)
        if name not in (*OPTIONAL_NORMS.get(values["block"], ()), *extra) or read(f"layer.norms.{name}")
    }
    rotary = None if without_softmax else read("layer.rotary")
    if rotary is not None:
        found = RotarySpec(**rotary, **{name: read(f"layer.rotary.{name}") for name in _OF_ROTARIES})
    elif not without_softmax and read(GROWTH):
        found = RotarySpec(dim=0, theta=1.0, **{name: read(f"{GROWTH}.{name}") for name in _OF_GROWTH})
    else:
        found = None
    if found is not None:
        if found not in rotaries:
            rotaries.append(found)
        values["rotary"] = rotaries.index(found)
    return LayerSpec(**values)


def _record(kind: type, path: str, read: Callable[[str], Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    nested = _NESTED.get(kind, {})
    values: dict[str, Any] = {}
    for each in fields(kind):
        slot = path + each.name
        if each.name in leave_out:
            continue
        if each.name in _MEANINGLESS_WITHOUT and not any(values[name] for name in _MEANINGLESS_WITHOUT[each.name]):
            values[each.name] = each.default
        elif kind is LatentAttentionSpec and each.name == "query_norm" and values["query_rank"] is None:
            values[each.name] = None
        elif each.name not in nested:
            values[each.name] = _typed(read(slot), str(each.type), slot)
        elif nested[each.name].optional and not read(slot):
            values[each.name] = None
        else:
            record = nested[each.name].record
            values[each.name] = record(**_record(record, slot + ".", read))
    return values


def _typed(value: Any, annotation: str, slot: str) -> Any:
    kinds = [kind.strip() for kind in annotation.split("|")]
    if value is None:
        if "None" not in kinds:
            raise EvaluationError(f"{slot} has no value")
        return None
    if "bool" in kinds:
        if not isinstance(value, bool):
            raise EvaluationError(f"{slot} is {value!r}, expected true or false")
        return value
    if annotation.startswith("tuple["):
        if not isinstance(value, list | tuple) or len(value) != annotation.count(",") + 1:
            raise EvaluationError(f"{slot} is {value!r}, expected {annotation}")
        return tuple(map(float, value))
    number = "float" in kinds or "int" in kinds
    if number and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise EvaluationError(f"{slot} is {value!r}, expected a number")
    if "float" in kinds:
        return float(value)
    if "int" in kinds:
        if value != int(value):
            raise EvaluationError(f"{slot} is {value!r}, expected a whole number")
        return int(value)
    return value
