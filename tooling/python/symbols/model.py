"""What the parts of this package ask of each other, and where an expression stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tooling.python.symbols.symbol import Found, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.symbols.definitions import SymbolDefinitions
    from tooling.python.symbols.store import TreeStore
    from tooling.python.symbols.symbol import Open, Resolution, Signature, Symbol
    from tooling.python.tables import ModuleTable


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
    """A release."""

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

    def constant(self, where: Where, source: str) -> object:
        """Return the value of an expression, UNKNOWN where it is not known."""
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
