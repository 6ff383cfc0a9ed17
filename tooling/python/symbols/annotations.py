"""Read what annotations promise: the types of values, elements and results."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.python.source import dotted_name, parse_expression
from tooling.python.standard_library import CONTAINERS
from tooling.python.symbols.definitions import Where, external
from tooling.python.symbols.symbol import Builtin, Container, Definite, Found, Instance, SymbolKind, Type, Values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.symbol import Resolution, Symbol


def type_names(annotation: str) -> frozenset[str]:
    """Names in an annotation, whatever way it is spelt: Optional[X], Union[X, None] and "X | None" are one."""
    names = set(re.findall(r"\w+", annotation))
    if "Optional" in names:
        names.add("None")
    lower = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Type": "type"}
    return frozenset(lower.get(name, name) for name in names - {"Optional", "Union", "typing", "t"})


def after(values: Values, parts: Sequence[Values]) -> Values:
    """Return what follows from values, part by part: as unsure as they are."""
    result = union(parts) if parts else OPEN
    return replace(result, open=result.open or values.open, inferred=result.inferred or values.inferred)


def awaited(values: Values) -> Values:
    """`await value`."""
    parts = [
        kind.items[0] if isinstance(kind, Container) and kind.name == "awaitable" else OPEN for kind in values.types
    ]
    return after(values, parts)


def iterated(values: Values, *, asynchronous: bool = False) -> Values:
    """Return an element of containers."""
    parts: list[Values] = []
    for kind in values.types:
        if isinstance(kind, Container) and kind.name == "tuple":
            parts.append(union(kind.items))
        elif isinstance(kind, Container) and kind.name in ("list", "set", "dict", "iterator", "async-iterator"):
            parts.append(kind.items[0])
        else:
            parts.append(OPEN)
    return after(values, parts)


def item_of(kind: Container, key: str | int | None) -> Values:
    """`value[key]`."""
    if kind.name == "tuple":
        if isinstance(key, int) and -len(kind.items) <= key < len(kind.items):
            return kind.items[key]
        return OPEN if isinstance(key, int) else union(kind.items)
    if kind.name == "dict":
        return kind.items[1]
    return kind.items[0] if kind.name in ("list", "iterator") else OPEN  # an iterator is unpacked


def container_method(values: Values, name: str) -> Values | None:
    """Return what a call of a method of a dict or list gives; None for other values and methods."""
    if len(values.types) != 1 or not isinstance(values.types[0], Container):
        return None
    kind = values.types[0]
    if kind.name == "dict":
        key, value = kind.items
        made = {
            "items": container("list", [container("tuple", [key, value])]),
            "values": container("list", [value]),
            "keys": container("list", [key]),
            "get": union([value, NONE]),
            "pop": value,
            "setdefault": value,
            "copy": values,
        }
        return made.get(name)
    if kind.name in ("list", "set"):
        return {"pop": kind.items[0], "copy": values}.get(name)
    return container("iterator", [OPEN, kind.items[0]]) if (kind.name, name) == ("awaitable", "__await__") else None


OPEN = Values((), open=True)
NONE = Values((Builtin("NoneType"),))
MAX_DEPTH = 20
_TRANSPARENT = frozenset(
    ["Annotated", "ClassVar", "Final", "Required", "NotRequired", "ReadOnly", "SkipValidation", "InitVar", "TypeGuard"]
)
_ANYTHING = frozenset(
    ["Any", "object", "Callable", "NoReturn", "Never", "Hashable", "type", "Type", "Protocol", "Generic"]
)
_PYTHON = (
    "builtins",
    "typing",
    "typing_extensions",
    "collections",
    "collections.abc",
    "contextlib",
    "asyncio",
    "types",
)


def union(parts: Iterable[Values]) -> Values:
    """One of several."""
    types: dict[Type, None] = {}
    is_open = inferred = False
    for part in parts:
        types.update(dict.fromkeys(part.types))
        is_open = is_open or part.open
        inferred = inferred or part.inferred
    return Values(tuple(types), is_open, inferred)


def container(name: str, items: Sequence[Values], exact: str = "") -> Values:
    """Put values into a container."""
    return Values((Container(name, tuple(items), exact),))


def of_python(name: str, arguments: Sequence[Values]) -> Values:
    """Return the type of Python by the last part of its name, with or without arguments."""
    first = arguments[0] if arguments else OPEN
    if name == "Coroutine":
        return container("awaitable", [arguments[2] if len(arguments) > 2 else OPEN])
    if CONTAINERS.get(name) == "dict":
        return container("dict", [first, arguments[1] if len(arguments) > 1 else OPEN])
    if name in CONTAINERS:
        items = [first, arguments[2]] if name == "Generator" and arguments[2:] else [first]
        return container(CONTAINERS[name], items, exact="frozenset" if name.lower() == "frozenset" else "")
    if name == "Optional":
        return union([first, NONE])
    if name == "Union":
        return union(arguments)
    if name in ("tuple", "Tuple"):
        return container("tuple", arguments) if arguments else container("list", [OPEN], "tuple")
    if name in _ANYTHING:
        return OPEN
    return first if name in _TRANSPARENT else Values((Builtin("NoneType" if name == "None" else name),))


@dataclass(frozen=True)
class AnnotationReader:
    """Annotations of one place. `receiver`: what `Self` is."""

    model: Model
    where: Where
    receiver: Symbol | None = None
    depth: int = 0
    aliases: frozenset[Symbol] = frozenset()
    """Names for types that are being read: an alias may be made of itself."""

    def read(self, source: str) -> Values:
        """Return the type that an annotation says."""
        node = parse_expression(source) if source and source != "..." else None
        return self.of(node) if node is not None else OPEN

    def of(self, node: ast.expr) -> Values:
        """Return the type that the tree of an annotation says."""
        if self.depth > MAX_DEPTH:
            return OPEN
        if isinstance(node, ast.Constant):
            if node.value is None:
                return NONE
            return self.deeper().read(node.value) if isinstance(node.value, str) else OPEN
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(dotted_name(node))
        if isinstance(node, ast.Subscript):
            return self._subscripted(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return union([self.of(node.left), self.of(node.right)])
        return OPEN

    def deeper(self) -> AnnotationReader:
        """For an annotation that another one names."""
        return replace(self, depth=self.depth + 1)

    def _found(self, name: str) -> Resolution | None:
        """Find what a name in an annotation is; not a method: `dict[str, int]` beside `def dict(self)` is a mapping."""
        found = self.model.expression(self.where, name) if name else None
        if isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION and self.where.classes:
            return self.model.expression(Where(self.where.table), name)
        return found

    def _named(self, name: str) -> Values:
        found = self._found(name)
        if not isinstance(found, Found):
            return OPEN
        if found.symbol.kind is SymbolKind.CLASS:
            return Values((Instance(found.symbol),))
        outside = external(found)
        if (outside or name).rpartition(".")[2] == "Self" and self.receiver is not None:
            return Values((Instance(self.receiver),))  # also where an attempt to import it leaves `Self: Any = None`
        if outside:
            module, _, last = outside.rpartition(".")
            return of_python(last, ()) if module in _PYTHON and last != "Self" else OPEN
        return self._alias(found.symbol) if found.symbol.kind is SymbolKind.VALUE else OPEN

    def _alias(self, symbol: Symbol) -> Values:
        """`X = Union[A, B]`, `T = TypeVar("T", bound="A")`."""
        located = self.model.definitions.locate(symbol)
        node = parse_expression(located.binding.source) if located is not None and located.binding.source else None
        if node is None or located is None or symbol in self.aliases:
            return OPEN
        where = Where(located.table, located.classes)
        inner = replace(self, where=where, depth=self.depth + 1, aliases=self.aliases | {symbol})
        if not isinstance(node, ast.Call):
            return inner.of(node)
        if dotted_name(node.func).rpartition(".")[2] not in ("TypeVar", "NewType"):
            return OPEN
        bound = next((word.value for word in node.keywords if word.arg == "bound"), None)
        if bound is not None and self.receiver is not None and inner.of(bound) != OPEN:
            return self._bound(inner.of(bound))
        return inner.of(bound) if bound is not None else OPEN

    def _bound(self, bound: Values) -> Values:
        """Read a type variable bound to a class, in a method of a class below it: what the method was called on."""
        assert self.receiver is not None, "checked by the caller"
        above = self.model.bases(self.receiver)[0]
        if any(isinstance(kind, Instance) and kind.symbol in above for kind in bound.types):
            return Values((Instance(self.receiver),))
        return bound

    def _subscripted(self, node: ast.Subscript) -> Values:
        head = dotted_name(node.value)
        found = self._found(head)
        if isinstance(found, Found) and found.symbol.kind is SymbolKind.CLASS:
            return Values((Instance(found.symbol),))
        outside = external(found) if found is not None else ""
        module, _, name = outside.rpartition(".")
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if module not in _PYTHON and isinstance(found, Found) and not outside:
            return self._alias(found.symbol)
        if module not in _PYTHON:  # `SkipValidation[X]` of pydantic and its like
            return self.of(arguments[0]) if name in _TRANSPARENT else OPEN
        if name == "Literal":
            kinds = {type(part.value).__name__ for part in arguments if isinstance(part, ast.Constant)}
            return Values(tuple(Builtin(kind) for kind in sorted(kinds)))
        if name in ("type", "Type"):
            # `type[X]` for `X`
            values = self.of(arguments[0])
            types = tuple(Definite(kind.symbol) for kind in values.types if isinstance(kind, Instance))
            return Values(types, values.open or len(types) < len(values.types))
        if name in ("tuple", "Tuple") and len(arguments) == 2 and getattr(arguments[1], "value", None) is Ellipsis:
            return container("list", [self.of(arguments[0])], "tuple")
        return of_python(name, [self.of(part) for part in arguments])
