"""Values that are not what is used: a name that is None for good, the last item in place of all."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, own_nodes, parameters
from tooling.review.records import Place, Rule, Severity
from tooling.review.rules.conditions import blocks, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.repository.side import Side


def always_none(module: Module, _side: Side) -> Iterator[Place]:
    """Find `x = None` in a function that sets it nowhere else, and asks for it or uses it."""
    for function in module.functions():
        if "None" not in module.text or "locals()" in module.text:
            return
        inside = own_nodes(function)
        assigned = (each for each in inside if isinstance(each, ast.Assign | ast.AnnAssign))
        none = [each for each in assigned if isinstance(each.value, ast.Constant) and each.value.value is None]
        if not none:
            continue
        names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
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
                said = f"nothing sets `{target.id}` again: it is None at `{line}`"
                yield Place(module.path, node.lineno, said)


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


def last_of_loop(module: Module, _side: Side) -> Iterator[Place]:
    """Find `rows.append(row)` in a loop, and `return row` behind it."""
    for block in blocks(module):
        for at, loop in enumerate(block):
            if not isinstance(loop, ast.For):
                continue
            for statement in loop.body:
                call = statement.value if isinstance(statement, ast.Expr) else None
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
                    continue
                items, item = call.func.value, call.args[0]
                named = isinstance(items, ast.Name) and isinstance(item, ast.Name) and call.func.attr == "append"
                if not named or not isinstance(item, ast.Name) or not isinstance(items, ast.Name):
                    continue
                one = items.id in {f"{item.id}s", f"{item.id}es", f"{item.id}_list", f"all_{item.id}s"}
                if not one or item.id not in stored(loop.body) or item.id in stored(block[at + 1 :]):
                    continue
                function = module.function_of(loop)
                if function is None or items.id in parameters(function):
                    continue  # what the caller gave is the caller's
                behind = [each for one in block[at + 1 :] for each in ast.walk(one)]
                # Who uses all of them may return the last: `log(losses)`, `return loss`.
                reads = (each for each in behind if isinstance(each, ast.Name) and each.id == items.id)
                around = (next(one for one in module.around(each) if isinstance(one, ast.stmt)) for each in reads)
                used = min((each.lineno for each in around if not isinstance(each, ast.Return)), default=None)
                for node in (each for each in behind if module.function_of(each) is function):
                    if used is not None and used < getattr(node, "lineno", 0):
                        continue
                    if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == item.id:
                        said = f"returns the last `{item.id}`, where the loop collected `{items.id}`"
                        yield Place(module.path, node.lineno, said)


RULES: Final = (
    Rule("always-none", Severity.MEDIUM, in_tests=False, in_file=always_none),
    Rule("last-of-loop", Severity.HIGH, in_file=last_of_loop),
)
