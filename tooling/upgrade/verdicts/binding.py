"""Bind the arguments of a call to the signatures of both releases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    from collections.abc import Callable, Mapping

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Type
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import PassedArguments


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


STAR = "*"
"""A slot: the argument lands in `*args`."""
STARS = "**"
"""A slot: the argument lands in `**kwargs`, or in the extra fields of a pydantic model."""


@dataclass(frozen=True, slots=True)
class BoundCall:
    """How a call fits a signature."""

    slots: Mapping[int, str]
    """Index of an argument to the parameter it lands on; STAR, STARS. Arguments that land nowhere are missing."""
    keywords: Mapping[int, Keyword] = field(default_factory=dict)
    """What becomes of keywords that no parameter is named after."""
    by_keyword_only: frozenset[int] = frozenset()
    """Keywords that name a positional-only parameter."""
    missing: tuple[Parameter, ...] = ()
    """Parameters without default that nothing is passed for, and nothing hidden may be."""
    omitted: frozenset[str] = frozenset()
    """Parameters that surely nothing is passed for."""

    def fits(self, count: int) -> bool:
        """Whether a call of so many arguments raises no TypeError."""
        landed = len(self.slots) == count and Keyword.REFUSED not in self.keywords.values()
        return landed and not self.missing and len(self._named()) == len(set(self._named()))

    def _named(self) -> list[str]:
        return [slot for slot in self.slots.values() if slot not in (STAR, STARS)]


def bind(signature: Signature, arguments: PassedArguments, accepts: Callable[[str], Keyword]) -> BoundCall:
    """accepts: what becomes of a keyword that only `**kwargs` can take."""
    slots: dict[int, str] = {}
    keywords: dict[int, Keyword] = {}
    wrong: set[int] = set()
    for index, argument in enumerate(arguments.given):
        if argument.name is None:
            by_position = positional(signature)
            fits = argument.position < len(by_position)
            slot = by_position[argument.position].name if fits else STAR if takes(signature, "star") else ""
        else:
            parameter = named(signature, argument.name)
            slot = parameter.name if parameter is not None and parameter.kind != "positional-only" else ""
            if not slot and parameter is not None and not takes(signature, "double-star"):
                wrong.add(index)
            elif not slot:
                if signature.extra:
                    beyond = {"forbid": Keyword.REFUSED, "allow": Keyword.READ}.get(signature.extra, Keyword.IGNORED)
                else:
                    beyond = accepts(argument.name) if takes(signature, "double-star") else Keyword.REFUSED
                keywords[index] = beyond
                slot = "" if keywords[index] is Keyword.REFUSED else STARS
        if slot:
            slots[index] = slot
    filled = set(slots.values())
    omitted = [each for each in signature.parameters if _may_be_absent(each, arguments) and each.name not in filled]
    missing = tuple(each for each in omitted if each.default is None) if not arguments.partial else ()
    return BoundCall(slots, keywords, frozenset(wrong), missing, frozenset(each.name for each in omitted))


def positional(signature: Signature) -> list[Parameter]:
    """Parameters that take positional arguments, in order."""
    return [each for each in signature.parameters if each.kind in ("positional", "positional-only")]


def named(signature: Signature, name: str) -> Parameter | None:
    """The parameter of that name, aliases included; None if there is none."""
    for each in signature.parameters:
        if each.kind not in ("star", "double-star") and (each.name == name or name in each.aliases):
            return each
    return None


def takes(signature: Signature, kind: str) -> bool:
    """Whether it has `*args` ("star") or `**kwargs` ("double-star")."""
    return any(each.kind == kind for each in signature.parameters)


def _may_be_absent(parameter: Parameter, arguments: PassedArguments) -> bool:
    """Whether nothing hidden (`*x`, `**x`) may be passed for a parameter that no visible argument lands on."""
    if parameter.kind in ("star", "double-star"):
        return False
    if arguments.has_star and parameter.kind in ("positional", "positional-only"):
        return False
    return not (arguments.has_double_star and parameter.kind != "positional-only")
