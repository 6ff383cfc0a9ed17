"""Fingerprint a function, class or instance that a Python program handed over, which has no module to be found by.

It covers the source text of the function without comments, what it refers to in its own module (functions, classes,
plain values), defaults, and values of enclosing functions. Without source text, as of a program that was read from
standard input, the compiled code takes its place: another version of Python then gives another fingerprint.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint_object(value: Any) -> str:
    """Return a digest that changes with what the object does, as far as its own module and its values tell."""
    digest = hashlib.sha256()
    for part in _parts(value, set()):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield what an object consists of, as texts; an object that was met before is passed over."""
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        yield from _function_parts(value, seen)
    elif isinstance(value, MethodType):
        yield from _parts([value.__func__, value.__self__], seen)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, value.args, value.keywords], seen)
    elif isinstance(value, type):
        yield value.__qualname__
        members = (member for name, member in sorted(vars(value).items()) if isinstance(member, FunctionType | _Plain))
        yield from _parts([*members, *(base for base in value.__bases__ if base is not object)], seen)
    elif isinstance(value, (list, tuple)):
        yield type(value).__name__
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts([key, item], seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(repr(item) for item in value)
    else:
        yield type(value).__qualname__
        if type(value).__module__ not in ("builtins", "re"):
            yield from _parts([type(value), getattr(value, "__dict__", {})], seen)


_Plain = bool | int | float | complex | str | bytes | None


def _function_parts(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield _text(function)
    yield from _parts([function.__defaults__, function.__kwdefaults__], seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            continue
    for name in sorted(set(_global_names(function.__code__))):
        found = function.__globals__.get(name)
        if isinstance(found, _PLAIN) or getattr(found, "__module__", None) == function.__module__:
            yield name
            yield from _parts(found, seen)


def _text(function: FunctionType) -> str:
    """Return the function as Python reads it, from its source where that is exact, else its compiled code."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return "".join(_code_parts(code))
    wanted = ast.Lambda if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, wanted)]
    same = [node for node in found if getattr(node, "name", "<lambda>") == code.co_name]
    # Two lambdas in one statement cannot be told apart by their line.
    if len(same) > 1 and not isinstance(same[0], ast.Lambda):
        same = [node for node in same if node.lineno + first - 1 >= code.co_firstlineno][:1]
    return ast.dump(same[0]) if len(same) == 1 else "".join(_code_parts(code))


def _code_parts(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        yield from _code_parts(constant) if isinstance(constant, CodeType) else (repr(constant),)


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function may look up in its module, those of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
