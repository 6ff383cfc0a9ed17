"""Writes the expressions of an architecture report as Python: JSON of `areal/porting/family.py` to source text.

    size, heads = FieldValue("self.hidden_size", "int"), FieldValue("self.num_heads", "int")
    writer = Writer({"hidden_size": size, "n_head": heads})
    writer.expression({"kind": "product", "factor": 1.0, "powers": {"hidden_size": 1, "n_head": -1}, "integer": True})
    # "self.hidden_size // self.num_heads"

The text computes what the docstrings there say. Names come from configs and modeling files of strangers: whoever makes
a `FieldValue` has checked them (`names`), and only plain literals are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.porting.write.names import literal, malformed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHOICE, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(9)
"""How tightly the outermost operator of a text binds."""

_CHOICES: Final = frozenset({"per_layer", "when_equal"})

SCORE_FACTOR: Final = "rope_parameters.score_factor"
"""Name under which values hold the factor that a rotary type has for scores: an attribute, not a config field."""


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

    def expression(self, node: Mapping[str, Any]) -> str:
        """Return the text of an expression."""
        return self._expression(node)[0]

    def operand(self, node: Mapping[str, Any]) -> str:
        """Return the text of an expression, in parentheses unless it is a name, a literal or a call."""
        return _within(self._expression(node), _ATOM)

    def condition(self, node: Mapping[str, Any]) -> str:
        """Return the text of a condition on a layer."""
        return self._condition(node)[0]

    def types(self, node: Mapping[str, Any]) -> set[str]:
        """Return the Python types that an expression can have."""
        kind = node.get("kind")
        if kind == "constant":
            return {_type_name(node["value"])}
        if kind == "field":
            value = self._value(node["name"])
            return {value.type, "None"} if value.nullable else {value.type}
        if kind == "product":
            return {"int"} if node.get("integer") or self._is_integral(node) else {"float"}
        if kind == "sum":
            return {"int"} if all(self.types(term) == {"int"} for term in node["terms"]) else {"float"}
        if kind in ("power", "rotary_scaled"):
            return {"float"}
        if kind == "when_null":
            return ({self._value(node["field"]).type} - {"None"}) | self.types(node["otherwise"])
        if kind in _CHOICES:
            return self.types(node["then"]) | self.types(node["otherwise"])
        raise malformed(f"an expression of kind {kind!r}")

    # ------------------------------------------------------------------------------------------------- expressions

    def _expression(self, node: Mapping[str, Any]) -> _Text:
        kind = node.get("kind")
        if kind == "constant":
            text = literal(node["value"])
            return text, _SIGN if text.startswith("-") else _ATOM
        if kind == "field":
            return self._value(node["name"]).text, _ATOM
        if kind == "product":
            return self._product(node)
        if kind == "sum":
            return self._sum(node["terms"])
        if kind in ("power", "rotary_scaled"):
            return self._scaled(node)
        if kind == "when_null":
            value = self._value(node["field"])
            if not value.nullable:
                return value.text, _ATOM
            return f"{value.text} if {value.text} is not None else {self.expression(node['otherwise'])}", _CHOICE
        if kind in _CHOICES:
            return self._choice(self._condition_of(node), node)
        raise malformed(f"an expression of kind {kind!r}")

    def _choice(self, condition: _Text, node: Mapping[str, Any]) -> _Text:
        then, otherwise = node["then"], node["otherwise"]
        flat = self._flat(node) if _CHOICES & {then.get("kind"), otherwise.get("kind")} else None
        if flat is not None:
            condition, then, otherwise = flat
        if _is_flag(then, True) and _is_flag(otherwise, False):
            return condition
        if _is_flag(then, False) and _is_flag(otherwise, True):
            return _negated(condition)
        if then == otherwise:
            return self._expression(then)
        chosen, rest = _within(self._expression(then), _AND), self._expression(otherwise)[0]
        return f"{chosen} if {condition[0]} else {rest}", _CHOICE

    def _flat(self, node: Mapping[str, Any]) -> tuple[_Text, Mapping[str, Any], Mapping[str, Any]] | None:
        """Choices inside each other between two outcomes only, as one choice by conditions that all have to hold."""
        leaves: list[Mapping[str, Any]] = []
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

    def _conjunction(self, node: Mapping[str, Any], wanted: Any, other: Any) -> list[_Text] | None:
        """Conditions under which a nested choice is `wanted`; None where it is not all of some conditions."""
        if node == wanted:
            return []
        if node.get("kind") not in _CHOICES:
            return None
        condition = self._condition_of(node)
        if node["otherwise"] == other:
            rest, own = self._conjunction(node["then"], wanted, other), condition
        elif node["then"] == other:
            rest, own = self._conjunction(node["otherwise"], wanted, other), _negated(condition)
        else:
            return None
        return None if rest is None else [own, *rest]

    def _condition_of(self, choice: Mapping[str, Any]) -> _Text:
        if choice["kind"] == "when_equal":
            return self._comparison(choice["field"], choice["value"])
        return self._condition(choice["condition"])

    def _sum(self, terms: Sequence[Mapping[str, Any]]) -> _Text:
        text = ""
        for term in terms:
            written = _within(self._expression(term), _PRODUCT) if term.get("kind") != "constant" else ""
            if term.get("kind") == "constant":
                value = literal(term["value"])
                sign, written = ("-", value[1:]) if value.startswith("-") else ("+", value)
                text += f" {sign} {written}" if text else value
            else:
                text += f" + {written}" if text else written
        return text, _SUM if len(terms) > 1 else _PRODUCT

    def _scaled(self, node: Mapping[str, Any]) -> _Text:
        """Return an expression to a power, or times the factor that a rotary type has for scores."""
        if node["kind"] == "rotary_scaled":
            factor = self._value(SCORE_FACTOR).text
            return f"{_within(self._expression(node['base']), _PRODUCT)} * {factor}", _PRODUCT
        scale, exponent = float(node["factor"]), float(node["exponent"])
        power = literal(int(exponent) if exponent == int(exponent) else exponent)
        text = f"{self.operand(node['base'])} ** {power}"
        return (text, _POWER) if scale == 1.0 else (f"{literal(scale)} * {text}", _PRODUCT)

    # ---------------------------------------------------------------------------------------------------- products

    def _product(self, node: Mapping[str, Any]) -> _Text:
        powers = {name: float(power) for name, power in node["powers"].items() if power}
        factor = float(node["factor"])
        if not powers:
            return literal(int(factor) if node.get("integer") else factor), _ATOM
        if node.get("integer"):
            return self._integer_product(factor, powers)
        above = [self._power(name, power) for name, power in powers.items() if power > 0 or power != int(power)]
        below = [self._power(name, -power) for name, power in powers.items() if power < 0 and power == int(power)]
        if factor != 1.0 or not above:
            whole = factor == int(factor) and (self._is_integral(node) or bool(above and below))
            above.insert(0, (literal(int(factor) if whole else factor), _ATOM))
        return _joined(above, below, " / ")

    def _integer_product(self, factor: float, powers: Mapping[str, float]) -> _Text:
        """Return a product that is rounded down; in integers wherever that is the same."""
        exact = all(power == int(power) and self._value(name).type == "int" for name, power in powers.items())
        if exact and factor == int(factor):
            above = [self._power(name, power) for name, power in powers.items() if power > 0]
            below = [self._power(name, -power) for name, power in powers.items() if power < 0]
            if factor != 1.0 or not above:
                above.insert(0, (literal(int(factor)), _ATOM))
            return _joined(above, below, " // ")
        inverse = 1.0 / factor
        if exact and factor < 1.0 and inverse == int(inverse) and all(power > 0 for power in powers.values()):
            above = [self._power(name, power) for name, power in powers.items()]
            return _joined(above, [(literal(int(inverse)), _ATOM)], " // ")
        node = {"factor": factor, "powers": dict(powers)}
        return f"int({self._product(node)[0]})", _ATOM

    def _power(self, name: str, power: float) -> _Text:
        text = self._value(name).text
        if power == 1.0:
            return text, _ATOM
        return f"{text}**{literal(int(power) if power == int(power) else power)}", _POWER

    def _is_integral(self, node: Mapping[str, Any]) -> bool:
        powers: Mapping[str, float] = node["powers"]
        whole = all(power >= 0 and power == int(power) for power in powers.values())
        integers = all(self._value(name).type == "int" for name in powers)
        return bool(powers) and whole and integers and float(node["factor"]) == int(node["factor"])

    # -------------------------------------------------------------------------------------------------- conditions

    def _condition(self, node: Mapping[str, Any]) -> _Text:  # noqa: PLR0911 - one case for each kind
        kind = node.get("kind")
        if kind == "listed":
            return _is_among(f"{self._value(node['field']).text}[layer]", node["values"])
        if kind == "at_least":
            return f"layer >= {self._value(node['field']).text}", _COMPARISON
        if kind == "at_most":
            return f"layer <= {self._value(node['field']).text}", _COMPARISON
        if kind == "first":
            return "layer == 0", _COMPARISON
        if kind == "multiple":
            of = node["of"]
            divisor = self._value(of).text if isinstance(of, str) else literal(of)
            return f"{_shifted(int(node['shift']))} % {divisor} == 0", _COMPARISON
        if kind == "member":
            return f"layer in {self._value(node['field']).text}", _COMPARISON
        if kind == "flag":
            return self._comparison(node["field"], node["value"])
        if kind == "not":
            return _negated(self._condition(node["condition"]))
        if kind == "all":
            parts = [_within(self._condition(part), _NOT) for part in node["conditions"]]
            return (" and ".join(parts) or "True"), _AND if len(parts) > 1 else _NOT
        raise malformed(f"a condition of kind {kind!r}")

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
            raise malformed(f"an expression over {name!r}, which no field use describes")
        return self._values[name]


def fields_of(node: Any) -> list[str]:
    """Return the config fields that an expression or a condition reads, in the order of appearance."""
    found: dict[str, None] = {}
    _collect(node, found)
    return list(found)


def _collect(node: Any, found: dict[str, None]) -> None:
    if isinstance(node, list):
        for item in node:
            _collect(item, found)
    if not isinstance(node, dict):
        return
    kind = node.get("kind")
    if kind == "field":
        found[node["name"]] = None
    elif kind == "product":
        found.update(dict.fromkeys(node["powers"]))
    elif kind == "multiple" and isinstance(node["of"], str):
        found[node["of"]] = None
    elif isinstance(node.get("field"), str):
        found[node["field"]] = None
    if node.get("thetas"):
        found[node["thetas"]] = None
    for key in ("terms", "base", "otherwise", "condition", "conditions", "then", "theta"):
        _collect(node.get(key), found)


def _is_flag(node: Mapping[str, Any], wanted: bool) -> bool:
    """Whether an expression is true, or false; 1 is equal to true, and not the same."""
    return node.get("kind") == "constant" and node["value"] is wanted


def _leaves(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if node.get("kind") not in _CHOICES:
        return [node]
    return [leaf for key in ("then", "otherwise") for leaf in _leaves(node[key])]


def depends_on_layer(node: Any) -> bool:
    """Whether an expression has different values for different layers of one model."""
    if not isinstance(node, dict):
        return isinstance(node, list) and any(map(depends_on_layer, node))
    return node.get("kind") == "per_layer" or any(
        depends_on_layer(node.get(key)) for key in ("terms", "base", "then", "otherwise")
    )


def _type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _within(text: _Text, level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _joined(above: Sequence[_Text], below: Sequence[_Text], division: str) -> _Text:
    text = " * ".join(_within(item, _SIGN) for item in above)
    if not below:
        return text, _PRODUCT if len(above) > 1 else above[0][1]
    divisor = " * ".join(_within(item, _SIGN) for item in below)
    return f"{text}{division}{f'({divisor})' if len(below) > 1 else divisor}", _PRODUCT


def _is_among(text: str, values: Sequence[Any]) -> _Text:
    if len(values) == 1:
        return f"{text} == {literal(values[0])}", _COMPARISON
    return f"{text} in ({', '.join(map(literal, values))})", _COMPARISON


def _shifted(shift: int) -> str:
    return "layer" if not shift else f"(layer {'+' if shift > 0 else '-'} {abs(shift)})"


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
