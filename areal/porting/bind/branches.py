"""Configs that look harder at values which only some configs have.

A number that was seen behind one value of a switch only ("4 * 64 where n_inner is null") may be made of any field. So
every size is varied on that side of the switch, too. Linear biases are looked at with a number of heads whose slopes
are no powers of two: slopes that a model rounds show there only.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import fields_of, look_up, same, walk
from areal.porting.bind.slots import LayerValues
from areal.porting.family import Constant, Field, PerLayer, Power, Product, Sum, WhenEqual, WhenNull

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.porting.bind.observations import Observation
    from areal.porting.family import Expression

    Choices = Mapping[str, Sequence[Mapping[str, Any]]]

ALIBI: Final = "layer.attention.alibi"
HEADS: Final = "layer.attention.num_heads"
MOST_VALUES: Final = 3
"""Of one field that are looked at beside those of another."""

UNEVEN_HEADS: Final = (16, 12, 6, 3)
"""Numbers of heads whose slopes are no powers of two."""


def branch_changes(
    expressions: Mapping[str, Expression], choices: Choices, base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Changes to look at: the way to a branch together with another value of one field.

    choices: changes of fields that were proven alone; base: the completed base config.
    """
    sizes: dict[str, Mapping[str, Any]] = {}
    for name in sorted({name for expression in expressions.values() for name in fields_of(expression)}):
        numbers = [changes for changes in choices.get(name, ()) if _is_number(changes[name])]
        if numbers and _is_number(look_up(base, name)):
            sizes[name] = numbers[0]
    for way in _ways(expressions, choices, base):
        yield from ({**changes, **way} for name, changes in sizes.items() if name not in way)


def uneven_heads(
    expressions: Mapping[str, Expression], observations: Sequence[Observation]
) -> Iterator[dict[str, Any]]:
    """The changes of the first config with linear biases, with other numbers of heads."""
    heads = expressions.get(HEADS)
    if not isinstance(heads, Field):
        return
    for each in observations:
        biases = each.values.get(ALIBI)
        if isinstance(biases, LayerValues) and any(value is True for value in biases):
            yield from ({**each.changes, heads.name: number} for number in UNEVEN_HEADS)
            return


def joined_changes(
    expressions: Mapping[str, Expression], choices: Choices, base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Changes to look at: other values of two fields that decide the same slot, and of fields that are read where
    layers differ together with other lists over layers. Behind another value one list only was seen, whose pattern has
    many names, and the other conditions with one value only."""
    lists = [name for name in sorted(choices) if isinstance(look_up(base, name), list)]
    seen: list[dict[str, Any]] = []
    for expression in (expressions[slot] for slot in sorted(expressions)):
        parts = list(walk(expression))
        if not any(isinstance(part, PerLayer | WhenEqual | WhenNull) for part in parts):
            continue
        names = sorted(fields_of(expression))
        beside = lists if any(isinstance(part, PerLayer) for part in parts) else []
        pairs = [*itertools.combinations(names, 2), *itertools.product(names, set(beside) - set(names))]
        for first, second in pairs:
            for one, other in itertools.product(_values(choices, first), _values(choices, second)):
                both = {**one, **other}
                if not one.keys() & other.keys() and both not in seen:
                    seen.append(both)
                    yield both


def _values(choices: Choices, name: str) -> list[dict[str, Any]]:
    """Some changes of a field that were proven; resized lists are no changes of another field."""
    return [dict(each) for each in choices.get(name, ()) if len(each) == 1][:MOST_VALUES]


def _ways(expressions: Mapping[str, Expression], choices: Choices, base: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for slot in sorted(expressions):
        for way in _ways_to_numbers(expressions[slot], choices, base, {}):
            if way and way not in found:
                found.append(way)
    return found


def _ways_to_numbers(
    expression: Expression, choices: Choices, base: Mapping[str, Any], way: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Values of fields, other than the base's, that lead to a number that is computed."""
    match expression:
        case Constant(value) if _is_number(value):
            yield way
        case Product() | Sum() | Power():
            yield way
        case WhenNull(name, otherwise):
            if look_up(base, name) is None:
                yield from _ways_to_numbers(otherwise, choices, base, way)
            else:
                yield from _ways_to_numbers(otherwise, choices, base, {**way, name: None})
        case WhenEqual(name, value, then, otherwise):
            now = same(look_up(base, name), value)
            other = (
                value
                if not now
                else next((each[name] for each in choices.get(name, ()) if not same(each[name], value)), value)
            )
            yield from _ways_to_numbers(then, choices, base, way if now else {**way, name: other})
            if not now or not same(other, value):
                yield from _ways_to_numbers(otherwise, choices, base, {**way, name: other} if now else way)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
