"""Nulls that no config class fills but the modeling code does: `head_dim or hidden_size // num_attention_heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.porting.bind.expressions import evaluate, look_up, walk
from areal.porting.family import Constant, PerLayer, WhenEqual, WhenNull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.porting.family import Expression


def branches(expressions: Mapping[str, Expression]) -> list[tuple[str, Any]]:
    """Fields and the values of them on which an expression takes another way: few random configs would have them."""
    found: list[tuple[str, Any]] = []
    for part in (part for each in expressions.values() for part in walk(each)):
        if isinstance(part, WhenNull):
            branch = (part.field, None)
        elif isinstance(part, WhenEqual) and not isinstance(part.value, bool):
            branch = (part.field, part.value)
        else:
            continue
        if branch not in found:
            found.append(branch)
    return found


def filling_rules(expressions: Mapping[str, Expression], known: Mapping[str, Expression]) -> dict[str, Expression]:
    """Field to what stands in for its null, where all slots that are the field agree on it. known: rules so far."""
    found: dict[str, set[Expression]] = {}
    for each in expressions.values():
        if isinstance(each, WhenNull) and each.field not in known and not _is_open(each.otherwise):
            found.setdefault(each.field, set()).add(each.otherwise)
    return {name: next(iter(rules)) for name, rules in sorted(found.items()) if len(rules) == 1}


def _is_open(expression: Expression) -> bool:
    """Whether it means nothing, or something else in each layer."""
    return any(isinstance(part, PerLayer) or part == Constant(None) for part in walk(expression))


def filled(config: Mapping[str, Any], name: str, rule: Expression) -> Mapping[str, Any]:
    """The completed config with the rule's value in place of a null."""
    return config if look_up(config, name) is not None else {**config, name: evaluate(rule, config)}
