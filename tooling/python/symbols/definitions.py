"""Make symbols from bindings, with the way back to their text; say what the parts of this package ask of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tooling.python.functions import of_decorator, removed_in
from tooling.python.source import dotted_name, parse_expression
from tooling.python.symbols.symbol import Found, Symbol, SymbolKind
from tooling.python.tables import DEFINITIONS, NameBinding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.python.symbols.store import TreeStore
    from tooling.python.symbols.symbol import Open, Resolution, Signature
    from tooling.python.tables import BodyTable, FunctionTable, ModuleTable

_BINDINGS = {
    "staticmethod": "staticmethod",
    "classmethod": "classmethod",
    "cached_property": "cached-property",
    "abstractproperty": "property",
    "abstractclassmethod": "classmethod",
    "abstractstaticmethod": "staticmethod",
}
_IMPLICIT = {"__new__": "staticmethod", "__init_subclass__": "classmethod", "__class_getitem__": "classmethod"}
_LONGEST = 200
INITVAR = re.compile(r"^[\"']?(?:dataclasses\.)?InitVar\b")
"""Annotation of a name that the constructor takes and the instance does not keep."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where a symbol comes from."""

    table: ModuleTable
    binding: NameBinding
    classes: tuple[int, ...] = ()
    """Lines of the classes around it, outermost first; for a class its own line last."""


class SymbolDefinitions:
    """Makes symbols and remembers their origins."""

    def __init__(self, store: TreeStore) -> None:
        self.store = store
        self._located: dict[Symbol, Located] = {}
        self._made: dict[tuple[str, str, int, str], Symbol] = {}

    def locate(self, symbol: Symbol) -> Located | None:
        """None for modules, names of other distributions, and what is built into Python."""
        return self._located.get(symbol)

    def scope(self, symbol: Symbol) -> BodyTable | None:
        """Return the body of a class."""
        located = self._located.get(symbol)
        return located.table.classes.get(symbol.line) if located and symbol.kind is SymbolKind.CLASS else None

    def facts(self, symbol: Symbol) -> FunctionTable | None:
        """Of a function or method."""
        located = self._located.get(symbol)
        if located is None or located.binding.kind not in ("def", "async def"):
            return None
        return self.store.function(located.table, located.binding)

    def module(self, dotted: str, path: str) -> Symbol:
        """Make the symbol of a module; without a file for a folder or a native module."""
        return Symbol(kind=SymbolKind.MODULE, dotted=dotted, file=path, line=1 if path else 0)

    def outside(self, dotted: str) -> Symbol:
        """Make the symbol of a name of another distribution."""
        return Symbol(kind=SymbolKind.VALUE, dotted=dotted, file="", line=0)

    def rebound(self, symbol: Symbol, owner: str, binding: str) -> Symbol:
        """Make a method of a function that a class body takes over under a name of its own."""
        found = replace(symbol, owner=owner, binding=binding)
        self._located[found] = self._located[symbol]
        return found

    def make(
        self,
        table: ModuleTable,
        name: str,
        binding: NameBinding,
        classes: tuple[int, ...] = (),
        value: str | None = None,
    ) -> Symbol:
        """Make the symbol of a binding. `classes`: lines of the class bodies around it."""
        key = (table.path, name, binding.line, "".join(map(str, classes)))
        found = self._made.get(key)
        if found is None:
            found = self._build(table, name, binding, classes, value)
            inner = (*classes, binding.line) if binding.kind == "class" else classes
            self._made[key] = found
            self._located[found] = Located(table, binding, inner)
        return found

    def _build(
        self, table: ModuleTable, name: str, binding: NameBinding, classes: tuple[int, ...], value: str | None
    ) -> Symbol:
        owner = f"{table.dotted}.{table.classes[classes[-1]].name}" if classes else ""
        dotted = f"{owner or table.dotted}.{name}"
        if binding.kind == "class":
            text = decorated_text(binding.decorators)
            refuses = ""
            constructor = next(
                (
                    item
                    for item in reversed(list(table.classes[binding.line].bindings.get("__init__", ())))
                    if item.kind in ("def", "async def")
                ),
                None,
            )
            if constructor is not None:
                facts = self.store.function(table, constructor)
                text = text or decorated_text(constructor.decorators) or facts.deprecated
                refuses = _refusal(facts, method=False)
            return Symbol(
                kind=SymbolKind.CLASS,
                dotted=dotted,
                file=table.path,
                line=binding.line,
                end_line=binding.end,
                owner=owner,
                refuses=refuses,
                deprecated=text,
                removed_in=removed_in(text),
                digest=self.store.digest(table.path, binding, dotted.rpartition(".")[2]),
            )
        if binding.kind in DEFINITIONS:
            return self._function(table, name, dotted, binding, owner)
        source = binding.source if value is None else value
        return Symbol(
            kind=SymbolKind.VALUE,
            dotted=dotted,
            file=table.path,
            line=binding.line,
            end_line=binding.end,
            owner=owner,
            value=source if len(source) <= _LONGEST else source[:_LONGEST] + "...",
        )

    def _function(self, table: ModuleTable, name: str, dotted: str, binding: NameBinding, owner: str) -> Symbol:
        facts = self.store.function(table, binding)
        nodes = map(parse_expression, binding.decorators)
        decorators = [dotted_name(getattr(node, "func", node)).rpartition(".")[2] for node in nodes]
        kind = binding_of(name, decorators) if owner else "function"
        text = decorated_text(binding.decorators) or facts.deprecated
        return Symbol(
            kind=SymbolKind.FUNCTION,
            dotted=dotted,
            file=table.path,
            line=binding.line,
            end_line=binding.end,
            owner=owner,
            binding=kind,
            is_async=facts.is_async,
            is_generator=facts.is_generator,
            is_abstract=any(decorator.startswith("abstract") for decorator in decorators),
            refuses=_refusal(facts, method=bool(owner)),
            deprecated=text,
            removed_in=removed_in(text),
            digest=self.store.digest(table.path, binding, name),
        )


def _refusal(facts: FunctionTable, *, method: bool) -> str:
    """Return what a function raises at once. A method that raises NotImplementedError may be a hook: "" for it."""
    if facts.refuses is None or (method and facts.refusal_type in ("NotImplementedError", "NotImplemented")):
        return ""
    return facts.refuses or facts.refusal_type


def binding_of(name: str, decorators: Iterable[str]) -> str:
    """How a function in a class body is bound, by the last parts of its decorators' names."""
    for decorator in decorators:
        if decorator in _BINDINGS:
            return _BINDINGS[decorator]
        if decorator.lower().endswith("property"):
            return "property"
    return _IMPLICIT.get(name, "method")


def decorated_text(decorators: Iterable[str]) -> str:
    """Text of a decorator that deprecates; "" if none does."""
    for source in decorators:
        if "eprecat" in source:
            node = parse_expression(source)
            text = of_decorator(node) if node is not None else None
            if text is not None:
                return text
    return ""


@dataclass(frozen=True, slots=True)
class Where:
    """Where an expression stands: what its names mean."""

    table: ModuleTable
    classes: tuple[int, ...] = ()
    """Lines of the class bodies around, outermost first."""
    name: str = ""
    """The name that the expression is bound to, and ..."""
    before: int = -1
    """... the number of earlier bindings of it that it sees; -1: all."""


class Model(Protocol):
    """A tree of source."""

    store: TreeStore
    definitions: SymbolDefinitions

    def resolve(self, dotted: str) -> Resolution:
        """Follow a dotted path, members of classes included."""
        ...

    def module(self, dotted: str) -> Resolution:
        """Find a module by its full name."""
        ...

    def attribute(self, module: str, name: str) -> Resolution:
        """Find an attribute of a module of the tree."""
        ...

    def expression(self, where: Where, source: str) -> Resolution:
        """Return what a plain chain of names stands for; open for any other expression."""
        ...

    def name_value(self, where: Where, name: str) -> object:
        """Return the constant that a name is bound to, a `Ref` or `Closure` where it is none."""
        ...

    def value_of(self, dotted: str) -> object:
        """Return the constant that a dotted path stands for."""
        ...

    def exports(self, table: ModuleTable) -> tuple[frozenset[str], bool]:
        """Names in a module's `__all__`, and whether that is all of it; (empty, False) for a module without."""
        ...

    def member(self, symbol: Symbol, name: str) -> Resolution:
        """Find an attribute of a module, class or instance."""
        ...

    def bases(self, symbol: Symbol) -> tuple[Sequence[Symbol], bool]:
        """Return the method resolution order."""
        ...

    def signature(self, symbol: Symbol) -> Signature | Open:
        """How something is called."""
        ...

    def keeps(self, where: Where, decorator: str) -> bool:
        """Whether a decorator leaves the signature of what it is put on."""
        ...


def external(resolution: Resolution) -> str:
    """Dotted path of what a name stands for, if that is of another distribution; "" otherwise."""
    if isinstance(resolution, Found) and resolution.symbol.kind is SymbolKind.VALUE and not resolution.symbol.file:
        return resolution.symbol.dotted
    return ""
