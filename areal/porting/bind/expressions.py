"""Expressions over config fields: what they mean for one config, their JSON, which fields they read.

The records stand in `areal.porting.family`. A config here is the content of a config.json with its defaults
filled in; a dot in a field's name reaches into an object.
"""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from areal.api import ModelError
from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import as_bfloat16, take_rotary
from areal.porting.family import (
    All,
    AllLayers,
    AtLeast,
    AtMost,
    Ceiling,
    Constant,
    Cycled,
    Entry,
    Field,
    FieldEquals,
    First,
    FromEnd,
    LayerInField,
    Length,
    Listed,
    Multiple,
    Narrowed,
    Negation,
    PerLayer,
    Power,
    Product,
    Range,
    Remainder,
    RotaryField,
    RotaryScaled,
    RoundedUp,
    Sum,
    WhenEqual,
    WhenNull,
)
from areal.porting.records import ReportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.porting.family import Arithmetic, Condition, Expression

ROTARY_FIELD: Final = "rope_parameters"
"""Where transformers keeps everything about rotary positions."""
SCORE_FACTOR: Final = "rope_parameters.score_factor"
"""In completed configs: `RotaryArgs.score_factor` of their rope_parameters."""

_ROTARY_BESIDE: Final = ("original_max_position_embeddings",)
_ROUNDING: Final = 1e-9
"""Keeps 24 * 0.125 from becoming 2 when it is rounded down."""


class EvaluationError(ValueError):
    """An expression has no value for a config: a null or text where a number is needed."""


def look_up(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field; None where it is absent."""
    if name in config:
        return config[name]
    value: Any = config
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def same(first: Any, second: Any) -> bool:
    """Return whether two values mean the same: true is not 1, but 1 is 1.0, and floats may differ in their last
    digits."""
    if isinstance(first, bool) or isinstance(second, bool) or first is None or second is None:
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=1e-6)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    return bool(first == second)


def evaluate(expression: Expression, config: Mapping[str, Any], layer: int | None = None) -> Any:
    """Return the value for a config. layer: needed where the expression depends on it. Raises EvaluationError."""
    match expression:
        case Constant(value):
            return value
        case Field(name):
            return look_up(config, name)
        case Ceiling() | Narrowed() | Product() | Sum() | Power() | RoundedUp() | RotaryScaled():
            return _computed(expression, config, layer)
        case AllLayers() | Entry() | Length() | Range():
            return _counted(expression, config, layer)
        case WhenNull(name, otherwise):
            value = look_up(config, name)
            return evaluate(otherwise, config, layer) if value is None else value
        case WhenEqual(name, value, then, otherwise):
            return evaluate(then if same(look_up(config, name), value) else otherwise, config, layer)
        case PerLayer(condition, then, otherwise):
            return evaluate(then if holds(condition, config, layer) else otherwise, config, layer)
        case RotaryField():
            return _rotary(expression, config, layer)
    raise AssertionError(f"no such expression: {expression!r}")


def _computed(expression: Arithmetic, config: Mapping[str, Any], layer: int | None) -> float:
    match expression:
        case Product():
            result = expression.factor
            for name, power in expression.powers:
                number = _number(look_up(config, name), name)
                result *= _raised(number, power)
            return math.floor(result + _ROUNDING) if expression.integer else result
        case Ceiling(of, divisor):
            return math.ceil(_number(look_up(config, of), of) / divisor - _ROUNDING)
        case Narrowed(base):
            return as_bfloat16(_number(evaluate(base, config, layer), "a factor"))
        case Sum(terms):
            return sum(_number(evaluate(term, config, layer), "a sum") for term in terms)
        case Power(factor, base, exponent):
            return factor * _raised(_number(evaluate(base, config, layer), "a power"), exponent)
        case RoundedUp(base, scale, multiple):
            size = _number(evaluate(base, config, layer), "a size")
            by = _number(look_up(config, scale), scale) if scale else 1
            step = _number(look_up(config, multiple), multiple)
            if step < 1:
                raise EvaluationError(f"{multiple} is {step}, expected at least 1")
            return -(-math.floor(size * by + _ROUNDING) // step) * step
        case RotaryScaled(base):
            return _number(evaluate(base, config, layer), "a scale") * _number(config.get(SCORE_FACTOR), SCORE_FACTOR)
    raise AssertionError(f"no such arithmetic: {expression!r}")


def _counted(expression: AllLayers | Entry | Length | Range, config: Mapping[str, Any], layer: int | None) -> Any:
    match expression:
        case Entry(name):
            return _entry(name, config, layer)
        case AllLayers(depth):
            return list(range(int(_number(look_up(config, depth), depth))))
        case Length(name):
            return len(_list(look_up(config, name), name))
    return tuple(_number(evaluate(bound, config, layer), "a bound") for bound in (expression.low, expression.high))


def holds(condition: Condition, config: Mapping[str, Any], layer: int | None) -> bool:
    """Return whether a condition is true of a layer. Raises EvaluationError where the field cannot be compared."""
    if isinstance(condition, Negation):
        return not holds(condition.condition, config, layer)
    if isinstance(condition, All):
        return all(holds(each, config, layer) for each in condition.conditions)
    if isinstance(condition, FieldEquals):
        return same(look_up(config, condition.field), condition.value)
    if layer is None:
        raise EvaluationError(f"{condition!r} depends on the layer")
    return _holds_for_layer(condition, config, layer)


def _in_turn(name: str, config: Mapping[str, Any], layer: int) -> Any:
    """Return the entry of a list that layers take in turn."""
    entries = _list(look_up(config, name), name)
    if not entries:
        raise EvaluationError(f"{name} is empty, expected at least one entry")
    return entries[layer % len(entries)]


def _holds_for_layer(condition: Condition, config: Mapping[str, Any], layer: int) -> bool:
    match condition:
        case Listed(name, values) | Cycled(name, values):
            entry = _entry(name, config, layer) if isinstance(condition, Listed) else _in_turn(name, config, layer)
            return any(same(entry, value) for value in values)
        case AtLeast(name):
            return layer >= _number(look_up(config, name), name)
        case AtMost(name):
            return layer <= _number(look_up(config, name), name)
        case FromEnd(name, depth):
            count = _number(look_up(config, depth), depth)
            return layer == count - 1 if name == 1 else layer >= count - _number(look_up(config, name), name)
        case First():
            return layer == 0
        case Multiple(of, shift):
            number = _number(look_up(config, of), of) if isinstance(of, str) else of
            if number < 1:
                raise EvaluationError(f"{of} is {number}, expected at least 1")
            return (layer + shift) % number == 0
        case Remainder(of, to):
            number = _number(look_up(config, of), of)
            if number < 1:
                raise EvaluationError(f"{of} is {number}, expected at least 1")
            return layer % number == _number(look_up(config, to), to)
        case LayerInField(name):
            entries = look_up(config, name)
            return isinstance(entries, list | tuple) and layer in entries
    raise AssertionError(f"no such condition: {condition!r}")


def _raised(number: float, power: float) -> float:
    if number <= 0 and power != 1:
        raise EvaluationError(f"{number} has no power {power}")
    return float(number**power) if power != 1 else number


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(f"{name} is {value!r}, expected a number")
    return value


def _list(value: Any, name: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise EvaluationError(f"{name} is {value!r}, expected a list")
    return value


def _rotary(expression: RotaryField, config: Mapping[str, Any], layer: int | None) -> dict[str, Any] | None:
    own = float(_number(_entry(expression.thetas, config, layer), expression.thetas)) if expression.thetas else None
    if own == 0:
        return None
    if expression.theta is not None:
        theta = float(_number(evaluate(expression.theta, config), "theta"))
        if expression.stretch is None:
            return {"theta": theta, "type": "default", "parameters": {}}
        stretch = float(_number(evaluate(expression.stretch, config), "stretch"))
        return {"theta": theta, "type": "linear", "parameters": {"factor": stretch}}
    entries = config.get(ROTARY_FIELD)
    if isinstance(entries, dict) and expression.layer_type in entries and entries[expression.layer_type] is None:
        return None
    # The reader of every generated family, so that what is proven here is what it will do.
    known = {name: config[name] for name in (ROTARY_FIELD, *_ROTARY_BESIDE) if config.get(name) is not None}
    try:
        found = take_rotary(
            ConfigFields({"model_type": "analysed", **copy.deepcopy(known)}),
            config.get("max_position_embeddings"),
            layer_type=expression.layer_type,
            types=expression.types,
            partial=True,
            unused=expression.extra,
        )
    except ModelError as error:
        raise EvaluationError(str(error)) from error
    return {"theta": own or found.theta, "type": found.rotary_type, "parameters": found.parameters}


def _entry(name: str, config: Mapping[str, Any], layer: int | None) -> Any:
    """Return what a list over layers holds for a layer."""
    entries = look_up(config, name)
    if layer is None or not isinstance(entries, list | tuple) or layer >= len(entries):
        raise EvaluationError(f"{name} is {entries!r}, expected a list with an entry for layer {layer}")
    return entries[layer]


# ------------------------------------------------------------------------------------------------------------- reading


def fields_of(expression: Expression) -> list[str]:
    """Return the names of all fields that it reads, each once; of a choice, those of the usual case first."""
    match expression:
        case PerLayer(condition, then, otherwise):
            found = [*fields_of(otherwise), *_condition_fields(condition), *fields_of(then)]
        case WhenEqual(name, _, then, otherwise):
            found = [name, *fields_of(otherwise), *fields_of(then)]
        case _:
            found = [*_own_fields(expression), *(name for part in _parts(expression) for name in fields_of(part))]
    return list(dict.fromkeys(found))


def depends_on_layer(expression: Expression) -> bool:
    """Return whether it has different values for different layers of one model."""
    return any(isinstance(part, Entry | PerLayer) for part in walk(expression))


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all parts of it."""
    yield expression
    for part in _parts(expression):
        yield from walk(part)


def _parts(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Sum(terms):
            return terms
        case Range(low, high):
            return (low, high)
        case Power(_, base, _) | Narrowed(base) | RotaryScaled(base) | RoundedUp(base, _, _):
            return (base,)
        case WhenNull(_, otherwise):
            return (otherwise,)
        case WhenEqual(_, _, then, otherwise) | PerLayer(_, then, otherwise):
            return (then, otherwise)
        case RotaryField(_, _, theta):
            return tuple(part for part in (theta, expression.stretch) if part is not None)
    return ()


def _own_fields(expression: Expression) -> tuple[str, ...]:
    match expression:
        case Field(name) | Entry(name) | Length(name) | WhenNull(name, _):
            return (name,)
        case Product(_, powers):
            return tuple(name for name, _ in powers)
        case AllLayers(depth):
            return (depth,)
        case Ceiling(of, _):
            return (of,)
        case RoundedUp(_, scale, multiple):
            return (*([scale] if scale else []), multiple)
        case RotaryField(_, _, None):
            return (ROTARY_FIELD, *([expression.thetas] if expression.thetas else []))
        case RotaryScaled():
            return (ROTARY_FIELD,)
    return ()


def _condition_fields(condition: Condition) -> list[str]:
    match condition:
        case Negation(inner):
            return _condition_fields(inner)
        case All(conditions):
            return [name for each in conditions for name in _condition_fields(each)]
        case Multiple(of, _):
            return [of] if isinstance(of, str) else []
        case Remainder(of, to):
            return [of, to]
        case FromEnd(name, depth):
            return [depth] if name == 1 else [name, depth]
        case First():
            return []
    return [condition.field]


def conditions_of(expression: Expression) -> Iterator[Condition]:
    """Yield all conditions on layers that the expression itself has, without those of its parts."""
    found = [expression.condition] if isinstance(expression, PerLayer) else []
    while found:
        condition = found.pop()
        yield condition
        if isinstance(condition, Negation):
            found.append(condition.condition)
        elif isinstance(condition, All):
            found += condition.conditions


def complexity(expression: Expression) -> int:
    """Return a cost, smaller for simpler expressions; a choice costs more than arithmetic."""
    costs: dict[type, int] = {
        Power: 3,
        RotaryScaled: 2,
        RoundedUp: 5,
        Ceiling: 4,
        Narrowed: 3,
        AllLayers: 2,
        Length: 3,
        Range: 2,
        Constant: 1,
        Entry: 2,
        Field: 2,
        Product: 3,
        Sum: 2,
        WhenNull: 3,
        WhenEqual: 6,
        PerLayer: 6,
        RotaryField: 2,
    }
    total = 0
    for part in walk(expression):
        total += costs[type(part)]
        if isinstance(part, Product):
            total += len(part.powers) + (not float(part.factor).is_integer())
        if isinstance(part, PerLayer):
            # "Windowed layers have a window" reads better than "full layers have none".
            total += _condition_complexity(part.condition) + (part.then == Constant(None))
    return total


def _condition_complexity(condition: Condition) -> int:
    match condition:
        case Negation(inner):
            return 1 + _condition_complexity(inner)
        case All(conditions):
            return 1 + sum(map(_condition_complexity, conditions))
        case Multiple(of, shift):
            return 2 + isinstance(of, int) + (shift != 0)
        case Remainder():
            return 3
        case FromEnd(1, _):
            return 2
    return 1


# ---------------------------------------------------------------------------------------------------------------- JSON

_KINDS: Final[dict[str, type]] = {
    "constant": Constant,
    "field": Field,
    "entry": Entry,
    "product": Product,
    "sum": Sum,
    "power": Power,
    "rotary_scaled": RotaryScaled,
    "rounded_up": RoundedUp,
    "ceiling": Ceiling,
    "narrowed": Narrowed,
    "all_layers": AllLayers,
    "length": Length,
    "range": Range,
    "when_null": WhenNull,
    "when_equal": WhenEqual,
    "per_layer": PerLayer,
    "rotary": RotaryField,
    "listed": Listed,
    "cycled": Cycled,
    "at_least": AtLeast,
    "at_most": AtMost,
    "first": First,
    "from_end": FromEnd,
    "multiple": Multiple,
    "remainder": Remainder,
    "member": LayerInField,
    "flag": FieldEquals,
    "not": Negation,
    "all": All,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def to_json(part: Expression | Condition) -> dict[str, Any]:
    """Return what the docstrings in `family` say: the kind, and the parts under their own names."""
    found: dict[str, Any] = {"kind": _NAMES[type(part)]}
    for name, value in vars(part).items():
        if name == "powers":
            found[name] = dict(value)
        elif isinstance(value, tuple):
            found[name] = [to_json(each) if type(each) in _NAMES else each for each in value]
        else:
            found[name] = to_json(value) if type(value) in _NAMES else value
    return found


def from_json(node: Mapping[str, Any]) -> Any:
    """Read what `to_json` writes.

    Raises ReportError for an unknown kind, and what dictionaries and numbers raise where a part is missing or is not
    what it should be.
    """
    kind = _KINDS.get(node.get("kind", ""))
    if kind is None:
        raise ReportError(f"the analysis reports an expression of kind {node.get('kind')!r}")
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(kind) if each.name in node):
        value = node[name]
        if name in ("base", "condition", "high", "low", "otherwise", "stretch", "then", "theta"):
            found[name] = None if value is None else from_json(value)
        elif name in ("conditions", "terms"):
            found[name] = tuple(map(from_json, value))
        elif name == "powers":
            found[name] = tuple((field, float(power)) for field, power in value.items())
        elif name in ("exponent", "factor"):
            found[name] = float(value)
        else:
            found[name] = tuple(value) if name in ("extra", "types", "values") else value
    return kind(**found)
