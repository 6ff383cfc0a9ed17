"""Which kinds of layers an architecture has: texts that its source compares with the entries of a list over layers.

A class whose default has layers of one kind may have others, and a tiny config has to show them all.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_STEPS = 4
"""From the field to the variable that is compared, counted in assignments."""


def layer_kinds(files: Sequence[Path], field: str) -> list[str]:
    """Texts in the source that entries of the list `field` are compared with, or that the class fills it with, in
    order of appearance. Candidates: other texts may stand next to the same variables."""
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    carriers = _carriers(nodes, field)
    found: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, ast.Compare) and carriers & set(_names(node)):
            found.update(dict.fromkeys(_texts(node)))
        elif isinstance(node, ast.Assign) and any(field in _names(target) for target in node.targets):
            found.update(dict.fromkeys(_texts(node.value)))
    for mapping in _mappings(nodes, carriers):
        found.update(dict.fromkeys(text for key in mapping.keys if key is not None for text in _texts(key)))
    return list(found)


def _carriers(nodes: Sequence[ast.AST], field: str) -> set[str]:
    """Names of variables and attributes that hold entries of the field: `kind` after `kind = config.kinds[layer]`."""
    carriers = {field}
    for _ in range(MOST_STEPS):
        before = len(carriers)
        for node in nodes:
            if isinstance(node, ast.Assign) and _is_entry(node.value, carriers):
                carriers.update(name for target in node.targets for name in _names(target) if name != "self")
        if len(carriers) == before:
            break
    return carriers


def _is_entry(value: ast.AST, carriers: set[str]) -> bool:
    """Whether an expression is a carrier or an entry of one, and not something computed with it."""
    if isinstance(value, ast.Subscript):
        return _is_entry(value.value, carriers)
    if isinstance(value, ast.IfExp):
        return _is_entry(value.body, carriers) or _is_entry(value.orelse, carriers)
    return isinstance(value, ast.Attribute | ast.Name) and _last(value) in carriers


def _mappings(nodes: Sequence[ast.AST], carriers: set[str]) -> Iterator[ast.Dict]:
    """Literal dictionaries in which an entry is looked up."""
    looked_up = {
        _last(node.value)
        for node in nodes
        if isinstance(node, ast.Subscript) and carriers & set(_names(node.slice)) and _last(node.value)
    }
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(_last(target) in looked_up for target in node.targets):
            yield node.value


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> list[str]:
    return [name for part in ast.walk(node) if (name := _last(part))]


def _texts(node: ast.AST) -> list[str]:
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier()
    ]
