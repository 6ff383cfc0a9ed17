"""Know the names that Python itself defines: builtins, and classes of its standard library."""

from __future__ import annotations

import builtins
import enum
import importlib
from collections import namedtuple
from functools import cache
from types import CodeType

MODULES = (
    *("abc", "argparse", "ast", "builtins", "collections", "collections.abc", "contextlib", "dataclasses", "datetime"),
    *("enum", "functools", "io", "json", "logging", "pathlib", "queue", "string", "threading", "types", "typing"),
    *("asyncio", "cmd", "code", "codecs", "configparser", "contextvars", "csv", "decimal", "fractions", "html.parser"),
    *("http.client", "http.cookiejar", "http.server", "logging.handlers", "numbers", "optparse", "pickle", "random"),
    *("selectors", "smtplib", "socket", "socketserver", "tempfile", "unittest", "urllib.request", "uuid", "weakref"),
    *("concurrent.futures", "email.message", "multiprocessing", "zipfile"),
)
"""Modules whose classes are looked at. Importing them has no effect beyond Python's own."""

WITHOUT_CONSTRUCTOR = (
    *("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"),
    *("typing_extensions.Generic", "typing_extensions.Protocol"),
)
"""Bases that leave the constructor to others."""

_SPECIAL: dict[tuple[str, str], type] = {
    ("typing", "TypedDict"): dict,
    ("typing", "NamedTuple"): namedtuple("Empty", ()),
}
"""What only looks like a base class."""

_PLAIN = ("abc", "builtins", "collections", "collections.abc", "enum", "typing")

_ALIASES = {"typing_extensions": "typing", "_collections_abc": "collections.abc"}


def is_builtin(name: str) -> bool:
    """Whether a plain name is there without import."""
    return hasattr(builtins, name)


@cache
def python_class(dotted: str) -> type | None:
    """Look a class of the standard library up by its dotted path, if it is one of those looked at."""
    module, _, name = dotted.rpartition(".")
    module = _ALIASES.get(module, module)
    if module not in MODULES:
        return None
    if (module, name) in _SPECIAL:
        return _SPECIAL[module, name]
    found = getattr(importlib.import_module(module), name, None)
    if isinstance(found, type):
        return found
    origin = getattr(found, "__origin__", None)  # typing.List and its like
    if isinstance(origin, type):
        return origin
    return object if found is not None and module == "typing" else None


def is_exception(dotted: str) -> bool:
    """Whether it is an exception of Python."""
    found = python_class(dotted)
    return found is not None and issubclass(found, BaseException)


def has_member(known: type, name: str) -> bool:
    """Whether a class of Python, or its instances, have an attribute."""
    return any(name in vars(kind) for kind in known.__mro__) or (
        name in ("_value_", "_name_") and issubclass(known, enum.Enum)
    )


def tells_all(dotted: str) -> bool:
    """Whether a class of Python has no attributes but those that it shows, or that its methods set by their names."""
    known = python_class(dotted)
    if known is None or _is_plain(dotted) or known.__module__ == "types":  # a namespace, or module, holds anything
        return known is not None and _is_plain(dotted)
    hooks = {name for kind in known.__mro__[:-1] for name in ("__getattr__", "__getattribute__") if name in vars(kind)}
    return not hooks and not {"setattr", "vars", "__dict__"} & _names_in_methods(known)


def may_set(dotted: str, name: str) -> bool:
    """Whether a method of a class of Python may set an attribute of its instances, as it names it."""
    known = python_class(dotted)
    return known is not None and not _is_plain(dotted) and name in _names_in_methods(known)


def _is_plain(dotted: str) -> bool:
    module = dotted.rpartition(".")[0]
    return _ALIASES.get(module, module) in _PLAIN


@cache
def _names_in_methods(kind: type) -> frozenset[str]:
    waiting: list[object] = [each for base in kind.__mro__ for each in vars(base).values()]
    found: set[str] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, CodeType):
            found.update(part.co_names)
            waiting.extend(part.co_consts)
        inner = (getattr(part, name, None) for name in ("__code__", "__func__", "__wrapped__", "fget", "fset"))
        waiting.extend(each for each in inner if each is not None)
    return frozenset(found)


CONTAINERS = {
    **dict.fromkeys(("list", "List", "Sequence", "MutableSequence"), "list"),
    **dict.fromkeys(("Collection", "deque", "Deque", "Container", "KeysView"), "list"),
    **dict.fromkeys(("set", "Set", "frozenset", "FrozenSet", "AbstractSet", "MutableSet"), "set"),
    **dict.fromkeys(("Iterator", "Iterable", "Generator", "Reversible", "ValuesView"), "iterator"),
    **dict.fromkeys(("AsyncIterator", "AsyncIterable", "AsyncGenerator"), "async-iterator"),
    **dict.fromkeys(("Awaitable", "Coroutine", "Future", "Task"), "awaitable"),
    **dict.fromkeys(("ContextManager", "AbstractContextManager"), "context"),
    **dict.fromkeys(("AsyncContextManager", "AbstractAsyncContextManager"), "async-context"),
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict"), "dict"),
    "Counter": "dict",
}
"""Last part of a generic type's name -> what its values are to those who take something out of them. What comes out is
the first argument, of "dict" the second, and of a Coroutine the last."""
