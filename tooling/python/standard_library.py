"""Know the names that Python itself defines: builtins, and classes of its standard library."""

from __future__ import annotations

import builtins
import enum
import importlib
from collections import namedtuple
from functools import cache

MODULES = (
    *("abc", "argparse", "ast", "builtins", "collections", "collections.abc", "contextlib", "dataclasses", "datetime"),
    *("enum", "functools", "io", "json", "logging", "pathlib", "queue", "string", "threading", "types", "typing"),
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
    """Whether a class of Python has no attributes but those that its class shows: others set some in `__init__`."""
    module = dotted.rpartition(".")[0]
    return _ALIASES.get(module, module) in _PLAIN and python_class(dotted) is not None


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
