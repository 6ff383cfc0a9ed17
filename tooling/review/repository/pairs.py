"""Pairs the nodes of two versions of a file that correspond to each other and differ.

    found = pair_modules(before, after)
    for old, new in found.pairs: ...        # outermost first: the statement, then the call in it, then its argument

Statements are aligned by their text, what is left over by name or by likeness. Where a statement was wrapped in another
one, or lost its wrapper, `unwrapped` has the old wrapper and the first statement of its body:

    with self.lock:                          ->  self.count += 1
        self.count += 1
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.module import Module

ALIKE: Final = 0.5
"""Likeness from which two statements of one type are taken for two versions of one."""
MOST_STATEMENTS: Final = 30
"""Statements of a block that are compared with each other; in a larger one only names are."""
_BLOCKS: Final = frozenset({"body", "orelse", "finalbody", "handlers"})


@dataclass
class PairedNodes:
    """What differs between two versions."""

    pairs: list[tuple[ast.AST, ast.AST]] = field(default_factory=list)
    unwrapped: list[tuple[ast.stmt, ast.stmt]] = field(default_factory=list)
    """A statement with a body, and the statement that was the first of that body."""


def pair_modules(before: Module, after: Module) -> PairedNodes:
    """Pair two versions of a file. Both trees keep texts of their nodes, and nothing else changes."""
    found = PairedNodes()
    _Pairing(found).block(before.tree.body, after.tree.body)
    return found


class _Pairing:
    def __init__(self, found: PairedNodes) -> None:
        self.found = found

    def block(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> None:
        """Pair the statements of a block."""
        matcher = SequenceMatcher(None, [dumped(each) for each in old], [dumped(each) for each in new], autojunk=False)
        for kind, i, j, k, n in matcher.get_opcodes():
            if kind == "replace":
                self._replaced(list(old[i:j]), list(new[k:n]))

    def _replaced(self, old: list[ast.stmt], new: list[ast.stmt]) -> None:
        names = {each.name: each for each in new if isinstance(each, Function | ast.ClassDef)}
        for each in [each for each in old if isinstance(each, Function | ast.ClassDef) and each.name in names]:
            partner = names[each.name]
            if partner in new:
                self.node(each, partner)
                old.remove(each)
                new.remove(partner)
        if len(old) * len(new) > MOST_STATEMENTS**2:
            return
        texts = {each: ast.unparse(each) for each in (*old, *new)}
        ranked = sorted(
            ((_likeness(one, other, texts), -i, one, other) for i, one in enumerate(old) for other in new),
            key=lambda row: row[:2],
            reverse=True,
        )
        for likeness, _, one, other in ranked:
            if likeness >= ALIKE and one in old and other in new:
                self.node(one, other)
                old.remove(one)
                new.remove(other)
        for one in old:
            body = getattr(one, "body", None)
            kept = next((each for each in new if body and dumped(each) == dumped(body[0])), None)
            if kept is not None:
                self.found.unwrapped.append((one, kept))
                self.block(body or [], new)

    def node(self, old: ast.AST, new: ast.AST) -> None:
        """Record a pair that differs, and go on inside where both are of one type."""
        if dumped(old) == dumped(new):
            return
        self.found.pairs.append((old, new))
        if type(old) is not type(new):
            return
        for name in old._fields:
            one, other = getattr(old, name, None), getattr(new, name, None)
            if isinstance(one, ast.AST) and isinstance(other, ast.AST):
                self.node(one, other)
            elif name == "keywords" and isinstance(one, list) and isinstance(other, list):
                given = {each.arg: each.value for each in other}
                for each in one:
                    if each.arg in given:
                        self.node(each.value, given[each.arg])
            elif name in _BLOCKS and isinstance(one, list) and isinstance(other, list):
                self.block(one, other)
            elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
                for left, right in zip(one, other, strict=True):
                    if isinstance(left, ast.AST) and isinstance(right, ast.AST):
                        self.node(left, right)


def dumped(node: ast.AST) -> str:
    """Return a text that is equal for equal trees; kept by the node, since blocks are compared again and again."""
    found: str | None = getattr(node, "dumped", None)
    if found is None:
        found = ast.dump(node)
        node.dumped = found  # type: ignore[attr-defined]  # nodes of ast take any attribute
    return found


def _likeness(one: ast.stmt, other: ast.stmt, texts: dict[ast.stmt, str]) -> float:
    """Return a number between 0 and 1. A wrapper of another type with the same body is the same place."""
    body, kept = getattr(one, "body", None), getattr(other, "body", None)
    if body and kept and [dumped(each) for each in body] == [dumped(each) for each in kept]:
        return 1.0
    # `x = x.clamp(0)` that became `x.clamp(0)`, `raise E(...)` that became `E(...)`
    values = {dumped(each) for each in (getattr(one, "value", None), getattr(one, "exc", None)) if each is not None}
    if isinstance(other, ast.Expr) and dumped(other.value) in values:
        return 0.9
    if type(one) is not type(other):
        return 0.0
    # `await asyncio.to_thread(write)` that became `write()`
    value = getattr(other, "value", None)
    if isinstance(value, ast.Call) and dumped(value.func) in dumped(one):
        return 0.8
    return SequenceMatcher(None, texts[one][:400], texts[other][:400], autojunk=False).ratio()
