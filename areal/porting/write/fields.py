"""Which attributes the arguments of a family have, and how each config field becomes one: read, checked, written back.

A field that a slot is becomes an attribute of a usual name (`num_heads`), others keep their own; a field that is filled
from others when it is null is filled when it is read, so that nothing behind the arguments ever sees the null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS
from areal.porting.write.names import (
    FIELD_DOCUMENTATION,
    attribute_name,
    field_name,
    literal,
    malformed,
    tuple_literal,
)
from areal.porting.write.writer import FieldValue, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
"""Fields that `take_rotary` reads."""
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
    use: Mapping[str, Any]
    per_layer: bool = False
    allowed: tuple[Any, ...] = ()
    minimum: int = 1
    numbers: bool = False
    """Whether it is a list with a number for each layer."""

    @property
    def annotation(self) -> str:
        """Of the attribute."""
        if self.numbers:
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
    fixed: tuple[Mapping[str, Any], ...]
    ignored: tuple[Mapping[str, Any], ...]
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


def plan_fields(report: Mapping[str, Any]) -> FieldPlans:
    """Return the plan for the fields of a report."""
    uses = [{**use, "name": field_name(use["name"])} for use in report["fields"]]
    slots: Mapping[str, Any] = report["slots"]
    canonical = _canonical_attributes(slots, uses)
    taken = {*SHARED, *canonical.values()}
    kept: list[FieldPlan] = []
    for use in uses:
        name = use["name"]
        if not _is_kept(use, canonical) or (name.partition(".")[0] in ROTARY_FIELDS) or name in SHARED:
            continue
        attribute = canonical.get(name) or _free(attribute_name(name), taken)
        taken.add(attribute)
        kept.append(_field_plan(use, attribute, report))
    known = {plan.name for plan in kept}
    ignored = tuple(
        use for use in uses if use["status"] == "ignored" and use["name"] not in known and not _is_shared(use)
    )
    fixed = tuple(
        use for use in uses if use["status"] == "fixed" and use["name"] not in known and use["name"] not in MUST_BE_OFF
    )
    aliases = {
        field_name(alias): use["name"]
        for use in uses
        if use["name"] in known
        for alias in use.get("aliases", ())
        if alias not in {other["name"] for other in uses}
    }
    return FieldPlans(tuple(kept), fixed, ignored, aliases)


def _is_shared(use: Mapping[str, Any]) -> bool:
    """Whether the shared tables already say that this field changes nothing, whatever it is."""
    # Where its class computes it there is no number to take: it is then ignored like others that only training reads.
    taken = use["name"] == "initializer_range" and use.get("default") is not None
    return taken or use["name"] in _HARMLESS


def _canonical_attributes(slots: Mapping[str, Any], uses: list[dict[str, Any]]) -> dict[str, str]:
    """Config field to its usual attribute. A field is one attribute only, the first that it is."""
    found: dict[str, str] = {}
    for slot, attribute in CANONICAL.items():
        node = slots.get(slot)
        name = node and {"field": node.get("name"), "when_null": node.get("field")}.get(node["kind"])
        if name and name not in found and attribute not in found.values():
            found[name] = attribute
    names = {use["name"] for use in uses}
    if "max_position_embeddings" not in found.values():
        length = next((name for name in LENGTHS if name in names and name not in found), None)
        if length is not None:
            found[length] = "max_position_embeddings"
    return found


def _is_kept(use: Mapping[str, Any], canonical: Mapping[str, str]) -> bool:
    name = use["name"]
    return use["status"] == "used" or (canonical.get(name) == "max_position_embeddings" and use["status"] == "ignored")


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _field_plan(use: Mapping[str, Any], attribute: str, report: Mapping[str, Any]) -> FieldPlan:
    name, kind = use["name"], use.get("type", "any")
    if kind == "any":
        kind = _type_of(use)
    if kind not in ("int", "float", "bool", "str", "list"):
        raise malformed(f"the config field {name!r} of type {kind!r} as one that the computation uses")
    nodes = list(_nodes_in(*report["slots"].values(), *(other.get("default_rule") for other in report["fields"])))
    listed = [node for node in _conditions(report) if node.get("field") == name and node["kind"] == "listed"]
    allowed = tuple(use.get("allowed") or ())
    rule = use.get("default_rule")
    per_layer = kind == "list" and bool(listed or (rule and not _whole_list(rule)))
    if per_layer and not allowed:
        allowed = _list_values(use, listed)
    if kind == "bool" and use.get("nullable") and use.get("default_rule") is None:
        use = _with_meaning_of_null(use, [node for node in nodes if name in (node.get("field"), node.get("name"))])
    filled = use.get("default_rule") is not None
    nullable = bool(use.get("nullable")) and not filled and kind != "list"
    return FieldPlan(
        name=name,
        attribute=attribute,
        type=kind,
        nullable=nullable or (use.get("default") is None and not use.get("required") and not filled and kind != "list"),
        use=use,
        per_layer=per_layer,
        allowed=allowed,
        minimum=_minimum(use, report),
        numbers=any(node.get("thetas") == name for node in nodes),
    )


def _with_meaning_of_null(use: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the use of a flag that may be null. Where every expression asks whether it is true (or false), a null
    answers no, as the other value does; where one asks whether it is null, the null stays; else nothing says what it
    would mean."""
    asked = {node.get("value") for node in nodes if "value" in node}
    if None in asked:
        return use
    if len(asked) == 1 and all("value" in node for node in nodes):
        return {**use, "default_rule": {"kind": "constant", "value": not asked.pop()}}
    return {**use, "nullable": False}


def _type_of(use: Mapping[str, Any]) -> str:
    for value in (use.get("example"), use.get("default"), *(use.get("allowed") or ())):
        if value is not None:
            return type(value).__name__
    return "any"


def _list_values(use: Mapping[str, Any], listed: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Entries that a list per layer may have: those that conditions, examples and the default mention."""
    found: dict[Any, None] = {}
    for node in listed:
        found.update(dict.fromkeys(node["values"]))
    for values in (use.get("example"), use.get("default")):
        found.update(dict.fromkeys(values or ()))
    found.update(dict.fromkeys(_constants(use.get("default_rule"))))
    return tuple(sorted(found, key=str))


def _whole_list(rule: Mapping[str, Any] | None) -> list[Any]:
    """Return the list that a field is filled with where it is not one entry per layer."""
    value = rule["value"] if rule and rule["kind"] == "constant" else None
    return list(value) if isinstance(value, list | tuple) else []


def _constants(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if node.get("kind") == "constant":
            yield node["value"]
        for key in ("then", "otherwise"):
            yield from _constants(node.get(key))


def _conditions(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every condition in the slots and in the rules of defaults."""
    yield from _conditions_in([*report["slots"].values(), *(use.get("default_rule") for use in report["fields"])])


def _conditions_in(*roots: Any) -> Iterator[dict[str, Any]]:
    kinds = ("listed", "at_least", "at_most", "multiple", "member", "flag")
    return (node for node in _nodes_in(*roots) if node.get("kind") in kinds)


def _nodes_in(*roots: Any) -> Iterator[dict[str, Any]]:
    """Every expression and condition in some."""
    nodes = list(roots)
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            yield node
            nodes += [node.get(key) for key in ("condition", "conditions", "then", "otherwise", "terms", "base")]


def _minimum(use: Mapping[str, Any], report: Mapping[str, Any]) -> int:
    """Return the smallest number that makes sense: 0 for a number of layers to leave out, what was proven, else 1."""
    numbers = [value for value in (use.get("default"), use.get("example"), use.get("minimum")) if type(value) is int]
    thresholds = {node["field"] for node in _conditions(report) if node["kind"] in ("at_least", "at_most")}
    return min([*numbers, 0 if use["name"] in thresholds else 1, 1])


# ------------------------------------------------------------------------------------------------------------ reading


def reading(plan: FieldPlan, locals_: Mapping[str, Any], owner: str) -> str:
    """Return the expression that takes a field. locals_: `expression` writes a node over local variables, `num_layers`
    is the text of the number of layers; owner: the `ConfigFields` it is taken from."""
    use, name = plan.use, literal(plan.name.rpartition(".")[2])
    rule = use.get("default_rule")
    write = locals_["expression"]
    if plan.type == "list":
        return _list_reading(plan, name, owner, write, locals_["num_layers"])
    arguments = [name]
    default = use.get("default")
    if default is not None and not use.get("required"):
        arguments.append(literal(float(default) if plan.type == "float" else default))
    if rule is not None:
        arguments.append(f"null={write(rule)}")
    reader = {"int": "integer", "float": "number", "bool": "flag", "str": "text"}[plan.type]
    if plan.type == "int" and plan.minimum != 1:
        arguments.append(f"minimum={plan.minimum}")
    if plan.type == "float" and any(
        isinstance(value, int | float) and value <= 0 for value in (use.get("default"), use.get("example"))
    ):
        arguments.append('above=float("-inf")')
    if plan.type != "bool":
        allowed = [value for value in plan.allowed if value is not None]
        arguments += [f"allowed={tuple_literal(allowed)}"] if allowed else []
    if plan.type in ("int", "float") and use.get("refused"):
        arguments.append(f"refused={tuple_literal(use['refused'])}")
    return f"{owner}.{'optional_' if plan.nullable else ''}{reader}({', '.join(arguments)})"


def _list_reading(plan: FieldPlan, name: str, owner: str, write: Any, num_layers: str) -> str:
    rule, default = plan.use.get("default_rule"), plan.use.get("default")
    if plan.numbers:
        filled = "" if rule is None else f", null={write(rule)}"
        return f"{owner}.numbers_per_layer({name}, {num_layers}{filled})"
    if not plan.per_layer:
        default = _whole_list(rule) or default
        absent = "" if not default else f", {tuple_literal(default)}"
        # No layer is in a list that is null, which is what the config class means by it too.
        is_needed = plan.use.get("required") and not plan.use.get("nullable")
        return f"{owner}.integers({name}{', None' if is_needed else absent})"
    arguments = [name, num_layers]
    if rule is not None:
        filled = f"[{write(rule)} for layer in range({num_layers})]"
        divides = any(node["kind"] == "multiple" and isinstance(node["of"], str) for node in _conditions_in(rule))
        # A number that divides may be null or zero beside a list that makes it needless.
        arguments.append(f"None if {owner}.has({name}) else {filled}" if divides else filled)
    return f"{owner}.per_layer({', '.join(arguments)}, allowed={tuple_literal(plan.allowed)})"


def dependencies(plan: FieldPlan) -> list[str]:
    """Fields that have to be known before this one is read."""
    return [name for name in fields_of(plan.use.get("default_rule")) if name != plan.name]
