"""Writes expressions over config fields as Python source.

    size, heads = FieldValue("self.hidden_size", "int"), FieldValue("self.num_heads", "int")
    writer = Writer({"hidden_size": size, "n_head": heads})
    writer.expression(Product(1.0, (("hidden_size", 1.0), ("n_head", -1.0)), integer=True))
    # "self.hidden_size // self.num_heads"

The text computes what `bind.expressions.evaluate` computes. Names come from configs and modeling files of strangers:
whoever makes a `FieldValue` has checked them (`names`), and only plain literals are written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import SCORE_FACTOR
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
    RotaryScaled,
    RoundedUp,
    Sum,
    WhenEqual,
    WhenNull,
)
from areal.porting.records import ReportError
from areal.porting.write.names import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.family import Condition, Expression

_CHOICE, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(9)
"""How tightly the outermost operator of a text binds."""


_TYPES: Final[dict[type, str]] = {
    AllLayers: "list",
    Ceiling: "int",
    Entry: "int",
    Length: "int",
    Range: "tuple[float, float]",
    RoundedUp: "int",
}
"""Of expressions that are no float."""


@dataclass(frozen=True)
class FieldValue:
    """How the value of one config field is written."""

    text: str
    type: str = "any"
    """ "int", "float", "bool", "str", "list", "dict" or "any"."""
    nullable: bool = False


_Text = tuple[str, int]


class Writer:
    """Writes expressions and conditions. The number of the layer is called `layer`."""

    def __init__(self, values: Mapping[str, FieldValue]) -> None:
        self._values = values

    def expression(self, node: Expression) -> str:
        """Return the text of an expression."""
        return self._expression(node)[0]

    def condition(self, node: Condition) -> str:
        """Return the text of a condition on a layer."""
        return self._condition(node)[0]

    def types(self, node: Expression) -> set[str]:
        """Return the Python types that an expression can have."""
        match node:
            case Constant(value):
                return {"None" if value is None else type(value).__name__}
            case Field(name):
                value = self._value(name)
                return {value.type, "None"} if value.nullable else {value.type}
            case Product():
                return {"int"} if node.integer or self._is_integral(node) else {"float"}
            case Sum(terms):
                return {"int"} if all(self.types(term) == {"int"} for term in terms) else {"float"}
            case AllLayers() | Ceiling() | Entry() | Length() | Range() | RoundedUp():
                return {_TYPES[type(node)]}
            case Narrowed() | Power() | RotaryScaled():
                return {"float"}
            case WhenNull(name, otherwise):
                return ({self._value(name).type} - {"None"}) | self.types(otherwise)
            case PerLayer() | WhenEqual():
                return self.types(node.then) | self.types(node.otherwise)
        raise ReportError(f"the analysis reports {node!r} where a value is needed")

    # ------------------------------------------------------------------------------------------------- expressions

    def _expression(self, node: Expression) -> _Text:  # noqa: C901, PLR0911 - one case for each kind
        match node:
            case Constant(value):
                text = literal(value)
                return text, _SIGN if text.startswith("-") else _ATOM
            case Field(name):
                return self._value(name).text, _ATOM
            case Product():
                return self._product(node)
            case Narrowed(base):
                return f"as_bfloat16({self.expression(base)})", _ATOM
            case Sum(terms):
                return self._sum(terms)
            case Power(factor, base, exponent):
                power = literal(int(exponent) if exponent == int(exponent) else exponent)
                text = f"{_within(self._expression(base), _ATOM)} ** {power}"
                return (text, _POWER) if factor == 1.0 else (f"{literal(factor)} * {text}", _PRODUCT)
            case Entry(name) | Length(name):
                text = self._value(name).text
                return f"{text}[layer]" if isinstance(node, Entry) else f"len({text})", _ATOM
            case Range(low, high):
                return f"({self.expression(low)}, {self.expression(high)})", _ATOM
            case AllLayers(depth):
                return f"tuple(range({self._value(depth).text}))", _ATOM
            case Ceiling() | RoundedUp():
                return self._rounded_up(node)
            case RotaryScaled(base):
                return f"{_within(self._expression(base), _PRODUCT)} * {self._value(SCORE_FACTOR).text}", _PRODUCT
            case WhenNull(name, otherwise):
                value = self._value(name)
                if not value.nullable:
                    return value.text, _ATOM
                return f"{value.text} if {value.text} is not None else {self.expression(otherwise)}", _CHOICE
            case PerLayer() | WhenEqual():
                return self._choice(node)
        raise ReportError(f"the analysis reports {node!r} where a value is needed")

    def _choice(self, node: PerLayer | WhenEqual) -> _Text:
        condition, then, otherwise = self._condition_of(node), node.then, node.otherwise
        if isinstance(then, PerLayer | WhenEqual) or isinstance(otherwise, PerLayer | WhenEqual):
            condition, then, otherwise = self._flat(node) or (condition, then, otherwise)
        if _is_flag(then, True) and _is_flag(otherwise, False):
            return condition
        if _is_flag(then, False) and _is_flag(otherwise, True):
            return _negated(condition)
        if then == otherwise:
            return self._expression(then)
        chosen, rest = _within(self._expression(then), _AND), self._expression(otherwise)[0]
        return f"{chosen} if {condition[0]} else {rest}", _CHOICE

    def _flat(self, node: Expression) -> tuple[_Text, Expression, Expression] | None:
        """Return nested choices between two outcomes as a single choice, whose conditions all have to hold."""
        leaves: list[Expression] = []
        for leaf in _leaves(node):
            if leaf not in leaves:
                leaves.append(leaf)
        if len(leaves) != 2:
            return None
        for wanted, other in (leaves, leaves[::-1]):
            parts = self._conjunction(node, wanted, other)
            if parts is not None:
                return (" and ".join(_within(part, _NOT) for part in parts), _AND), wanted, other
        return None

    def _conjunction(self, node: Expression, wanted: Expression, other: Expression) -> list[_Text] | None:
        """Return conditions under which a nested choice is `wanted`; None where it is not all of some conditions."""
        if node == wanted:
            return []
        if not isinstance(node, PerLayer | WhenEqual):
            return None
        condition = self._condition_of(node)
        if node.otherwise == other:
            rest, own = self._conjunction(node.then, wanted, other), condition
        elif node.then == other:
            rest, own = self._conjunction(node.otherwise, wanted, other), _negated(condition)
        else:
            return None
        return None if rest is None else [own, *rest]

    def _condition_of(self, choice: PerLayer | WhenEqual) -> _Text:
        if isinstance(choice, WhenEqual):
            return self._comparison(choice.field, choice.value)
        return self._condition(choice.condition)

    def _sum(self, terms: Sequence[Expression]) -> _Text:
        text = ""
        for term in terms:
            sign = "+"
            if isinstance(term, Constant):
                written = literal(term.value)
                if text and written.startswith("-"):
                    sign, written = "-", written[1:]
            else:
                written = _within(self._expression(term), _PRODUCT)
            text = f"{text} {sign} {written}" if text else written
        return text, _SUM if len(terms) > 1 else _PRODUCT

    # ---------------------------------------------------------------------------------------------------- products

    def _rounded_up(self, node: Ceiling | RoundedUp) -> _Text:
        if isinstance(node, Ceiling):
            return f"-(-{self._value(node.of).text} // {literal(node.divisor)})", _SIGN
        size, step = _within(self._expression(node.base), _PRODUCT), self._value(node.multiple).text
        size = f"int({size} * {self._value(node.scale).text})" if node.scale else f"({size})"
        return f"-(-{size} // {step}) * {step}", _PRODUCT

    def _product(self, node: Product) -> _Text:
        powers = {name: power for name, power in node.powers if power}
        factor = node.factor
        if not powers:
            return literal(int(factor) if node.integer else factor), _ATOM
        whole = {name: power for name, power in powers.items() if power == int(power)}
        above = [self._power(name, power) for name, power in powers.items() if power > 0 or name not in whole]
        below = [self._power(name, -power) for name, power in whole.items() if power < 0]
        if node.integer:  # rounded down; in integers wherever that is the same
            exact = len(whole) == len(powers) and all(self._value(name).type == "int" for name in powers)
            if exact and factor == int(factor):
                if factor != 1.0 or not above:
                    above.insert(0, (literal(int(factor)), _ATOM))
                return _joined(above, below, " // ")
            if exact and factor < 1.0 and 1.0 / factor == int(1.0 / factor) and not below:
                return _joined(above, [(literal(int(1.0 / factor)), _ATOM)], " // ")
            return f"int({self._product(replace(node, integer=False))[0]})", _ATOM
        if factor != 1.0 or not above:
            is_whole = factor == int(factor) and (self._is_integral(node) or bool(above and below))
            above.insert(0, (literal(int(factor) if is_whole else factor), _ATOM))
        return _joined(above, below, " / ")

    def _power(self, name: str, power: float) -> _Text:
        text = self._value(name).text
        if power == 1.0:
            return text, _ATOM
        return f"{text}**{literal(int(power) if power == int(power) else power)}", _POWER

    def _is_integral(self, node: Product) -> bool:
        whole = all(power >= 0 and power == int(power) for _, power in node.powers)
        integers = all(self._value(name).type == "int" for name, _ in node.powers)
        return bool(node.powers) and whole and integers and node.factor == int(node.factor)

    # -------------------------------------------------------------------------------------------------- conditions

    def _condition(self, node: Condition) -> _Text:  # noqa: PLR0911 - one case for each kind
        match node:
            case Listed(name, values) | Cycled(name, values):
                text = self._value(name).text
                text = f"{text}[layer]" if isinstance(node, Listed) else f"{text}[layer % len({text})]"
                if len(values) == 1:
                    return f"{text} == {literal(values[0])}", _COMPARISON
                return f"{text} in ({', '.join(map(literal, values))})", _COMPARISON
            case AtLeast(name):
                return f"layer >= {self._value(name).text}", _COMPARISON
            case AtMost(name):
                return f"layer <= {self._value(name).text}", _COMPARISON
            case FromEnd(1, depth):
                return f"layer == {self._value(depth).text} - 1", _COMPARISON
            case FromEnd(str(name), depth):
                return f"layer >= {self._value(depth).text} - {self._value(name).text}", _COMPARISON
            case First():
                return "layer == 0", _COMPARISON
            case Multiple(of, shift):
                divisor = self._value(of).text if isinstance(of, str) else literal(of)
                shifted = f"(layer {'+' if shift > 0 else '-'} {abs(int(shift))})" if shift else "layer"
                return f"{shifted} % {divisor} == 0", _COMPARISON
            case Remainder(of, to):
                return f"layer % {self._value(of).text} == {self._value(to).text}", _COMPARISON
            case LayerInField(name):
                return f"layer in {self._value(name).text}", _COMPARISON
            case FieldEquals(name, value):
                return self._comparison(name, value)
            case Negation(condition):
                return _negated(self._condition(condition))
            case All(conditions):
                parts = [_within(self._condition(part), _NOT) for part in conditions]
                return (" and ".join(parts) or "True"), _AND if len(parts) > 1 else _NOT
        raise ReportError(f"the analysis reports {node!r} where a condition is needed")

    def _comparison(self, field: str, wanted: Any) -> _Text:
        value = self._value(field)
        if wanted is None:
            return (f"{value.text} is None", _COMPARISON) if value.nullable else ("False", _ATOM)
        if isinstance(wanted, bool):
            if value.type == "bool" and not value.nullable:
                return (value.text, _ATOM) if wanted else (f"not {value.text}", _NOT)
            return f"{value.text} is {wanted}", _COMPARISON
        return f"{value.text} == {literal(wanted)}", _COMPARISON

    def _value(self, name: str) -> FieldValue:
        if name not in self._values:
            raise ReportError(f"the analysis reports an expression over {name!r}, which no field use describes")
        return self._values[name]


def _is_flag(node: Expression, wanted: bool) -> bool:
    """Return whether an expression is true, or false; 1 is equal to true, and not the same."""
    return isinstance(node, Constant) and node.value is wanted


def _leaves(node: Expression) -> list[Expression]:
    return [*_leaves(node.then), *_leaves(node.otherwise)] if isinstance(node, PerLayer | WhenEqual) else [node]


def _within(text: _Text, level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _joined(above: Sequence[_Text], below: Sequence[_Text], division: str) -> _Text:
    text = " * ".join(_within(item, _SIGN) for item in above)
    if not below:
        return text, _PRODUCT if len(above) > 1 else above[0][1]
    divisor = " * ".join(_within(item, _SIGN) for item in below)
    return f"{text}{division}{f'({divisor})' if len(below) > 1 else divisor}", _PRODUCT


_PAIRS: Final = ((" is ", " is not "), (" == ", " != "), (" >= ", " < "), (" in ", " not in "))
_OPPOSITES: Final = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


def _negated(condition: _Text) -> _Text:
    text, level = condition
    if level == _COMPARISON:
        # The first operator is the comparison's own: what stands before it holds no string.
        found = [(text.find(operator), -len(operator), operator) for operator in _OPPOSITES if operator in text]
        at, _, operator = min(found)
        return f"{text[:at]}{_OPPOSITES[operator]}{text[at + len(operator) :]}", level
    if text.startswith("not ") and level == _NOT:
        return text.removeprefix("not "), _ATOM
    return f"not {_within(condition, _COMPARISON)}", _NOT
