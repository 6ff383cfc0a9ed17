"""Find what a call may reach, and how that is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute
from tooling.python.symbols.symbol import (
    Absent,
    Definite,
    Found,
    Instance,
    Keyword,
    Open,
    Parameter,
    Signature,
    Symbol,
    SymbolKind,
    Values,
)
from tooling.upgrade.verdicts.targets import Resolved, locate

if TYPE_CHECKING:
    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Type
    from tooling.upgrade.releases import Upstream


@dataclass(frozen=True, slots=True)
class Callable_:
    """One thing that a call may reach."""

    met: Resolved
    symbol: Symbol
    """Of the function, or of the class that is constructed."""
    signature: Signature
    upstream: Upstream

    def accepts(self, keyword: str) -> Keyword:
        """What becomes of a keyword that only `**kwargs` takes."""
        return self.upstream.keyword(self.symbol, keyword)


@dataclass(frozen=True, slots=True)
class Reach:
    """All that a call may reach."""

    callables: tuple[Callable_, ...] = ()
    open: str = ""
    inferred: bool = False


def reach(upstream: Upstream, target: AccessPath) -> Reach:
    """What calling the target reaches. Values that cannot be called are left out: `kinds` speaks of those."""
    sight = locate(upstream, target)
    if not sight.found:
        return _by_value(upstream, target)
    callables: list[Callable_] = []
    unknown = sight.open
    for met in sight.found:
        found = _callable(upstream, met)
        if isinstance(found, Callable_):
            callables.append(found)
            continue
        valued = _by_value(upstream, target)
        callables.extend(each for each in valued.callables if each not in callables)
        unknown = unknown or valued.open
    return Reach(tuple(callables), unknown, sight.inferred)


def _callable(upstream: Upstream, met: Resolved) -> Callable_ | str:
    symbol = met.symbol
    if symbol.kind is SymbolKind.CLASS or (symbol.kind is SymbolKind.FUNCTION and "property" not in symbol.binding):
        signature = upstream.signature(symbol)
        if isinstance(signature, Open):
            return signature.why or "its signature is not known"
        return Callable_(
            met,
            symbol,
            replace(signature, parameters=(Parameter("self", "positional-only"), *signature.parameters))
            if met.unbound
            else signature,
            upstream,
        )
    return "a value is called"


def _by_value(upstream: Upstream, target: AccessPath) -> Reach:
    outcome = upstream.follow(target)
    if not isinstance(outcome, Values):
        return Reach(open=outcome.why if isinstance(outcome, Open) else "an earlier step fails")
    callables: list[Callable_] = []
    unknown = "other values are possible" if outcome.open else ""
    for each in outcome.types:
        found = _of_type(upstream, each)
        if not isinstance(found, Callable_) and isinstance(each, Definite):
            found = _of_held(upstream, target) or found
        if isinstance(found, Callable_):
            callables.append(found)
        else:
            unknown = unknown or found
    return Reach(tuple(callables), unknown, outcome.inferred)


def _of_held(upstream: Upstream, target: AccessPath) -> Callable_ | None:
    """The `__call__` of what a constant, field or property holds."""
    outcome = upstream.follow(Attribute(target, "__call__"))
    if not isinstance(outcome, Values) or outcome.open or len(outcome.types) != 1:
        return None
    (method,) = outcome.types
    found = _callable(upstream, Resolved(method.symbol)) if isinstance(method, Definite) else None
    return found if isinstance(found, Callable_) else None


def _of_type(upstream: Upstream, value: Type) -> Callable_ | str:
    match value:
        case Definite(symbol):
            return _callable(upstream, Resolved(symbol))
        case Instance(symbol):
            method = upstream.member(symbol, "__call__")
            if isinstance(method, Found):
                return _callable(upstream, Resolved(method.symbol))
            return f"{symbol.dotted} has no __call__" if isinstance(method, Absent) else "its __call__ is not known"
    return "a builtin value is called"
