"""Which lines of a module set or change a module-level name: a registry is edited only where exactly one does.

Reads `ast` trees; what functions do to the table at run time (a `register` decorator) is not looked at.
"""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PLACED = (ast.stmt, ast.expr, ast.alias, ast.excepthandler, ast.pattern)
_CHANGES: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "remove", "reverse"}
    | {"setdefault", "sort", "update"}
)


def parse_python(text: str) -> ast.Module:
    """`ast.parse` without its warnings: odd escapes elsewhere in the file are not our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def binding_lines(tree: ast.Module, name: str) -> list[int]:
    """1-based lines that bind, rebind, delete or change `name` at module level, in order."""
    lines = {line for node in module_scope(tree) for line in _binds(node, name)}
    declared = (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global) and name in node.names)
    return sorted(lines.union(declared))


def module_scope(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs in the scope of the module: blocks are entered, functions and classes are not."""
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _OWN_SCOPE + _INNER_SCOPE):
            stack.extend(ast.iter_child_nodes(node))


def bound_names(node: ast.AST) -> set[str]:
    """Names that this one node (not its children) binds or deletes."""
    if isinstance(node, _OWN_SCOPE):
        return {node.name}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return {node.id}
    if isinstance(node, ast.alias):
        return {node.asname or node.name.partition(".")[0]}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return {node.name}
    return set()


def _binds(node: ast.AST, name: str) -> list[int]:
    if name in bound_names(node) or _changes(node, name):
        return [node.lineno] if isinstance(node, _PLACED) else []
    return []


def _changes(node: ast.AST, name: str) -> bool:
    """`X[k] = v`, `del X[k]`, `X.update(..)`."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_name(node.value, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CHANGES and _is_name(node.func.value, name)
    return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
