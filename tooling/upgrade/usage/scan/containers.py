"""What is put into containers one by one, to be taken out somewhere else.

    self.pool[name] = Engine()          in one method
    self.pool[name].stop()              in another: likely an Engine's
    rows.append(Engine())
    return rows                         a list of these

What goes into a list `x` is kept under "x[]", into a mapping under "x{}", into the lists of a mapping under "x{}[]".
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeGuard

from tooling.upgrade.usage.facts import NONE, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.upgrade.usage.facts import ArgumentRow
    from tooling.upgrade.usage.scan.core import WalkState

CONTENTS = (("[]", "iter"), ("{}", "dict"))
"""How what a container holds is kept, and how it comes out again."""
SLICE = ":"
"""The key of a part of a list, which is a list."""
_ADDING = frozenset({"add", "append", "appendleft", "insert", "put", "put_nowait"})


def is_of_self(node: ast.expr, walk: WalkState) -> TypeGuard[ast.Attribute]:
    """Whether it is `self.x`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and bool(walk.frame.owner)
        and node.value.id == walk.frame.receiver
    )


def put_by_call(walk: WalkState, function: ast.Attribute, given: Sequence[ArgumentRow]) -> None:
    """`rows.append(x)`, `rows.extend(more)`, `pool.setdefault(name, x)`."""
    value = given[-1][4] if given else UNKNOWN
    if function.attr in _ADDING:
        put(walk, function.value, "[]", value)
    elif function.attr == "extend":
        put(walk, function.value, "[]", walk.iterated(value))
    elif function.attr == "setdefault" and len(given) == 2 and given[0][3] is None:
        put(walk, function.value, "{}", value)
    elif function.attr == "update" and walk.facts.nodes[value][0] == "dict":
        put(walk, function.value, "{}", int(walk.facts.nodes[value][1]))


def put(walk: WalkState, container: ast.expr, mark: str, value: int) -> None:
    """Keep what is put into a container that a name or an attribute of `self` holds, or that is in one of these."""
    while True:  # `groups[key].append(x)`, `groups.setdefault(key, []).append(x)`
        match container:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner, attr="get" | "setdefault")):
                container, mark = inner, f"{{}}{mark}"
            case _:
                break
    if value <= NONE or not walk.hot[value]:
        return
    held = walk.node("documented", value, f"it was put into {walk.text(container)}")
    if isinstance(container, ast.Name):
        name, local = f"{container.id}{mark}", walk.is_local(container.id)
        if local or walk.frame.kind == "module":
            frame = walk.holding(container.id)
            frame.values[name] = walk.either([frame.values.get(name, NONE), held])
            walk.filled.add(container.id)
        if not local:
            walk.facts.bindings.setdefault(name, []).append((held, walk.context(), None))
    elif is_of_self(container, walk):
        walk.facts.classes[walk.frame.owner].attributes.setdefault(f"{container.attr}{mark}", []).append(held)
        key = f"{walk.frame.receiver}.{container.attr}"
        if walk.frame.values.get(key) == UNKNOWN:  # what it began as: an empty container
            del walk.frame.values[key]


def filled(walk: WalkState, name: str, value: int) -> int:
    """A name's value, with what was put into it if it is a container of this file's own making."""
    if value > NONE and walk.facts.nodes[value][0] not in ("dict", "keys", "list"):
        return value
    made = _made(walk, walk.holding(name).values, name, 2)
    return walk.either([value, *made] if value > NONE else made) if made else value


def _made(walk: WalkState, values: Mapping[str, int], name: str, depth: int) -> list[int]:
    found = []
    for mark, how in CONTENTS if depth else ():
        inside = [values.get(f"{name}{mark}", NONE), *_made(walk, values, f"{name}{mark}", depth - 1)]
        found.append(walk.step("list" if how == "iter" else how, walk.either(inside)))
    return [each for each in found if each > NONE]
