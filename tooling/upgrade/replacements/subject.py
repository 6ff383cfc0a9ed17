"""What exactly is gone, as the old release has it: from a use and the step at which the new release fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.symbols import Definite, Found, Instance, Open, SymbolKind, Values
from tooling.upgrade.uses import Attribute, Name

if TYPE_CHECKING:
    from tooling.upgrade.symbols import Absent, Symbol, Upstream
    from tooling.upgrade.uses import Derivation, Use


@dataclass(frozen=True, slots=True)
class Subject:
    """A symbol that the new release lacks."""

    path: str
    """As the use names it, or where it is defined: "vllm.utils.FlexibleArgumentParser"."""
    symbol: Symbol
    deprecated: str
    """What the old release says about it, or about the way to it."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        """The module it is defined in."""
        container = self.symbol.owner or self.symbol.dotted.rpartition(".")[0]
        return container if not self.symbol.owner else container.rpartition(".")[0]


def subject_of(absent: Absent, old: Upstream, use: Use) -> Subject | None:
    """The symbol a use is about. Where a whole module went, that is what the use wants of it."""
    gone = f"{absent.container}.{absent.name}"
    wanted = _spelled(use.target)
    paths = [wanted] if wanted.startswith(f"{gone}.") else []
    for path in [*paths, gone]:
        found = old.resolve(path)
        if isinstance(found, Found):
            return Subject(path, found.symbol, found.symbol.deprecated or found.deprecated)
    symbol = _followed(old, use.target, absent.name)
    return Subject(symbol.dotted, symbol, symbol.deprecated) if symbol is not None else None


def callable_of(absent: Absent, old: Upstream, use: Use) -> Symbol | None:
    """The function or class whose parameter is gone, if it is a parameter that is gone."""
    found = old.resolve(absent.container)
    if not isinstance(found, Found) or found.symbol.kind not in (SymbolKind.FUNCTION, SymbolKind.CLASS):
        return None
    if found.symbol.kind is SymbolKind.FUNCTION:
        return found.symbol
    if use.arguments is None or (isinstance(use.target, Attribute) and use.target.name == absent.name):
        return None
    # A class has members too: a name is a parameter of it only where something is passed for it.
    signature = old.signature(found.symbol)
    names = [] if isinstance(signature, Open) else [parameter.name for parameter in signature.parameters]
    named = {argument.name for argument in use.arguments.given}
    return found.symbol if absent.name in named or (absent.name in names and None in named) else None


def _followed(old: Upstream, target: Derivation, name: str) -> Symbol | None:
    if not isinstance(target, Attribute) or target.name != name:
        return None
    outcome = old.follow(target.base)
    for each in outcome.types if isinstance(outcome, Values) else ():
        if not isinstance(each, Definite | Instance) or each.symbol.kind not in (SymbolKind.CLASS, SymbolKind.MODULE):
            continue
        found = old.member(each.symbol, name)
        if isinstance(found, Found):
            return found.symbol
    return None


def _spelled(target: Derivation) -> str:
    if isinstance(target, Name):
        return target.dotted
    if isinstance(target, Attribute):
        inner = _spelled(target.base)
        return f"{inner}.{target.name}" if inner else ""
    return ""
