"""Which attributes the arguments of a family have, and how each config field becomes one: read, checked, written back.

A field that a slot is becomes an attribute of a usual name (`num_heads`), others keep their own; a field that is filled
from others when it is null is filled when it is read, so that nothing behind the arguments ever sees the null.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS
from areal.porting.bind.expressions import conditions_of, fields_of, walk
from areal.porting.family import (
    AllLayers,
    AtLeast,
    AtMost,
    Constant,
    Cycled,
    Entry,
    Field,
    FieldEquals,
    FromEnd,
    LayerInField,
    Listed,
    Multiple,
    Remainder,
    RotaryField,
    WhenEqual,
    WhenNull,
)
from areal.porting.records import ReportError
from areal.porting.write.names import attribute_name, field_name, literal, tuple_literal
from areal.porting.write.words import FIELD_DOCUMENTATION
from areal.porting.write.writer import FieldValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from areal.porting.family import Condition, Expression, FieldUse


CANONICAL: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_layers",
    "layer.attention.num_heads": "num_heads",
    "layer.attention.num_kv_heads": "num_kv_heads",
    "layer.attention.head_dim": "head_dim",
    "tied": "tie_word_embeddings",
    "positions.num_positions": "max_position_embeddings",
    "layer.feed_forward.intermediate_size": "intermediate_size",
    "final_norm.eps": "norm_eps",
    "layer.norms.input_layernorm.eps": "norm_eps",
    "layer.norms.post_attention_layernorm.eps": "norm_eps",
}
"""Slot to the attribute of the field that it is."""
LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
"""Usual names of the longest sequence, the likeliest first; it bounds engines and scales some rotations."""
SHARED: Final = frozenset({"initializer_range", "model_type", "rotary", "token_ids"})
"""Attributes that every family has beside its own fields."""
ROTARY_FIELDS: Final = frozenset({"rope_parameters", "rope_scaling", "rope_theta"})
"""Fields that `take_rotary` reads, in families whose tables are those of rope_parameters."""
_HARMLESS: Final = frozenset({*HARMLESS_FIELDS, *TOKEN_FIELDS})
"""Fields that change nothing in any family."""


@dataclass(frozen=True)
class FieldPlan:
    """One config field that becomes an attribute."""

    name: str
    """In the config; a dot reaches into an object."""
    attribute: str
    type: str
    nullable: bool
    """Whether the attribute can be None."""
    use: FieldUse
    per_layer: bool = False
    allowed: tuple[Any, ...] = ()
    minimum: int = 1
    numbers: bool = False
    """Whether it is a list with a number for each layer."""
    sizes: bool = False
    """Whether these numbers are whole, and at least 1."""
    bounds: bool = False
    """Whether it is a list of two numbers, a range, that is read as a whole."""
    pattern: bool = False
    """Whether it is a list of kinds that layers take in turn."""
    factors: int = 0
    """How many numbers a list has that is read as a whole, but no range; 0 for others."""

    @property
    def annotation(self) -> str:
        """Of the attribute."""
        if self.numbers:
            return "tuple[float, ...]"
        if self.sizes:
            return "tuple[int, ...]"
        if self.bounds:
            return "tuple[float, float]"
        if self.factors:
            return "tuple[float, ...]"
        if self.type == "list":
            items = {type(value).__name__ for value in self.allowed} or {"int"}
            return f"tuple[{' | '.join(sorted(items))}, ...]"
        return f"{self.type} | None" if self.nullable else self.type

    @property
    def documentation(self) -> str:
        """One line for people."""
        return FIELD_DOCUMENTATION.get(self.attribute, f"Field `{self.name}` of the config.")

    def value(self, prefix: str) -> FieldValue:
        """How expressions write it: an attribute of `prefix`, or a local variable."""
        text = f"{prefix}.{self.attribute}" if prefix else self.attribute
        return FieldValue(text, self.type, self.nullable)

    def written(self) -> str:
        """Return the expression that writes it back."""
        return f"list(self.{self.attribute})" if self.type == "list" else f"self.{self.attribute}"


@dataclass(frozen=True)
class FieldPlans:
    """What becomes of all fields of a config class."""

    kept: tuple[FieldPlan, ...]
    fixed: tuple[FieldUse, ...]
    ignored: tuple[FieldUse, ...]
    """Without those that are harmless or refused for all families."""
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[FieldPlan]:
        return iter(self.kept)

    def by_attribute(self, attribute: str) -> FieldPlan | None:
        """Return the field behind an attribute; None when there is none."""
        return next((plan for plan in self.kept if plan.attribute == attribute), None)

    def values(self, prefix: str) -> dict[str, FieldValue]:
        """Config field to how expressions write it."""
        return {plan.name: plan.value(prefix) for plan in self.kept}


def plan_fields(slots: Mapping[str, Expression], uses: Sequence[FieldUse]) -> FieldPlans:
    """Return the plan for the fields of a report."""
    canonical = _canonical_attributes(slots, uses)
    taken_elsewhere = ROTARY_FIELDS if reads_rotary_parameters(slots) else frozenset({"rope_parameters"})
    taken = {*SHARED, *canonical.values()}
    ranges = {node.name for slot, node in slots.items() if slot.endswith(".step_limits") and isinstance(node, Field)}
    kept: list[FieldPlan] = []
    parts = list(_parts(slots, uses))
    for use in uses:
        name = use.name
        is_length = canonical.get(name) == "max_position_embeddings" and use.status == "ignored"
        is_kept = use.status == "used" or is_length
        if not is_kept or name.partition(".")[0] in taken_elsewhere or name in SHARED:
            continue
        attribute = canonical.get(name) or attribute_name(name)
        while name not in canonical and attribute in taken:
            attribute += "_"
        taken.add(attribute)
        kept.append(_field_plan(use, attribute, parts, is_range=name in ranges))
    known = {plan.name for plan in kept}
    # Where its class computes initializer_range, it is ignored like others that only training reads.
    ignored = tuple(
        use
        for use in uses
        if use.status == "ignored"
        and use.name not in known
        and use.name not in _HARMLESS
        and (use.name != "initializer_range" or use.default is None)
    )
    fixed = tuple(
        use for use in uses if use.status == "fixed" and use.name not in known and use.name not in MUST_BE_OFF
    )
    aliases = {
        field_name(alias): use.name
        for use in uses
        if use.name in known
        for alias in use.aliases
        if alias not in {other.name for other in uses}
    }
    return FieldPlans(tuple(kept), fixed, ignored, aliases)


def reads_rotary_parameters(slots: Mapping[str, Expression]) -> bool:
    """Return whether some table is that of rope_parameters, which `take_rotary` reads with its older spellings: then
    fields of these names are its own. In other families a field called rope_theta is like any other."""
    node = slots.get("layer.rotary")
    parts = walk(node) if node is not None else ()
    return any(isinstance(part, RotaryField) and part.theta is None for part in parts)


def _parts(slots: Mapping[str, Expression], uses: Sequence[FieldUse]) -> Iterator[Expression | Condition]:
    """Yield every expression and condition in the slots and in the rules of defaults."""
    for root in (*slots.values(), *(use.default_rule for use in uses if use.default_rule is not None)):
        for part in walk(root):
            yield part
            yield from conditions_of(part)


def _canonical_attributes(slots: Mapping[str, Expression], uses: Sequence[FieldUse]) -> dict[str, str]:
    """Map each config field to its usual attribute: to one only, the first that it is."""
    found: dict[str, str] = {}
    for slot, attribute in CANONICAL.items():
        node = slots.get(slot)
        name = node.name if isinstance(node, Field) else node.field if isinstance(node, WhenNull) else ""
        if name and name not in found and attribute not in found.values():
            found[name] = attribute
    names = {use.name for use in uses}
    if "max_position_embeddings" not in found.values():
        length = next((name for name in LENGTHS if name in names and name not in found), None)
        if length is not None:
            found[length] = "max_position_embeddings"
    return found


def _field_plan(use: FieldUse, attribute: str, parts: Sequence[Expression | Condition], *, is_range: bool) -> FieldPlan:
    """parts: of all slots and rules; is_range: whether the field is a pair of bounds."""
    name, rule, kind = use.name, use.default_rule, str(use.type)
    if kind == "any":
        values = (value for value in (use.example, use.default, *use.allowed) if value is not None)
        kind = next((type(value).__name__ for value in values), "any")
    if kind not in ("int", "float", "bool", "str", "list"):
        raise ReportError(f"the analysis reports the config field {name!r} of type {kind!r} as one that is used")
    listed = [part for part in parts if isinstance(part, Listed) and part.field == name]
    allowed = use.allowed
    pattern = any(isinstance(part, Cycled) and part.field == name for part in parts)
    whole = isinstance(rule, AllLayers) or _whole_list(rule)
    sizes = any(isinstance(part, Entry) and part.field == name for part in parts)
    per_layer = kind == "list" and not sizes and not pattern and bool(listed or (rule is not None and not whole))
    if per_layer and not allowed:
        # Entries that conditions, examples and the default mention.
        mentioned = [value for part in listed for value in part.values]
        mentioned += [*(use.example or ()), *(use.default or ())]
        mentioned += [part.value for part in walk(rule) if isinstance(part, Constant)] if rule is not None else []
        allowed = tuple(sorted(dict.fromkeys(mentioned), key=str))
    if kind == "bool" and use.nullable and rule is None:
        use = _with_meaning_of_null(use, parts)
    filled = use.default_rule is not None
    numbers = [value for value in (use.default, use.example, use.minimum) if type(value) is int]
    # 0 makes sense for a number of layers to leave out; else what was proven, or 1.
    is_threshold = any(
        (isinstance(part, AtLeast | AtMost | FromEnd) and part.field == name)
        or (isinstance(part, Remainder) and part.to == name)
        for part in parts
    )
    is_whole = kind == "list" and any(part == Field(name) for part in parts)
    return FieldPlan(
        name=name,
        attribute=attribute,
        type=kind,
        nullable=not filled and kind != "list" and (use.nullable or (use.default is None and not use.required)),
        use=use,
        per_layer=per_layer,
        allowed=allowed,
        minimum=min([*numbers, 0 if is_threshold else 1, 1]),
        bounds=is_whole and is_range,
        factors=len(use.example) if is_whole and not is_range and is_factors(use.example) else 0,
        pattern=pattern,
        numbers=any(isinstance(part, RotaryField) and part.thetas == name for part in parts),
        sizes=sizes,
    )


def is_factors(value: Any) -> bool:
    """Return whether a value is a list of finite numbers, not all whole."""
    numbers = isinstance(value, list | tuple) and all(type(each) in (int, float) for each in value)
    return numbers and any(isinstance(each, float) for each in value) and all(map(math.isfinite, value))


def _with_meaning_of_null(use: FieldUse, parts: Sequence[Expression | Condition]) -> FieldUse:
    """Return the use of a flag that may be null. Where every expression asks whether it is true (or false), a null
    answers no, as the other value does; where one asks whether it is null, the null stays; else nothing says what it
    would mean."""
    asked = {part.value for part in parts if isinstance(part, WhenEqual | FieldEquals) and part.field == use.name}
    if None in asked:
        return use
    is_read = any(
        (isinstance(part, Field) and part.name == use.name)
        or (isinstance(part, WhenNull | Listed | AtLeast | AtMost | FromEnd | LayerInField) and part.field == use.name)
        for part in parts
    )
    if len(asked) == 1 and not is_read:
        return replace(use, default_rule=Constant(not asked.pop()))
    return replace(use, nullable=False)


def _whole_list(rule: Expression | None) -> list[Any]:
    """Return the list that a field is filled with where it is not one entry per layer."""
    return list(rule.value) if isinstance(rule, Constant) and isinstance(rule.value, list | tuple) else []


# ------------------------------------------------------------------------------------------------------------ reading


def reading(plan: FieldPlan, write: Callable[[Expression], str], num_layers: str, owner: str) -> str:
    """Return the expression that takes a field. write: writes an expression over local variables; num_layers: the text
    of the number of layers; owner: the `ConfigFields` it is taken from."""
    use, name, rule, default = plan.use, literal(plan.name.rpartition(".")[2]), plan.use.default_rule, plan.use.default
    if plan.type == "list":
        return _list_reading(plan, name, owner, write, num_layers)
    arguments = [name]
    if default is not None and not use.required:
        arguments.append(literal(float(default) if plan.type == "float" else default))
    if rule is not None:
        arguments.append(f"null={write(rule)}")
    reader = {"int": "integer", "float": "number", "bool": "flag", "str": "text"}[plan.type]
    if plan.type == "int" and plan.minimum != 1:
        arguments.append(f"minimum={plan.minimum}")
    if plan.type == "float" and any(isinstance(value, int | float) and value <= 0 for value in (default, use.example)):
        arguments.append('above=float("-inf")')
    if plan.type != "bool":
        allowed = [value for value in plan.allowed if value is not None]
        arguments += [f"allowed={tuple_literal(allowed)}"] if allowed else []
    if plan.type in ("int", "float") and use.refused:
        arguments.append(f"refused={tuple_literal(use.refused)}")
    return f"{owner}.{'optional_' if plan.nullable else ''}{reader}({', '.join(arguments)})"


def _list_reading(plan: FieldPlan, name: str, owner: str, write: Callable[[Expression], str], num_layers: str) -> str:
    rule, default = plan.use.default_rule, plan.use.default
    if plan.bounds:
        absent = "" if default is None or plan.use.required else f", {tuple_literal(default)}"
        return f"{owner}.bounds({name}{absent})"
    if plan.factors:
        default = _whole_list(rule) or default
        absent = "" if default is None or plan.use.required else f", {tuple_literal(default)}"
        return f"{owner}.factors({name}, {plan.factors}{absent})"
    if plan.pattern:
        absent = "" if default is None or plan.use.required else f", {tuple_literal(default)}"
        return f"{owner}.per_layer({name}, None{absent}, allowed={tuple_literal(plan.allowed)})"
    if plan.numbers:
        filled = "" if rule is None else f", null={write(rule)}"
        return f"{owner}.numbers_per_layer({name}, {num_layers}{filled})"
    if plan.sizes:
        filled = "" if rule is None else f", [{write(rule)} for layer in range({num_layers})]"
        return f"{owner}.sizes_per_layer({name}, {num_layers}{filled})"
    if not plan.per_layer:
        default = _whole_list(rule) or default
        absent = "" if not default else f", {tuple_literal(default)}"
        absent = f", {write(rule)}" if isinstance(rule, AllLayers) else absent
        # No layer is in a list that is null, which is what the config class means by it too.
        is_needed = plan.use.required and not plan.use.nullable
        return f"{owner}.integers({name}{', None' if is_needed else absent})"
    arguments = [name, num_layers]
    if _whole_list(rule):
        arguments.append(tuple_literal(_whole_list(rule)))
    elif rule is not None:
        filled = f"[{write(rule)} for layer in range({num_layers})]"
        conditions = [condition for part in walk(rule) for condition in conditions_of(part)]
        divides = any(isinstance(each, Multiple) and isinstance(each.of, str) for each in conditions)
        # A number that divides may be null or zero beside a list that makes it needless.
        arguments.append(f"None if {owner}.has({name}) else {filled}" if divides else filled)
    return f"{owner}.per_layer({', '.join(arguments)}, allowed={tuple_literal(plan.allowed)})"


def dependencies(plan: FieldPlan) -> list[str]:
    """Return the fields that have to be known before this one is read."""
    rule = plan.use.default_rule
    return [] if rule is None else [name for name in fields_of(rule) if name != plan.name]
