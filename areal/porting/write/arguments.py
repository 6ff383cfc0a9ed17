"""Writes the arguments of a family: attributes, the way from and to a config.json, and properties for derived values.

`Arguments.access(slot)` is how the model's code says a slot: a literal, an attribute, or a property, which is written
into the arguments then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.porting.write.fields import CANONICAL, dependencies, reading
from areal.porting.write.names import (
    attribute_name,
    class_name,
    field_name,
    literal,
    one_line,
    property_of,
    tuple_literal,
)
from areal.porting.write.writer import SCORE_FACTOR, FieldValue, Writer, depends_on_layer, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.porting.write.fields import FieldPlan, FieldPlans


BASE: Final = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
    "tie_word_embeddings",
)
"""Attributes that `BaseModelArgs` declares, in its order."""
_SLOTS: Final = {
    attribute: slot for slot, attribute in CANONICAL.items() if attribute in BASE and slot != "positions.num_positions"
}
_MAX_ENTRY: Final = 108
"""Characters of a field's name and the reason to ignore it, together in one line."""
_ROTARY_PART: Final = "rope_parameters."
_THETA: Final = "rope_parameters.rope_theta"
_PARTIAL: Final = "rope_parameters.partial_rotary_factor"
"""Read by `take_rotary`, and an attribute of what that returns."""


@dataclass(frozen=True)
class DerivedValue:
    """A derived value of the arguments."""

    name: str
    annotation: str
    documentation: str
    text: str
    of_layer: bool


@dataclass
class Arguments:
    """Collects what the arguments of one family need."""

    report: Mapping[str, Any]
    plans: FieldPlans
    properties: dict[str, DerivedValue] = field(default_factory=dict)
    """By the JSON of their expression."""

    def __post_init__(self) -> None:
        self.slots: Mapping[str, Any] = self.report["slots"]
        self.tables = rotary_tables(self.slots.get("layer.rotary"))
        self._self = Writer(self._values("self"))
        self._args = Writer(self._values("args"))
        self._local = Writer(self._values(""))

    def _values(self, prefix: str) -> dict[str, FieldValue]:
        values = self.plans.values(prefix)
        rotary = f"{prefix}.{self.tables[0].attribute}" if prefix and self.tables else "rotary"
        for use in self.report["fields"]:
            if use["name"].startswith(_ROTARY_PART):
                values[use["name"]] = FieldValue(f"{rotary}.partial_factor", "float")
        for name in self._rotary_numbers():
            values[name] = FieldValue(f"{rotary}.extra[{literal(name.removeprefix(_ROTARY_PART))}]", "float")
        values[_THETA] = FieldValue(f"{rotary}.theta", "float")
        values[SCORE_FACTOR] = FieldValue(f"{rotary}.score_factor", "float")
        values[_PARTIAL] = FieldValue(f"{rotary}.partial_factor", "float")
        return values

    # ------------------------------------------------------------------------------------------- use in model code

    def access(self, slot: str) -> str:
        """How code that has `args` (and `layer`) writes the value of a slot."""
        node = self.slots[slot]
        attribute = CANONICAL.get(slot)
        if attribute in BASE and not depends_on_layer(node) and slot == _SLOTS.get(str(attribute)):
            return f"args.{attribute}"
        return self.write(node, slot)

    def write(self, node: Mapping[str, Any], slot: str) -> str:
        """Return an expression as the model's code says it; slot: what it stands for."""
        if node["kind"] in ("constant", "field", "when_null") or self._is_short(node):
            text = self._args.expression(node)
            if node["kind"] != "when_null" or text.isidentifier() or text.replace(".", "").isidentifier():
                return text
        return self._property(node, slot)

    def condition(self, node: Mapping[str, Any], slot: str) -> str:
        """Return a condition on the layer as the model's code says it, through a property of the arguments."""
        chosen = {"kind": "per_layer", "condition": node, "then": _constant(True), "otherwise": _constant(False)}
        return self._property(chosen, slot)

    def flag(self, node: Mapping[str, Any]) -> str:
        """Whether a field has a value, as the model's code says it."""
        chosen = {**node, "then": _constant(True), "otherwise": _constant(False)}
        return self._args.expression(chosen)

    def attribute_of(self, name: str) -> str:
        """Return the attribute that keeps a config field."""
        return next(plan.attribute for plan in self.plans if plan.name == name)

    def can_be_none(self, node: Mapping[str, Any]) -> bool:
        """Whether an expression is null for some config."""
        return "None" in self._args.types(node)

    def _is_short(self, node: Mapping[str, Any]) -> bool:
        """Whether an expression says what it is without a name: a comparison of one field."""
        branches = [node.get("then"), node.get("otherwise")]
        return node["kind"] == "when_equal" and sorted(map(str, branches)) == sorted(
            map(str, [_constant(True), _constant(False)])
        )

    def _property(self, node: Mapping[str, Any], slot: str) -> str:
        key = json.dumps(node, sort_keys=True)
        if key not in self.properties:
            name, documentation = property_of(slot)
            taken = {plan.attribute for plan in self.plans} | {made.name for made in self.properties.values()} | {*BASE}
            while name in taken:
                name = f"{name}_value" if not name.endswith("_value") else f"{name}_"
            types = self._self.types(node)
            order = [kind for kind in ("bool", "int", "float", "str") if kind in types]
            if "float" in order and "int" in order:
                order.remove("int")
            annotation = " | ".join([*order, *(["None"] if "None" in types else [])])
            of_layer = depends_on_layer(node)
            self.properties[key] = DerivedValue(name, annotation, documentation, self._self.expression(node), of_layer)
        made = self.properties[key]
        return f"args.{made.name}(layer)" if made.of_layer else f"args.{made.name}"

    # ------------------------------------------------------------------------------------------------ reading

    def locals(self) -> list[tuple[str, str]]:
        """Variables that several expressions need, in an order in which each needs only those before it."""
        needed: dict[str, None] = {}
        for plan in self.plans:
            needed.update(dict.fromkeys(dependencies(plan)))
        for use in self.plans.fixed:
            needed.update(dict.fromkeys(fields_of(use.get("default_rule")) if use.get("type") != "list" else ()))
        for node in self._derived().values():
            needed.update(dict.fromkeys(fields_of(node)))
        names = {plan.name for plan in self.plans}
        layers = self.plans.by_attribute("num_layers")
        if layers is not None and any(plan.per_layer or plan.numbers for plan in self.plans):
            needed[layers.name] = None
        heads = self.plans.by_attribute("num_heads")
        if heads is not None and "layer.attention.num_kv_heads" not in self.slots:
            needed[heads.name] = None
        length = self.plans.by_attribute("max_position_embeddings")
        if length is not None and any(table.theta is None for table in self.tables):
            needed[length.name] = None
        rotated = self._rotated()
        if rotated is not None:
            needed[rotated[1].name] = None
        done: dict[str, str] = {}
        for name in needed:
            if name in names:
                self._order(name, done)
        # A list over layers may be filled with the theta of the table.
        by_list = [table for table in self.tables if table.thetas]
        return [*done.items(), *((table.attribute, self._take_rotary(table)) for table in by_list)]

    def _order(self, name: str, done: dict[str, str]) -> None:
        plan = next(plan for plan in self.plans if plan.name == name)
        if plan.attribute in done:
            return
        layers = self.plans.by_attribute("num_layers")
        lengths = [layers.name] if plan.per_layer and layers is not None else []
        for other in (*lengths, *dependencies(plan)):
            if any(candidate.name == other for candidate in self.plans):
                self._order(other, done)
        done[plan.attribute] = self._reading(plan)

    def values(self) -> list[tuple[str, str]]:
        """Arguments of the constructor, in order, as they stand in `from_hf_config`."""
        ready = dict(self.locals())
        derived = self._derived()
        found = [("model_type", "fields.model_type")]
        for attribute in BASE:
            plan = self.plans.by_attribute(attribute)
            if attribute in ready:
                found.append((attribute, attribute))
            elif plan is not None:
                found.append((attribute, self._reading(plan)))
            elif attribute in derived:
                found.append((attribute, self._local.expression(derived[attribute])))
            elif attribute == "num_kv_heads":
                found.append((attribute, dict(found)["num_heads"]))
            else:
                found.append((attribute, "sys.maxsize"))
        for plan in self.plans:
            if plan.attribute not in BASE:
                found.append((plan.attribute, plan.attribute if plan.attribute in ready else self._reading(plan)))
        found += [
            (table.attribute, table.attribute if table.thetas else self._take_rotary(table))
            for table in self.tables
            if table.theta is None
        ]
        use = self._use("initializer_range")
        if use is not None:
            found.append(("initializer_range", f'fields.number("initializer_range", {literal(use["default"])})'))
        return [*found, ("token_ids", "fields.token_ids()")]

    def _derived(self) -> dict[str, Mapping[str, Any]]:
        """Return base attributes that no field is, as expressions."""
        found: dict[str, Mapping[str, Any]] = {}
        for attribute, slot in _SLOTS.items():
            if self.plans.by_attribute(attribute) is None and slot in self.slots:
                found[attribute] = _flat(self.slots[slot])
        if "head_dim" not in found and self.plans.by_attribute("head_dim") is None:
            parts = [self.slots.get(f"layer.attention.{part}") for part in ("nope_dim", "rope_dim")]
            found["head_dim"] = {"kind": "sum", "terms": [_flat(part) for part in parts if part is not None]}
        if self.plans.by_attribute("max_position_embeddings") is None and "positions.num_positions" in self.slots:
            found["max_position_embeddings"] = self.slots["positions.num_positions"]
        return found

    def _reading(self, plan: FieldPlan) -> str:
        owner = "fields" if "." not in plan.name else section_variable(plan.name)
        return reading(plan, {"expression": self._local.expression, "num_layers": "num_layers"}, owner)

    def _take_rotary(self, table: RotaryTable) -> str:
        length = "max_position_embeddings" if self.plans.by_attribute("max_position_embeddings") else ""
        arguments = ["fields", *([length] if length else [])]
        if table.layer_type is not None:
            arguments.append(f"layer_type={literal(table.layer_type)}")
        arguments.append(f"types={tuple_literal(table.types)}")
        if any(name == _PARTIAL for node in self.slots.values() for name in fields_of(node)):
            arguments.append("partial=True")
        extra = [name.removeprefix(_ROTARY_PART) for name in self._rotary_numbers()]
        if extra:
            arguments.append(f"extra={tuple_literal(extra)}")
        unused = [name for name in table.extra if name not in extra]
        if unused:
            arguments.append(f"unused={tuple_literal(unused)}")
        default = next((use.get("default") for use in self.report["fields"] if use["name"] == "rope_parameters"), None)
        if isinstance(default, dict) and table.layer_type is not None:
            default = default.get(table.layer_type)
        if isinstance(default, dict):
            arguments.append(f"default={literal(default)}")
        original = self._use("original_max_position_embeddings")
        if original is not None:
            arguments.append(f"original_length={literal(original['default'])}")
        rotated = self._rotated()
        if rotated is not None and table.layer_type is None:
            arguments.append(f"rotated=({literal(rotated[0])}, {rotated[1].attribute})")
        unread = tuple((self._use("rope_parameters") or {}).get("unread", ()))
        if unread and table.layer_type is None:
            arguments.append(f"unread={tuple_literal(unread)}")
        return f"take_rotary({', '.join(arguments)})"

    def _rotary_numbers(self) -> list[str]:
        """Numbers in rope_parameters, besides those of rotary types, that slots read."""
        read = {name for node in self.slots.values() for name in fields_of(node)}
        return sorted(name for name in read if name.startswith(_ROTARY_PART) and name != _PARTIAL)

    def _rotated(self) -> tuple[str, FieldPlan] | None:
        """Return the older field for the number of rotated dimensions and what it is a part of, where it is read."""
        use = self._use("rope_parameters") or {}
        name, of = use.get("rotated") or ("", "")
        plan = next((plan for plan in self.plans if plan.name == of), None)
        return (name, plan) if name and plan is not None else None

    def requirements(self) -> list[str]:
        """Return calls that refuse unproven values."""
        lines = []
        for use in self.plans.fixed:
            name, default, rule = use["name"], use.get("default"), use.get("default_rule")
            values = [literal(value) for value in proven_values(use)]
            if rule is not None and use.get("type") != "list":
                values += [text for text in (self._local.expression(rule),) if text not in values]
            missing = use.get("required") or literal(default) not in values
            extra = f", default={literal(default)}" if missing and default is not None else ""
            allowed = f"({values[0]},)" if len(values) == 1 else f"({', '.join(values)})"
            owner = "fields" if "." not in name else section_variable(name)
            lines.append(f"{owner}.require({literal(name.rpartition('.')[2])}, {allowed}{extra})")
        return lines

    def sections(self) -> list[str]:
        """Objects inside the config that fields are taken from."""
        names = [use["name"] for use in (*(plan.use for plan in self.plans), *self.plans.fixed, *self.plans.ignored)]
        return sorted({name.partition(".")[0] for name in names if "." in name})

    def ignored(self) -> dict[str, str]:
        """Fields of this family that change nothing, with the reason."""
        return {use["name"]: _reason(use, _MAX_ENTRY - len(use["name"])) for use in self.plans.ignored}

    # ------------------------------------------------------------------------------------------------ writing

    def exported(self) -> list[tuple[str, str]]:
        """Config field to the expression that writes it, sorted; objects are written as dictionaries."""
        found = {plan.name: plan.written() for plan in self.plans}
        for use in self.plans.fixed:
            default, allowed = use.get("default"), proven_values(use)
            if allowed and (use.get("required") or not any(_same(default, value) for value in allowed)):
                found[use["name"]] = literal(allowed[0])
        if self._use("initializer_range") is not None:
            found["initializer_range"] = "self.initializer_range"
        found |= {
            "architectures": f"[{literal(class_name(self.report['architecture']))}]",
            "model_type": "self.model_type",
        }
        flat = {name: text for name, text in found.items() if "." not in name}
        for section in sorted({name.partition(".")[0] for name in found if "." in name}):
            inner = [
                f"{literal(name.partition('.')[2])}: {text}"
                for name, text in sorted(found.items())
                if name.startswith(f"{section}.")
            ]
            flat[section] = f"{{{', '.join(inner)}}}"
        return sorted(flat.items())

    def exported_rotary(self) -> str:
        """Return what the dictionary of `to_hf_config` unpacks for the rotations; "" when there are none."""
        tables = [table for table in self.tables if table.theta is None]
        if not tables:
            return ""
        if tables[0].layer_type is None:
            return f"**self.{tables[0].attribute}.to_hf_config()"
        entries = [f"{literal(table.layer_type)}: self.{table.attribute}" for table in tables]
        return f"**rotary_to_hf({{{', '.join(entries)}}})"

    def _use(self, name: str) -> Mapping[str, Any] | None:
        return next(
            (use for use in self.report["fields"] if use["name"] == name and use.get("default") is not None), None
        )


def proven_values(use: Mapping[str, Any]) -> list[Any]:
    """Return what a fixed field may be: the values that were proven, or what its absence means."""
    values = list(use.get("allowed") or ())
    if not values or (use.get("nullable") and use.get("default") is None):
        values += [use.get("default")] if use.get("default") not in values else []
    return values


def section_variable(name: str) -> str:
    """Return the variable for the object that a dotted field is in."""
    return f"{attribute_name(name.partition('.')[0])}_fields"


def _flat(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value for most layers of something that may depend on the layer."""
    while node["kind"] == "per_layer":
        node = node["otherwise"]
    return node


def _constant(value: Any) -> dict[str, Any]:
    return {"kind": "constant", "value": value}


def _same(first: Any, second: Any) -> bool:
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def _reason(use: Mapping[str, Any], limit: int) -> str:
    """Why a field does nothing, short enough for one line of a table."""
    text = one_line(use.get("reason") or "does not change a logit").replace('"', "'")
    return text if len(text) <= limit else f"{text[: max(limit - 4, 0)].rstrip()} ..."


@dataclass(frozen=True)
class RotaryTable:
    """One table of rotations: an attribute that is read, or a property over a field for theta."""

    attribute: str
    layer_type: str | None
    types: tuple[str, ...]
    """Rotary types that were proven."""
    theta: Mapping[str, Any] | None
    extra: tuple[str, ...] = ()
    """Numbers in rope_parameters that no rotary type has."""
    thetas: str = ""
    """Config field with the theta of each layer."""


def rotary_tables(node: Any) -> tuple[RotaryTable, ...]:
    """Each distinct table once, in the order of appearance."""
    found: list[RotaryTable] = []
    distinct = list({json.dumps(leaf, sort_keys=True): leaf for leaf in _leaves(node)}.values())
    for leaf in distinct:
        layer_type = leaf.get("layer_type")
        kind = field_name(layer_type).removesuffix("_attention") if layer_type else ""
        found.append(
            RotaryTable(
                attribute=f"{kind}_rotary" if kind and len(distinct) > 1 else "rotary",
                layer_type=layer_type,
                types=tuple(leaf["types"]),
                theta=leaf.get("theta"),
                extra=tuple(leaf.get("extra", ())),
                thetas=leaf.get("thetas", ""),
            )
        )
    return tuple(found)


def _leaves(node: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(node, dict):
        return
    if node.get("kind") == "rotary":
        yield node
    for key in ("then", "otherwise"):
        yield from _leaves(node.get(key))
