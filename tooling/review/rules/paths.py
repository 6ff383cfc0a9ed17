"""Paths on which something is missing: a name that only one branch sets, a handler that reads what failed to be set."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, parameters
from tooling.review.records import Rule, Severity
from tooling.review.rules.conditions import blocks
from tooling.review.rules.outcomes import first_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_MAY_RAISE: Final = (ast.Await, ast.Call, ast.Subscript)


def set_in_a_branch(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name that a lone `if` sets, read in a line behind it that always runs."""
    for block in blocks(module):
        for at, node in enumerate(block):
            alone = isinstance(node, ast.If) and not node.orelse and not isinstance(node.body[-1], _LEAVES)
            function = module.function_of(node) if alone else None
            if not isinstance(node, ast.If) or not isinstance(function, Function):
                continue
            if any(isinstance(each, (*_LOOPS, ast.Try)) for each in module.around(node)):
                continue  # an earlier round may have set it
            # `if not isinstance(masks := m, dict): masks = make(m)` sets it either way.
            in_test = {each.target.id for each in nodes_in(node.test, ast.NamedExpr)}
            for name in sorted(_assigned(node.body) - in_test):
                read = first_read(module, block[at + 1 :], name)
                if read is not None and name not in _known_before(function, node):
                    said = f"`{name}` is set only where `{ast.unparse(node.test)[:60]}`, and read where it is not"
                    line = next(each.lineno for each in node.body if name in _assigned([each]))
                    yield line, said, read


def _assigned(body: Iterable[ast.stmt]) -> set[str]:
    """Return the plain names that statements of one block assign."""
    targets = (target for each in body if isinstance(each, ast.Assign) for target in each.targets)
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _known_before(function: Function, node: ast.stmt) -> set[str]:
    """Return the names that something above a statement may have bound, or that are shared with others."""
    found = set(parameters(function))
    for each in ast.walk(function):
        if isinstance(each, ast.Global | ast.Nonlocal):
            found.update(each.names)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.lineno < node.lineno:
            found.add(each.id)
        elif isinstance(each, ast.alias):
            found.add(each.asname or each.name.partition(".")[0])
        elif isinstance(each, Function | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found.update([each.name] if each.name else ())
        elif isinstance(each, ast.MatchMapping) and each.rest:
            found.add(each.rest)
    return found


def unbound_in_handler(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name that the `try` sets, read in the handler for whatever went wrong, setting it included."""
    for node in module.nodes(ast.Try):
        function = module.function_of(node)
        if not isinstance(function, Function):
            continue
        known = _known_before(function, node)
        for at, statement in enumerate(node.body):
            names = _assigned([statement]) - known
            # The first of many statements is seldom what fails, as authors of handlers know.
            before = node.body[:at] if len(node.body) > 1 else [statement]
            risky = any(isinstance(each, _MAY_RAISE) for one in before for each in ast.walk(one))
            for handler in node.handlers if names and risky else ():
                kind = last_name(handler.type) if handler.type is not None else "Exception"
                if kind not in {"BaseException", "Exception"} and statement is not node.body[-1]:
                    continue
                used = nodes_in(handler.body, ast.Name)
                again = {each.id for each in used if isinstance(each.ctx, ast.Store)}
                asked = any(each.id in {"locals", "vars"} for each in used)
                for each in used:
                    # In a branch, a flag may say that it is set; a function made here has names of its own.
                    inside = [each, *module.around(each, node)]
                    caught = any(isinstance(one, ast.Try) and one is not node for one in module.around(each))
                    caught |= any(_is_branch(one, inside) for one in inside)
                    caught |= module.function_of(each) is not function
                    if each.id in names - again and not asked and not caught:
                        names.discard(each.id)
                        yield each, f"`{each.id}` is not set where setting it is what failed"
            known |= _assigned([statement])


def _is_branch(node: ast.AST, inside: list[ast.AST]) -> bool:
    """Whether one of the nodes inside of it is reached only where it asks for something that holds."""
    if isinstance(node, ast.If | ast.IfExp):
        return node.test not in inside
    return isinstance(node, ast.match_case) or (isinstance(node, ast.BoolOp) and node.values[0] not in inside)


RULES: Final = (
    Rule("set-in-a-branch", Severity.HIGH, in_tests=False, in_file=set_in_a_branch),
    Rule("unbound-in-handler", Severity.HIGH, in_file=unbound_in_handler),
)
