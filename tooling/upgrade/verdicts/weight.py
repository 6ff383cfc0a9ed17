"""Weigh a changed default by what the body does with the parameter.

    def fetch(path, retries=5, timeout=None):       # retries was 3
        if timeout is None:
            return path                             # fetch("p"): `retries` is never read
        return again(path, retries)

    def fetch(path, retries=None):                  # retries was 3
        if retries is None:
            retries = 3                             # the same as before

Tests are decided where they ask for parameters whose value the call shows; nothing is run.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.operations import UNKNOWN, OutOfFuel, literal
from tooling.python.values import ValueEvaluator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.python.symbols.calls import BoundCall
    from tooling.python.symbols.targets import Callable_
    from tooling.upgrade.uses import PassedArguments

_FREE = frozenset({"locals", "vars", "eval", "exec"})
"""Calls that may read any parameter."""


def effective_default(side: Callable_, parameter: str, default: str) -> str:
    """What a parameter is when it is left out: its default, or what the body puts in place of None."""
    for statement in (_body(side) or ()) if default == "None" else ():
        value = _in_place_of_none(statement, parameter)
        if value is not None:
            known = literal(ast.unparse(value))
            return ast.unparse(value) if known is UNKNOWN else repr(known)
    return default


def reads(side: Callable_, parameter: str, bound: BoundCall, arguments: PassedArguments) -> bool:
    """Whether a call may come to a place that reads the parameter; True where the body is not known."""
    body = _body(side)
    # A docstring, `...`, `pass`, `raise`: others define what it does
    stubs = (ast.Pass, ast.Raise)
    if body is None or all(
        isinstance(each, stubs) or isinstance(getattr(each, "value", None), ast.Constant) for each in body
    ):
        return True
    known: dict[str, object] = {}
    for each in side.signature.parameters:
        if each.name in bound.omitted and each.default is not None:
            known[each.name] = literal(each.folded or each.default)
    for index, slot in bound.slots.items():
        given = arguments.given[index].literal
        known[slot] = UNKNOWN if given is None else literal(given)
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            known.pop(node.id, None)
    known.pop(parameter, None)
    return any(name == parameter or name in _FREE for name in _read_names(body, known, parameter)[0])


def refusal(side: Callable_, name: str, given: str | None) -> str:
    """Name the exception that the body raises for a parameter or keyword that is given; "" if it raises none.

        def dump(self, encoder=_unset, **options):
            if encoder is not _unset:
                raise TypeError("`encoder` is no longer supported")         # dump(encoder=f): TypeError
            strict = options.pop("strict", None)
            if strict is not None:
                raise TypeError("`strict` is gone")                         # dump(strict=True), not dump(strict=None)

    given: the argument as a literal; None for anything else."""
    parameter = next((each for each in side.signature.parameters if each.name == name), None)
    usual, local = (parameter.default or "", name) if parameter is not None else ("", "")
    for statement in _body(side) or ():
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=held)], value=value)
                | ast.AnnAssign(target=ast.Name(id=held), value=value)
            ) if held == local or not local:
                if local:
                    return ""  # it is something else from here on
                match value:
                    case ast.Call(func=ast.Attribute(attr="pop" | "get"), args=[ast.Constant(value=key), *rest]):
                        if key == name:
                            local, usual = held, ast.unparse(rest[0]) if rest else "None"
            case ast.If(test=test, body=[ast.Raise(exc=error), *_]) if local and error is not None:
                is_passed = False
                match test:
                    case ast.Name(id=read) if read == local:
                        value = literal(given or "None")
                        is_passed = value is not UNKNOWN and bool(value)
                    case ast.Compare(ast.Name(id=read), [ast.IsNot() | ast.NotEq()], [other]) if read == local:
                        is_passed = ast.unparse(other) == usual and given != usual
                if is_passed:
                    raised = error.func if isinstance(error, ast.Call) else error
                    return ast.unparse(raised).rpartition(".")[2]
    return ""


def _body(side: Callable_) -> Sequence[ast.stmt] | None:
    """The statements that a call runs; None where nobody wrote them, or they cannot be read."""
    function = side.tree.function_of(side.symbol)
    node = side.tree.tree_of(function) if function is not None else None
    return node.body if node is not None else None


def _in_place_of_none(statement: ast.stmt, name: str) -> ast.expr | None:
    """X in `if p is None: p = X`, `p = X if p is None else p`, `p = p if p is not None else X`, `p = p or X`."""
    if isinstance(statement, ast.If) and len(statement.body) == 1 and _is_none(statement.test, name):
        statement = statement.body[0]
        return statement.value if isinstance(statement, ast.Assign) and _assigns(statement, name) else None
    if not isinstance(statement, ast.Assign) or not _assigns(statement, name):
        return None
    value = statement.value
    if isinstance(value, ast.IfExp):
        # Other tests say nothing of None
        kept = getattr(value.body, "id", "") == name and name in _names_of(value.test)
        return value.body if _is_none(value.test, name) else value.orelse if kept else None
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) and getattr(value.values[0], "id", "") == name:
        return value.values[1]
    return None


def _is_none(test: ast.expr, name: str) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Is)
        and getattr(test.left, "id", "") == name
        and getattr(test.comparators[0], "value", 0) is None
    )


def _assigns(statement: ast.Assign, name: str) -> bool:
    return getattr(statement.targets[0], "id", "") == name


def _read_names(body: Sequence[ast.stmt], known: Mapping[str, object], parameter: str) -> tuple[set[str], bool]:
    """Names that statements may read, and whether what follows is never reached or finds another value there."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.If):
            names |= set(_names_of(statement.test))
            try:
                answer = ValueEvaluator(env=dict(known)).truth(statement.test)
            except OutOfFuel:
                answer = None
            ends = []
            for branch, taken in ((statement.body, answer is not False), (statement.orelse, answer is not True)):
                inner, left = _read_names(branch, known, parameter) if taken else (set(), True)
                names |= inner
                ends.append(left)
            if all(ends):
                return names, True
            continue
        names |= set(_names_of(statement))
        if isinstance(statement, ast.Return | ast.Raise) or (
            isinstance(statement, ast.Assign) and _assigns(statement, parameter)
        ):
            return names, True
    return names, False


def _names_of(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
