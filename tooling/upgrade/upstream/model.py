"""Follow names through one release: imports, tables of modules, expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import absolute, module_name, package_of
from tooling.upgrade.symbols import Found, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.tables import ModuleTable
    from tooling.upgrade.symbols import Open, Resolution, Signature, Symbol
    from tooling.upgrade.upstream.definitions import SymbolDefinitions
    from tooling.upgrade.upstream.store import ReleaseStore


_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|(?:\\\n|[^\n#;])+)", re.MULTILINE)
_NAME = re.compile(rb"([A-Za-z_]\w*)(?:[ \t]+as[ \t]+\w+)?")
_COMMENT = re.compile(rb"#[^\n]*|\\\n")


def imports_of(store: ReleaseStore) -> dict[str, dict[str, list[str]]]:
    """Importing module -> module -> names, of each `from a import b`."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in store.release.files():
        importer, package = module_name(path)[0], package_of(path)
        for match in _FROM.finditer(store.release.read(path)):
            spelt = match[1].decode()
            module = absolute(package, len(spelt) - len(spelt.lstrip(".")), spelt.lstrip("."))
            if module:
                names = _COMMENT.sub(b" ", match[2]).strip(b"() \t\n")
                taken = found.setdefault(importer, {}).setdefault(module, [])
                taken.extend(name.decode() for name in _NAME.findall(names))
    return found


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

    store: ReleaseStore
    definitions: SymbolDefinitions

    def resolve(self, dotted: str) -> Resolution:
        """A dotted path, members of classes included."""
        ...

    def module(self, dotted: str) -> Resolution:
        """A module by its full name."""
        ...

    def attribute(self, module: str, name: str) -> Resolution:
        """An attribute of a module of the release."""
        ...

    def expression(self, where: Where, source: str) -> Resolution:
        """What a plain chain of names stands for; open for any other expression."""
        ...

    def constant(self, where: Where, source: str) -> object:
        """The value of an expression, `terms.UNKNOWN` where it is not known."""
        ...

    def name_value(self, where: Where, name: str) -> object:
        """The constant that a name is bound to, a `Ref` or `Closure` where it is none."""
        ...

    def value_of(self, dotted: str) -> object:
        """The constant that a dotted path stands for."""
        ...

    def exports(self, table: ModuleTable) -> tuple[frozenset[str], bool]:
        """Names in a module's `__all__`, and whether that is all of it; (empty, False) for a module without."""
        ...

    def member(self, symbol: Symbol, name: str) -> Resolution:
        """An attribute of a module, class or instance."""
        ...

    def bases(self, symbol: Symbol) -> tuple[Sequence[Symbol], bool]:
        """The method resolution order."""
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
