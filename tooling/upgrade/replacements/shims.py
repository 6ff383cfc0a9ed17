"""What a definition merely stands for: wrappers around one callable, subclasses that add nothing.

Only of code that says it is there for old times' sake: an empty subclass of an exception is no alias of it."""

from __future__ import annotations

import ast
import re
import textwrap

_LONGEST = 20_000
_OLD_TIMES = re.compile(r"deprecat|warn|alias|backward|legacy|compat|renamed", re.IGNORECASE)


def stands_for(source: str) -> str:
    """The dotted name that a piece of code passes on to, as it writes it; "" if it does something of its own.

    old = deprecated("old", New)       New, the only name among the arguments
    class Old(New): only warnings      New
    def old(*args, **kw): only warnings; return new(*args, **kw)          new
    """
    if len(source) > _LONGEST or not _OLD_TIMES.search(source):
        return ""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    match tree.body:
        case [ast.ClassDef() as node]:
            if len(node.bases) != 1 or not all(_is_idle_member(statement) for statement in node.body):
                return ""
            return _dotted(node.bases[0])
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as node]:
            return _callee(node.body)
        case [ast.Expr(value=ast.Call() as call)]:
            names = [name for argument in call.args if (name := _dotted(argument))]
            return names[0] if len(names) == 1 else ""
    return ""


def _is_idle_member(statement: ast.stmt) -> bool:
    """A docstring, `pass`, or a method that warns and hands everything to the base."""
    if not isinstance(statement, ast.FunctionDef):
        return _is_idle(statement)
    *before, last = statement.body
    return all(_is_idle(each) for each in before) and (_is_idle(last) or _is_super_call(last))


def _is_super_call(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=function)) | ast.Return(value=ast.Call(func=function)):
            return ast.unparse(function).startswith("super(")
    return False


def _callee(body: list[ast.stmt]) -> str:
    *before, last = body
    if not all(_is_idle(statement) for statement in before):
        return ""
    match last:
        case ast.Return(value=ast.Call(func=function)) | ast.Return(value=ast.Await(value=ast.Call(func=function))):
            return _dotted(function)
    return ""


def _is_idle(statement: ast.stmt) -> bool:
    """A docstring, `pass`, an import, or a call whose value nobody takes and that speaks of deprecation."""
    match statement:
        case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return any(word in ast.unparse(function).lower() for word in ("warn", "deprecat"))
    return False


def _dotted(node: ast.expr) -> str:
    """The dotted name that an expression is; "" for others."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            inner = _dotted(value)
            return f"{inner}.{name}" if inner else ""
    return ""
