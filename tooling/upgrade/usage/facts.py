"""What one file says, by itself: plain tuples that `marshal` can keep, meant for `link` and nobody else.

Nothing here depends on any version, on other files, on the file's own path, or on which packages are asked for, so that
facts are cached by content alone. Values of expressions are rows of a table (`Facts.nodes`) that name each other by
number; row 0 is "not known" and row 1 is None:

    ("import", "a.b")            what `import a.b as x` binds; attribute chains on it stay one dotted path
    ("name", "a.b.C")            what `from a.b import C` binds
    ("relative", 1, "b.C")       likewise, relative to the file's package
    ("global", "x")              the module's own name x, whatever binds it
    ("own", "C.f")               a class or function of this file, by qualified name
    ("star", "x")                x, which only a star import can have supplied
    ("attr", n, "x")  ("call", n)  ("await", n)  ("iter", n, asynchronous)  ("item", n, key)  ("enter", n, asynchronous)
    ("instance", n)              a value whose type is n
    ("super", "C")               `super()` in class C
    ("param", "list", (n, ...))  a type with arguments
    ("list", n)  ("tuple", (n, ...))  ("dict", n)    displays, by what they hold
    ("remote", n)                what `n.remote(...)` gives: a call that somebody else makes
    ("partial", n)               n with some arguments given already
    ("either", (n, ...))
    ("guarded", n, context)      n, where it is bound under the conditions and attempts of that context
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass, field, fields
from typing import Any

SCHEMA = 6
"""Part of the cache's key; raised with each change of what facts are."""

UNKNOWN = 0
NONE = 1

Node = tuple[Any, ...]
Span = tuple[int, int, int, int]
"""Line, column, end line, end column, as `ast` counts."""
UseRow = tuple[str, Span, int, int, tuple[Any, ...]]
"""Action, span, target, context, details (pairs of a name and a value)."""
BindingRow = tuple[int, int, Span | None]
"""Value, context, span of the expression it came from."""
TestRow = tuple[str, tuple[Any, ...], Span]
"""Source, the local names in it (name, value, source of its value, names in that), span."""
ContextRow = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...], str, bool]
"""Tests (number + 1; negative where it must fail), attempts, switches, function, evaluated."""
AttemptRow = tuple[int, str, tuple[Any, ...], int, bool]
"""Number, part, caught (names of builtins, or values), handler, reraises."""


@dataclass(slots=True)
class FunctionFacts:
    """A function or method. Nothing of its body but what it gives back."""

    line: int
    end_line: int
    owner: str
    """Qualified name of the class it is a method of; ""."""
    binding: str
    """"function", "method", "classmethod", "staticmethod" or "property"."""
    is_async: bool
    decorators: tuple[int, ...]
    """Those that are not bindings."""
    annotation: int
    """Value that the return annotation promises; 0 if there is none."""
    annotated: bool
    parameters: tuple[tuple[str, str, bool, str, int], ...]
    """Name, kind, whether it has a default, source of that, value of the annotation; without self."""
    returns: tuple[int, ...] = ()
    yields: tuple[int, ...] = ()
    is_generator: bool = False
    calls_super: bool = False


@dataclass(slots=True)
class ClassFacts:
    """A class: its bases, members, and what is assigned to `self`."""

    line: int
    bases: tuple[int, ...]
    decorated: bool
    attributes: dict[str, list[int]] = field(default_factory=dict)
    annotations: dict[str, int] = field(default_factory=dict)
    fields: bool = False
    """Whether the body has annotated names, so that a constructor may be made from them."""
    methods: dict[str, str] = field(default_factory=dict)
    """Name to qualified name; only the last definition counts."""


@dataclass(slots=True)
class Facts:
    """One file."""

    nodes: list[Node] = field(default_factory=lambda: [("unknown",), ("none",)])
    contexts: list[ContextRow] = field(default_factory=list)
    tests: list[TestRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    uses: list[UseRow] = field(default_factory=list)
    bindings: dict[str, list[BindingRow]] = field(default_factory=dict)
    classes: dict[str, ClassFacts] = field(default_factory=dict)
    functions: dict[str, FunctionFacts] = field(default_factory=dict)
    exports: list[str] | None = None
    """`__all__` where it is a literal."""
    stars: list[int] = field(default_factory=list)
    """Modules that are star-imported at module level."""
    mentions: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """By function of the module: line and column of each place that reads its name, and its context."""
    problem: str = ""


def pack(facts: Facts) -> bytes:
    """As bytes for the cache."""
    rows = [getattr(facts, entry.name) for entry in fields(Facts)]
    for index, entry in enumerate(fields(Facts)):
        if entry.name in ("classes", "functions"):
            rows[index] = {
                name: [getattr(record, entry.name) for entry in fields(record)] for name, record in rows[index].items()
            }
    return marshal.dumps(rows)


def unpack(data: bytes) -> Facts | None:
    """From the cache; None if the bytes are not what `pack` made."""
    try:
        facts = Facts(*marshal.loads(data))
        classes: dict[str, Any] = dict(facts.classes)
        functions: dict[str, Any] = dict(facts.functions)
        facts.classes = {name: ClassFacts(*row) for name, row in classes.items()}
        facts.functions = {name: FunctionFacts(*row) for name, row in functions.items()}
    except (ValueError, EOFError, TypeError, AttributeError):
        return None
    return facts
