"""Steps through values that stand around others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.symbols import Container, Values
from tooling.upgrade.upstream.annotations import NONE, OPEN, container, union

if TYPE_CHECKING:
    from collections.abc import Sequence


def after(values: Values, parts: Sequence[Values]) -> Values:
    """What follows from values, part by part: as unsure as they are."""
    result = union(parts) if parts else OPEN
    return replace(result, open=result.open or values.open, inferred=result.inferred or values.inferred)


def awaited(values: Values) -> Values:
    """`await value`."""
    parts = [
        kind.items[0] if isinstance(kind, Container) and kind.name == "awaitable" else OPEN for kind in values.types
    ]
    return after(values, parts)


def iterated(values: Values, *, asynchronous: bool = False) -> Values:
    """An element of containers."""
    parts: list[Values] = []
    for kind in values.types:
        if not isinstance(kind, Container):
            parts.append(OPEN)
        elif kind.name == "tuple":
            parts.append(union(kind.items))
        elif kind.name in ("list", "dict", "iterator", "async-iterator"):
            parts.append(kind.items[0])
        else:
            parts.append(OPEN)
    return after(values, parts)


def item_of(kind: Container, key: str | int | None) -> Values:
    """`value[key]`."""
    if kind.name == "tuple":
        if isinstance(key, int) and -len(kind.items) <= key < len(kind.items):
            return kind.items[key]
        return OPEN if isinstance(key, int) else union(kind.items)
    if kind.name == "dict":
        return kind.items[1]
    return kind.items[0] if kind.name == "list" else OPEN


def container_method(values: Values, name: str) -> Values | None:
    """What a call of a method of a dict or list gives; None for other values and methods."""
    if len(values.types) != 1 or not isinstance(values.types[0], Container):
        return None
    kind = values.types[0]
    if kind.name == "dict":
        key, value = kind.items
        made = {
            "items": container("list", [container("tuple", [key, value])]),
            "values": container("list", [value]),
            "keys": container("list", [key]),
            "get": union([value, NONE]),
            "pop": value,
            "setdefault": value,
            "copy": values,
        }
        return made.get(name)
    if kind.name == "list":
        return {"pop": kind.items[0], "copy": values}.get(name)
    return None
