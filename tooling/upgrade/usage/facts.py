"""Hold what one file says about imports, values and uses; cached by the file's content."""

from __future__ import annotations

import contextlib
import marshal
import sys
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tooling.upgrade.sources.cache import touch, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


SCHEMA = 41
"""Part of the cache's key; raised with each change of what facts are."""

UNKNOWN = 0
NONE = 1

Node = tuple[Any, ...]
Span = tuple[int, int, int, int]
"""Line, column, end line, end column, as `ast` counts."""
UseRow = tuple[str, Span, int, int, tuple[Any, ...]]
"""Action, span, target, context, details (pairs of a name and a value)."""
BindingRow = tuple[int, int, "tuple[int, ...] | None"]
"""Value, context, span of the expression it came from; a fifth number in it is an element of that."""
TestRow = tuple[str, tuple[Any, ...], Span]
"""Source, the local names in it (name, value, source of its value, names in that), span."""
ArgumentRow = tuple[Span, "str | None", int, "str | None", int, bool]
"""Span, keyword, position, literal, value, from a mapping."""
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
    parameters: tuple[tuple[str, str, str | None], ...]
    """Name, kind, source of the default or None; without self."""
    returns: tuple[int, ...] = ()
    yields: tuple[int, ...] = ()
    is_generator: bool = False
    defaults: dict[str, int] = field(default_factory=dict)
    """Values of defaults that may be a package's, by parameter."""
    fixture: bool = False
    """Whether pytest gives its result to functions that name it."""
    makers: tuple[int, ...] = ()
    """Values of the decorators, which are called with it: the first gives what its name stands for."""


@dataclass(slots=True)
class ClassFacts:
    """A class: its bases, members, and what is assigned to `self`."""

    bases: tuple[int, ...]
    attributes: dict[str, list[int]] = field(default_factory=dict)
    annotations: dict[str, int] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    """Where each annotated name stands."""
    methods: dict[str, str] = field(default_factory=dict)
    """Name to qualified name; only the last definition counts."""
    line: int = 0
    end_line: int = 0


@dataclass(slots=True)
class FileFacts:
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
    options: dict[str, list[tuple[str, Span]]] = field(default_factory=dict)
    """By parser of command lines: the names of its options, and where each is declared."""
    stars: list[int] = field(default_factory=list)
    """Modules that are star-imported at module level."""
    mentions: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """By function of the module: line and column of each place that reads its name, and its context."""
    problem: str = ""

    def given(self, function: FunctionFacts) -> list[Node]:
        """What a function returns, whatever stands around that."""
        rows = [self.nodes[number] for number in function.returns]
        return [self.nodes[row[1]] if row[0] == "guarded" else row for row in rows]


def pack(facts: FileFacts) -> bytes:
    """As bytes for the cache."""
    rows = [getattr(facts, entry.name) for entry in fields(FileFacts)]
    for index, entry in enumerate(fields(FileFacts)):
        if entry.name in ("classes", "functions"):
            rows[index] = {
                name: [getattr(record, entry.name) for entry in fields(record)] for name, record in rows[index].items()
            }
    return marshal.dumps(rows)


def unpack(data: bytes) -> FileFacts | None:
    """From the cache; None if the bytes are not what `pack` made."""
    try:
        facts = FileFacts(*marshal.loads(data))
        classes: dict[str, Any] = dict(facts.classes)
        functions: dict[str, Any] = dict(facts.functions)
        facts.classes = {name: ClassFacts(*row) for name, row in classes.items()}
        facts.functions = {name: FunctionFacts(*row) for name, row in functions.items()}
    except (ValueError, EOFError, TypeError, AttributeError):
        return None
    return facts


_MARK = f"areal usage {SCHEMA} {sys.version_info.major}.{sys.version_info.minor}\n".encode()


class FactsCache:
    """A folder of facts. Without one nothing is kept. A damaged entry is as good as none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / f"usage-{SCHEMA}"
        self.hits = 0

    def load(self, digest: str) -> FileFacts | None:
        """Facts of a content."""
        if self._folder is None:
            return None
        path = self._folder / digest[:2] / digest[2:]
        try:
            data = path.read_bytes()
        except OSError:
            return None
        touch(path)
        facts = unpack(data[len(_MARK) :]) if data.startswith(_MARK) else None
        self.hits += facts is not None
        return facts

    def store(self, digest: str, facts: FileFacts) -> None:
        """Keep facts. A cache that cannot be written is not a reason to fail."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            write_atomically(self._folder / digest[:2] / digest[2:], _MARK + pack(facts))
