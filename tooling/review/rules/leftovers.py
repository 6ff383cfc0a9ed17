"""Values that are not what is used: a name that is None for good."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side


def always_none(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `x = None` in a function that sets it nowhere else, and asks for it or uses it."""
    for function in module.functions():
        if "None" not in module.text or "locals()" in module.text:
            return
        inside = own_nodes(function)
        assigned = (each for each in inside if isinstance(each, ast.Assign | ast.AnnAssign))
        none = [each for each in assigned if isinstance(each.value, ast.Constant) and each.value.value is None]
        if not none:
            continue
        names = nodes_in(function, ast.Name)
        bound = _otherwise_bound(function)
        for node in none:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not isinstance(target, ast.Name) or target.id in bound or len(getattr(node, "targets", [0])) > 1:
                continue
            uses = [each for each in names if each.id == target.id and each is not target]
            if any(not isinstance(each.ctx, ast.Load) for each in uses):
                continue
            used = [each for each in uses if _is_needed(module, each)]
            if used:
                line = module.lines[used[0].lineno - 1].strip()[:60]
                yield node, f"nothing sets `{target.id}` again: it is None at `{line}`"


def _otherwise_bound(function: Function) -> set[str]:
    """Return what a function binds by other means than a name that is stored, or shares with others."""
    found = set(parameters(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found.update(node.names)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, Function | ast.ClassDef) and node is not function:
            found.add(node.name)
            found.update(parameters(node) if isinstance(node, Function) else ())
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        elif isinstance(node, ast.Lambda):
            found.update(parameters(node))
    return found


def _is_needed(module: Module, node: ast.Name) -> bool:
    """Whether a name is asked for, called, or opened: what is handed on may be None on purpose."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Compare):
        return isinstance(parent.ops[0], ast.Is | ast.IsNot) and parent.left is node
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return parent.value is node
    if isinstance(parent, ast.If | ast.IfExp | ast.While):
        return parent.test is node
    return isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)


RULES: Final = (Rule("always-none", Severity.MEDIUM, in_tests=False, in_file=always_none),)
