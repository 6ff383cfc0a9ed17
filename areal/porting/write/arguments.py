"""Writes the arguments of a family: attributes, the way from and to a config.json, and properties for derived values.

`Arguments.access(slot)` is how the model's code says a slot: a literal, an attribute, or a property, which is written
into the arguments then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import SCORE_FACTOR, depends_on_layer, fields_of, walk
from areal.porting.family import (
    AllLayers,
    Constant,
    Entry,
    Field,
    Length,
    PerLayer,
    RotaryField,
    Sum,
    WhenEqual,
    WhenNull,
)
from areal.porting.records import ReportError
from areal.porting.write.fields import CANONICAL, dependencies, reading
from areal.porting.write.names import attribute_name, class_name, field_name, literal, one_line, tuple_literal
from areal.porting.write.words import property_of
from areal.porting.write.writer import FieldValue, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.family import Condition, Expression, FieldUse
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


def part_of(table: RotaryField) -> str:
    """Return the field of the rotated part of heads that a table for one kind of layers has."""
    return f"{_ROTARY_PART}{table.layer_type}.partial_rotary_factor"


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

    architecture: str
    slots: Mapping[str, Expression]
    uses: Sequence[FieldUse]
    plans: FieldPlans
    auto_map: Mapping[str, str] = field(default_factory=dict)
    """Names of the classes of the code that the family is made from."""
    properties: dict[str, DerivedValue] = field(default_factory=dict)
    """By the text of their expression: 1 is not true there."""

    def __post_init__(self) -> None:
        self.tables = rotary_tables(self.slots.get("layer.rotary"))
        self._self = Writer(self._values("self"))
        self._args = Writer(self._values("args"))
        self._local = Writer(self._values(""))

    def _values(self, prefix: str) -> dict[str, FieldValue]:
        values = self.plans.values(prefix)
        rotary = f"{prefix}.{next(iter(self.tables))}" if prefix and self.tables else "rotary"
        for use in self.uses:
            if use.name.startswith(_ROTARY_PART):
                values[use.name] = FieldValue(f"{rotary}.partial_factor", "float")
        for name in self._rotary_numbers():
            values[name] = FieldValue(f"{rotary}.extra[{literal(name.removeprefix(_ROTARY_PART))}]", "float")
        for name, table in self.tables.items() if prefix else ():
            if table.layer_type is not None:
                values[part_of(table)] = FieldValue(f"{prefix}.{name}.partial_factor", "float")
        values[_THETA] = FieldValue(f"{rotary}.theta", "float")
        values[SCORE_FACTOR] = FieldValue(f"{rotary}.score_factor", "float")
        values[_PARTIAL] = FieldValue(f"{rotary}.partial_factor", "float")
        return values

    # ------------------------------------------------------------------------------------------- use in model code

    def access(self, slot: str) -> str:
        """Return how code that has `args` (and `layer`) writes the value of a slot."""
        node = self.slots[slot]
        attribute = CANONICAL.get(slot)
        if attribute in BASE and not depends_on_layer(node) and slot == _SLOTS.get(str(attribute)):
            return f"args.{attribute}"
        return self.write(node, slot)

    def write(self, node: Expression, slot: str) -> str:
        """Return an expression as the model's code says it; slot: what it stands for."""
        is_comparison = isinstance(node, WhenEqual) and {repr(node.then), repr(node.otherwise)} == {
            repr(Constant(True)),
            repr(Constant(False)),
        }
        if isinstance(node, Constant | Field | WhenNull) or is_comparison:
            text = self._args.expression(node)
            if not isinstance(node, WhenNull) or text.replace(".", "").isidentifier():
                return text
        return self._property(node, slot)

    def condition(self, node: Condition, slot: str) -> str:
        """Return a condition on the layer as the model's code says it, through a property of the arguments."""
        return self._property(PerLayer(node, Constant(True), Constant(False)), slot)

    def flag(self, node: WhenEqual) -> str:
        """Return the condition of a choice as the model's code says it."""
        return self._args.expression(replace(node, then=Constant(True), otherwise=Constant(False)))

    def attribute_of(self, name: str) -> str:
        """Return the attribute that keeps a config field."""
        return next(plan.attribute for plan in self.plans if plan.name == name)

    def can_be_none(self, node: Expression) -> bool:
        """Return whether an expression is null for some config."""
        return "None" in self._args.types(node)

    def _property(self, node: Expression, slot: str) -> str:
        key = repr(node)
        if key not in self.properties:
            name, documentation = property_of(slot)
            taken = {plan.attribute for plan in self.plans} | {made.name for made in self.properties.values()} | {*BASE}
            while name in taken:
                name = f"{name}_value" if not name.endswith("_value") else f"{name}_"
            types = self._self.types(node)
            order = [kind for kind in ("bool", "int", "float", "str", "tuple[float, float]") if kind in types]
            if "float" in order and "int" in order:
                order.remove("int")
            annotation = " | ".join([*order, *(["None"] if "None" in types else [])])
            of_layer = depends_on_layer(node)
            self.properties[key] = DerivedValue(name, annotation, documentation, self._self.expression(node), of_layer)
        made = self.properties[key]
        return f"args.{made.name}(layer)" if made.of_layer else f"args.{made.name}"

    # ------------------------------------------------------------------------------------------------ reading

    def locals(self) -> list[tuple[str, str]]:
        """Return variables that several expressions need, in an order in which each needs only those before it."""
        needed: dict[str, None] = {}
        for plan in self.plans:
            needed.update(dict.fromkeys(dependencies(plan)))
        for use in self.plans.fixed:
            if use.default_rule is not None and use.type != "list":
                needed.update(dict.fromkeys(fields_of(use.default_rule)))
        for node in self._derived().values():
            needed.update(dict.fromkeys(fields_of(node)))
        names = {plan.name for plan in self.plans}
        layers = self.plans.by_attribute("num_layers")
        if layers is not None and any(plan.per_layer or plan.numbers or plan.sizes for plan in self.plans):
            needed[layers.name] = None
        heads = self.plans.by_attribute("num_heads")
        if heads is not None and "layer.attention.num_kv_heads" not in self.slots:
            needed[heads.name] = None
        length = self.plans.by_attribute("max_position_embeddings")
        if length is not None and any(table.theta is None for table in self.tables.values()):
            needed[length.name] = None
        rotated = self._rotated()
        if rotated is not None:
            needed[rotated[1].name] = None
        done: dict[str, str] = {}
        for name in needed:
            if name in names:
                self._order(name, done)
        # A list over layers may be filled with the theta of the table.
        by_list = [(name, self._take_rotary(table)) for name, table in self.tables.items() if table.thetas]
        return [*done.items(), *by_list]

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
        """Return arguments of the constructor, in order, as they stand in `from_hf_config`."""
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
            elif attribute == "num_heads":  # no layer attends
                found.append((attribute, "1"))
            elif attribute == "num_kv_heads":
                found.append((attribute, dict(found)["num_heads"]))
            else:
                found.append((attribute, "sys.maxsize"))
        for plan in self.plans:
            if plan.attribute not in BASE:
                found.append((plan.attribute, plan.attribute if plan.attribute in ready else self._reading(plan)))
        found += [
            (name, name if table.thetas else self._take_rotary(table))
            for name, table in self.tables.items()
            if table.theta is None
        ]
        use = self._use("initializer_range")
        if use is not None:
            found.append(("initializer_range", f'fields.number("initializer_range", {literal(use.default)})'))
        if self.auto_map:
            found.append(("auto_map", "fields.remote_code(AUTO_MAP)"))
        return [*found, ("token_ids", "fields.token_ids()")]

    def _derived(self) -> dict[str, Expression]:
        """Return the expressions of base attributes that are not fields."""
        found: dict[str, Expression] = {}
        for attribute, slot in _SLOTS.items():
            if self.plans.by_attribute(attribute) is None and slot in self.slots:
                found[attribute] = self._usual(_flat(self.slots[slot]), slot)
        if "head_dim" not in found and self.plans.by_attribute("head_dim") is None:
            parts = [self.slots.get(f"layer.attention.{part}") for part in ("nope_dim", "rope_dim")]
            there = tuple(_flat(part) for part in parts if part is not None)
            found["head_dim"] = Sum(there) if there else _flat(self.slots["hidden_size"])  # no layer attends
        if self.plans.by_attribute("max_position_embeddings") is None and "positions.num_positions" in self.slots:
            found["max_position_embeddings"] = self.slots["positions.num_positions"]
        return found

    def _usual(self, node: Expression, slot: str) -> Expression:
        """Return what all layers have in common where a list says each one's, which is what fills the list."""
        if not isinstance(node, Entry):
            return node
        rule = next((use.default_rule for use in self.uses if use.name == node.field), None)
        if rule is None:
            raise ReportError(f"each layer has its own {slot}, and nothing says a common one", where=slot)
        return rule

    def _reading(self, plan: FieldPlan) -> str:
        owner = "fields" if "." not in plan.name else section_variable(plan.name)
        layers = "None" if isinstance(self.slots["num_layers"], Length) else "num_layers"
        return reading(plan, self._local.expression, layers, owner)

    def _take_rotary(self, table: RotaryField) -> str:
        length = "max_position_embeddings" if self.plans.by_attribute("max_position_embeddings") else ""
        arguments = ["fields", *([length] if length else [])]
        if table.layer_type is not None:
            arguments.append(f"layer_type={literal(table.layer_type)}")
        arguments.append(f"types={tuple_literal(table.types)}")
        parts = {_PARTIAL} if table.layer_type is None else {_PARTIAL, part_of(table)}
        if any(name in parts for node in self.slots.values() for name in fields_of(node)):
            arguments.append("partial=True")
        extra = [name.removeprefix(_ROTARY_PART) for name in self._rotary_numbers()]
        if extra:
            arguments.append(f"extra={tuple_literal(extra)}")
        unused = [name for name in table.extra if name not in extra]
        if unused:
            arguments.append(f"unused={tuple_literal(unused)}")
        use = self._use("rope_parameters")
        default = use.default if use is not None else None
        if isinstance(default, dict) and table.layer_type is not None:
            default = default.get(table.layer_type)
        if isinstance(default, dict):
            arguments.append(f"default={literal(default)}")
        original = self._use("original_max_position_embeddings")
        if original is not None:
            arguments.append(f"original_length={literal(original.default)}")
        rotated = self._rotated()
        if rotated is not None and table.layer_type is None:
            arguments.append(f"rotated=({literal(rotated[0])}, {rotated[1].attribute})")
        if use is not None and use.unread and table.layer_type is None:
            arguments.append(f"unread={tuple_literal(use.unread)}")
        return f"take_rotary({', '.join(arguments)})"

    def _rotary_numbers(self) -> list[str]:
        """Return numbers in rope_parameters, besides those of rotary types, that slots read."""
        read = {name for node in self.slots.values() for name in fields_of(node)}
        parts = {_PARTIAL, *(part_of(table) for table in self.tables.values())}
        return sorted(name for name in read - parts if name.startswith(_ROTARY_PART))

    def _rotated(self) -> tuple[str, FieldPlan] | None:
        """Return the older field for the number of rotated dimensions and what it is a part of, where it is read."""
        use = self._use("rope_parameters")
        name, of = (use.rotated if use is not None else ()) or ("", "")
        plan = next((plan for plan in self.plans if plan.name == of), None)
        return (name, plan) if name and plan is not None else None

    def requirements(self) -> list[str]:
        """Return the calls that refuse unproven values."""
        counts = (plan.use.count for plan in self.plans if plan.use.count)
        lines = [f"fields.require({literal(field_name(name))}, (args.num_layers,))" for name in counts]
        for use in self.plans.fixed:
            values = [literal(value) for value in proven_values(use)]
            if use.default_rule is not None and not isinstance(use.default_rule, AllLayers):
                text = self._local.expression(use.default_rule)
                # A list over layers is what it is where it is null, for any number of layers.
                text = f"[{text} for layer in range(args.num_layers)]" if use.type == "list" else text
                values += [text] if text not in values else []
            missing = use.required or literal(use.default) not in values
            extra = f", default={literal(use.default)}" if missing and use.default is not None else ""
            allowed = f"({values[0]},)" if len(values) == 1 else f"({', '.join(values)})"
            owner = "fields" if "." not in use.name else section_variable(use.name)
            lines.append(f"{owner}.require({literal(use.name.rpartition('.')[2])}, {allowed}{extra})")
        return lines

    def omissions(self) -> list[str]:
        """Return the calls that take older spellings: a text in place of an absent number, older words, letters."""
        found = [(plan.name, plan.use.placeholder) for plan in self.plans if plan.use.placeholder]
        owners = {name: "fields" if "." not in name else section_variable(name) for name, _ in found}
        lines = [f"{owners[name]}.omit({literal(name.rpartition('.')[2])}, {literal(text)})" for name, text in found]
        for use in (plan.use for plan in self.plans):
            if use.words:
                lines.append(f"fields.respell({literal(use.name)}, {literal(use.words)})")
            for spelling, letters in use.letters.items():
                lines.append(
                    f"fields.spelled({literal(use.name)}, {literal(field_name(spelling))}, {literal(letters)})"
                )
        return [*lines, *self._values_of_kinds()]

    def _values_of_kinds(self) -> list[str]:
        """Return the calls that take values of single layers for the fields that say them, one for each kind."""
        kinds: dict[tuple[str, str], list[FieldUse]] = {}
        for use in self.uses:
            if use.layered and use.status == "used":
                kinds.setdefault((use.layered["kinds"], use.layered["kind"]), []).append(use)
        lines = []
        for (kinds_field, kind), uses in sorted(kinds.items()):
            values = {use.name: use.layered["attribute"] for use in uses}
            optional = {use.name: use.layered["flag"] for use in uses if use.default is None}
            more = f", optional={literal(optional)}" if optional else ""
            lines.append(f"fields.values_of_kind({literal(kinds_field)}, {literal(kind)}, {literal(values)}{more})")
        return lines

    def sections(self) -> list[str]:
        """Return objects inside the config that fields are taken from."""
        names = [use.name for use in (*(plan.use for plan in self.plans), *self.plans.fixed, *self.plans.ignored)]
        return sorted({name.partition(".")[0] for name in names if "." in name})

    def ignored(self) -> dict[str, str]:
        """Return fields of this family that change nothing, with the reason, short enough for a line of a table."""
        found = {}
        for use in self.plans.ignored:
            text = one_line(use.reason or "does not change a logit").replace('"', "'")
            limit = _MAX_ENTRY - len(use.name)
            found[use.name] = text if len(text) <= limit else f"{text[: max(limit - 4, 0)].rstrip()} ..."
        return found

    # ------------------------------------------------------------------------------------------------ writing

    def exported(self) -> list[tuple[str, str]]:
        """Map each config field to the expression that writes it, sorted; objects are written as dictionaries."""
        found = {plan.name: plan.written() for plan in self.plans}
        for use in self.plans.fixed:
            allowed = proven_values(use)
            if allowed and (use.required or not is_among(use.default, allowed)):
                found[use.name] = literal(allowed[0])
        if self._use("initializer_range") is not None:
            found["initializer_range"] = "self.initializer_range"
        found |= {
            "architectures": f"[{literal(class_name(self.architecture))}]",
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
        tables = {name: table for name, table in self.tables.items() if table.theta is None}
        if not tables:
            return ""
        name, first = next(iter(tables.items()))
        if first.layer_type is None:
            return f"**self.{name}.to_hf_config()"
        entries = [f"{literal(table.layer_type)}: self.{name}" for name, table in tables.items()]
        use = self._use("rope_parameters")
        said = {} if use is None or not isinstance(use.default, dict) else use.default
        entries += [f"{literal(kind)}: None" for kind, entry in said.items() if entry is None]  # said not to turn
        return f"**rotary_to_hf({{{', '.join(entries)}}})"

    def _use(self, name: str) -> FieldUse | None:
        """Return a field that has a default."""
        return next((use for use in self.uses if use.name == name and use.default is not None), None)


def proven_values(use: FieldUse) -> list[Any]:
    """Return what a fixed field may be: the values that were proven, or what its absence means."""
    values = list(use.allowed)
    if not values or (use.nullable and use.default is None):
        values += [use.default] if use.default not in values else []
    return values


def is_among(value: Any, values: Sequence[Any]) -> bool:
    """Return whether a value is one of several; true is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)


def section_variable(name: str) -> str:
    """Return the variable for the object that a dotted field is in."""
    return f"{attribute_name(name.partition('.')[0])}_fields"


def _flat(node: Expression) -> Expression:
    """Return the value for most layers of something that may depend on the layer."""
    while isinstance(node, PerLayer):
        node = node.otherwise
    return node


def rotary_tables(node: Expression | None) -> dict[str, RotaryField]:
    """Return each distinct table once, in the order of appearance, by the attribute that keeps it: "sliding_rotary"
    for layers of type "sliding_attention" where there are several."""
    parts = walk(node) if node is not None else ()
    distinct = {repr(part): part for part in parts if isinstance(part, RotaryField)}
    found: dict[str, RotaryField] = {}
    for table in distinct.values():
        kind = field_name(table.layer_type).removesuffix("_attention") if table.layer_type else ""
        name = f"{kind}_rotary" if kind and len(distinct) > 1 else "rotary"
        found[name if name not in found else f"rotary_{len(found) + 1}"] = table
    return found
