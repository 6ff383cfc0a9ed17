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
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tooling.python.operations import UNKNOWN, OutOfFuel, literal
from tooling.python.symbols.calls import positional
from tooling.python.symbols.symbol import Found, Signature, SymbolKind
from tooling.python.values import ValueEvaluator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.python.symbols.calls import BoundCall
    from tooling.python.symbols.symbol import Symbol
    from tooling.python.symbols.targets import Callable_
    from tooling.python.symbols.tree import SymbolTree
    from tooling.upgrade.uses import PassedArguments

_MOST_HANDS = 4
"""Functions that a parameter is followed through."""
_FREE = frozenset({"locals", "vars", "eval", "exec"})
"""Calls that may read any parameter."""


def effective_default(side: Callable_, parameter: str, default: str) -> str:
    """What a parameter is when it is left out: its default, or what the body puts in place of None.

    def total(self, axis=None):                     # axis was 0: the same as before
        return self._total("total", axis)

    def _total(self, name, axis):
        if axis is None:
            axis = 0
    """
    function = side.tree.function_of(side.symbol)
    for _ in range(_MOST_HANDS if default == "None" else 0):
        node = side.tree.tree_of(function) if function is not None else None
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or function is None:
            break
        for statement in node.body:
            value = _in_place_of_none(statement, parameter)
            if value is not None:
                known = literal(ast.unparse(value))
                return ast.unparse(value) if known is UNKNOWN else repr(known)
        function, parameter = _handed_to(side.tree, function, node, parameter)
    return default


def _handed_to(
    tree: SymbolTree[Any], function: Symbol, node: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str
) -> tuple[Symbol | None, str]:
    """Return the function that a body hands a parameter to, if it does nothing else with it, and its name there."""
    read = [each for statement in node.body for each in ast.walk(statement) if getattr(each, "id", "") == parameter]
    for call in (each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Call)):
        places: list[int | str | None] = [at for at, each in enumerate(call.args) if each in read]
        places += [each.arg for each in call.keywords if each.value in read]
        if not places or len(read) != 1 or any(isinstance(each, ast.Starred) for each in call.args[: len(places)]):
            continue
        called = tree.keywords.callee(function, ast.unparse(call.func))
        reached = tree.function_of(called) if called is not None else None
        signature = tree.signature(reached) if reached is not None else None
        if reached is None or not isinstance(signature, Signature):
            break
        if isinstance(places[0], str):
            return reached, places[0]
        own = node.args.args[0].arg if node.args.args else ""
        first = ast.unparse(call.func).partition(".")[0]
        # `Base.total(self, axis)`
        by_class = called is reached and reached.binding == "method" and first not in (own, "super()")
        slots = positional(signature)[places[0] - by_class :] if places[0] is not None else []
        return (reached, slots[0].name) if slots else (None, "")
    return None, ""


def is_former_name(side: Callable_, old: str, new: str) -> bool:
    """Whether a function still takes `new` by another name: `if user_pwd is not None: user_password = user_pwd`."""
    function = side.tree.function_of(side.symbol)
    node = side.tree.tree_of(function) if function is not None else None
    assigned = [each for each in ast.walk(node) if isinstance(each, ast.Assign)] if node is not None else []
    values = [each.value for each in assigned if ast.unparse(each.targets[0]) == new]
    return any(old == getattr(part, "id", "") for value in values for part in ast.walk(value))


def reads(side: Callable_, parameter: str, bound: BoundCall, arguments: PassedArguments) -> bool:
    """Whether a call may come to a place that reads the parameter; True where the body is not known."""
    function = _node(side)
    body = function.body if function is not None else None
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
    for node in (node for statement in body for node in _stores(statement)):
        known.pop(node.id, None)
    known.pop(parameter, None)
    return any(name == parameter or name in _FREE for name in _read_names(body, known, parameter)[0])


def refusal(side: Callable_, name: str, given: str | None) -> tuple[str, bool]:
    """Name the exception that the body raises for a parameter or keyword that is given, and say whether it surely does;
    "" if it raises none.

        def dump(self, encoder=_unset, mode="w", **options):
            if encoder is not _unset:
                raise TypeError("`encoder` is no longer supported")     # dump(encoder=f) raises TypeError
            strict = options.pop("strict", None)
            if strict is not None:
                raise TypeError("`strict` is gone")     # dump(strict=True) does, dump(strict=None) does not,
                                                        # dump(strict=flag) may
            if mode not in MODES:
                raise ValueError(mode)                  # dump(mode="a") does if MODES has no "a"

    given: the argument as a literal; None for anything else."""
    node = _node(side) or _after_fields(side)
    if node is None:
        return "", False
    others = node.args.kwarg.arg if node.args.kwarg is not None else ""
    parameter = next((each for each in side.signature.parameters if each.name == name), None)
    usual, local = (parameter.default or "", name) if parameter is not None else ("", "")
    for statement in node.body:
        match statement:
            case ast.If(test=test, body=[ast.Raise(exc=ast.Call(func=error) | error), *_]) if local:
                kinds = isinstance(error, ast.Name | ast.Attribute)
                is_passed = _is_passed(test, local, usual, given) if kinds else False
                if is_passed is not False and error is not None:
                    return ast.unparse(error).rpartition(".")[2], is_passed is True
        taken = None if local else _taken_keyword(statement, others, name)
        if taken is not None:
            local, usual = taken
        elif local and local in {each.id for each in _stores(statement)}:
            break  # it is something else from here on
    value = UNKNOWN if given is None or parameter is None else literal(given)
    refused = _refused_value(side, node, name, value) if value is not UNKNOWN else ""
    return refused, bool(refused)


def _refused_value(side: Callable_, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, value: object) -> str:
    """Name the exception that a body surely raises for the value of a parameter: the branches that the value decides
    are followed until the call may end in another way. "" for none."""
    own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    own |= {each.id for statement in node.body for each in _stores(statement)}
    evaluator = ValueEvaluator(lookup=lambda read: UNKNOWN if read in own else _constant(side, read))
    evaluator.env[name] = value
    asked, statements = False, list(node.body)
    while statements:
        statement = statements.pop(0)
        match statement:
            case ast.If(test=test) | ast.Assert(test=test):
                asked = asked or name in _names_of(test)
                answer = None
                with suppress(OutOfFuel):
                    answer = evaluator.truth(test)
                if isinstance(statement, ast.Assert) and answer is False and name in _names_of(test):
                    return "AssertionError"
                if isinstance(statement, ast.If) and answer is not None:
                    statements = [*(statement.body if answer else statement.orelse), *statements]
                    continue
            case ast.Raise(exc=ast.Call(func=error) | error) if asked and error is not None:
                return ast.unparse(error).rpartition(".")[2]
        ends = isinstance(statement, ast.For | ast.While | ast.With | ast.Try | ast.Raise)
        if ends or any(isinstance(each, ast.Return) for each in ast.walk(statement)):
            return ""
        if name in {each.id for each in _stores(statement)}:
            return ""
    return ""


def _constant(side: Callable_, name: str) -> object:
    """A literal that a name of the module of a function stands for."""
    symbol = side.tree.function_of(side.symbol) or side.symbol
    found = side.tree.resolve(f"{(symbol.owner or symbol.dotted).rpartition('.')[0]}.{name}")
    return literal(found.symbol.value or "") if isinstance(found, Found) else UNKNOWN


def _is_passed(test: ast.expr, local: str, usual: str, given: str | None) -> bool | None:
    """Whether a test holds for an argument that is given; None if that depends on its value."""
    value = UNKNOWN if given is None else literal(given)
    match test:
        case ast.Name(id=read) if read == local:
            return value is not UNKNOWN and bool(value)
        case ast.Compare(ast.Name(id=read), [ast.IsNot() | ast.NotEq()], [other]) if read == local:
            against, default = literal(ast.unparse(other)), literal(usual)
            if against is UNKNOWN:  # a marker that no caller passes
                return ast.unparse(other) == usual
            if default is UNKNOWN or (type(default), default) != (type(against), against):
                return False
            if value is UNKNOWN:
                return None if default is None else False
            return bool(value != against)
    return False


def _taken_keyword(statement: ast.stmt, others: str, name: str) -> tuple[str, str] | None:
    """The local name and the default of `local = others.pop("name", default)`; None for anything else."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=local)], value=value)
            | ast.AnnAssign(target=ast.Name(id=local), value=value)
        ):
            match value:
                case ast.Call(ast.Attribute(ast.Name(id=held), "pop" | "get"), [ast.Constant(value=key), *rest]):
                    if held == others and key == name:
                        return local, ast.unparse(rest[0]) if rest else "None"
    return None


def _stores(statement: ast.stmt) -> Iterator[ast.Name]:
    return (
        each for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store | ast.Del)
    )


def _node(side: Callable_) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that a call runs; None where nobody wrote it, or it cannot be read."""
    function = side.tree.function_of(side.symbol)
    node = side.tree.tree_of(function) if function is not None else None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _after_fields(side: Callable_) -> ast.FunctionDef | None:
    """The `__post_init__` of a class that is made of its fields, which stand there by their names alone."""
    found = side.tree.member(side.symbol, "__post_init__") if side.symbol.kind is SymbolKind.CLASS else None
    node = side.tree.tree_of(found.symbol) if isinstance(found, Found) and found.symbol.file else None
    if not isinstance(node, ast.FunctionDef) or not node.args.args:
        return None
    text = re.sub(rf"\b{node.args.args[0].arg}\.(\w+)", r"\1", ast.unparse(node))
    (bare,) = ast.parse(text).body
    return bare if isinstance(bare, ast.FunctionDef) else None


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
