"""The tables of rotations that a report's expression for `layer.rotary` speaks of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.new.generators.model_names import field_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
