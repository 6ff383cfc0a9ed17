"""Find what the last step of an access path meets in one release: definitions found or missing, and whether that
is all. Values of whole expressions come from `Upstream.follow`; here the definition itself counts (a property, not
what it returns)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import (
    Attribute,
    Called,
    ClientClass,
    Either,
    InstanceOf,
    Name,
    SuperOf,
    Unknown,
)
from tooling.python.symbols.symbol import (
    Absent,
    Builtin,
    Container,
    Definite,
    Found,
    Gone,
    Instance,
    Open,
    Symbol,
    SymbolKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Resolution, Type
    from tooling.upgrade.releases import Upstream

_HOLDERS = (SymbolKind.CLASS, SymbolKind.MODULE)
"""Definitions whose attributes are looked up in themselves."""
_PYTHON_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset)
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A definition that was found."""

    symbol: Symbol
    unbound: bool = False
    """A method taken from its class: `self` is the first argument."""
    deprecated: str = ""
    """The way to it is."""
    receiver: str = ""
    """Dotted path of the class or module it was taken from."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the last step of an access path meets."""

    found: tuple[Resolved, ...] = ()
    absent: tuple[Absent, ...] = ()
    open: str = ""
    """Why there may be more; "" if this is all."""
    beside: tuple[Absent, ...] = ()
    """Of what is open: absent, unless a base class outside of the release has it."""
    cascade: bool = False
    """An earlier step fails already: that step has a use of its own."""
    inferred: bool = False
    """Known only through return statements of unannotated code."""

    @property
    def closed(self) -> bool:
        """Whether nothing else is possible."""
        return not self.open and not self.cascade


def locate(upstream: Upstream, access_path: AccessPath) -> Lookup:
    """The definitions that the last step of an access path reaches."""
    match access_path:
        case Name(dotted):
            return _sight(upstream.resolve(dotted), receiver=dotted.rpartition(".")[0], by_class=True)
        case Attribute(base, name):
            return _member_of(upstream, base, name)
        case Either(members):
            return _joined(locate(upstream, member) for member in members)
        case ClientClass(bases=bases):
            return _joined(locate(upstream, base) for base in bases)
        case Unknown():
            return Lookup(open="not ours, or beyond inference")
    return _valued(upstream, access_path)


def _sight(resolution: Resolution, *, receiver: str, by_class: bool = False) -> Lookup:
    match resolution:
        case Found(symbol, _through, deprecated):
            unbound = by_class and bool(symbol.owner) and symbol.binding == "method"
            return Lookup(found=(Resolved(symbol, unbound, deprecated, receiver),))
        case Absent():
            return Lookup(absent=(resolution,))
        case Open(why, beside):
            return Lookup(open=why or "not known", beside=(beside,) if beside is not None else ())


def _member_of(upstream: Upstream, base: AccessPath, name: str) -> Lookup:
    match base:
        case SuperOf(bases):
            return _first_of(upstream, bases, name, instance=True)
        case ClientClass(bases=bases):
            return _first_of(upstream, bases, name, instance=False)
        case Called(ClientClass(bases=bases)) | InstanceOf(ClientClass(bases=bases)):
            return _first_of(upstream, bases, name, instance=True)
    outcome = upstream.follow(base)
    if isinstance(outcome, Gone):
        return Lookup(cascade=True)
    if isinstance(outcome, Open):
        return Lookup(open=outcome.why or "not known")
    types = [each for each in outcome.types if each != Builtin("NoneType")]
    if not types:
        return Lookup(open="nothing is known of the value")
    if any(isinstance(each, Definite) and each.symbol.kind not in _HOLDERS for each in types):
        return _behind(upstream, Attribute(base, name))
    sight = _joined(_of_type(upstream, each, name) for each in types)
    why = sight.open or ("other values are possible" if outcome.open else "")
    return replace(sight, open=why, inferred=sight.inferred or outcome.inferred)


def _behind(upstream: Upstream, access_path: Attribute) -> Lookup:
    """An attribute of what a constant, field or property holds: only the release can say what that is."""
    outcome = upstream.follow(access_path)
    if isinstance(outcome, Gone):
        if outcome.step != access_path:
            return Lookup(cascade=True)
        return Lookup(absent=(outcome.absent,), open="some values have it" if outcome.partly else "")
    return _valued(upstream, access_path)


def _of_type(upstream: Upstream, value: Type, name: str) -> Lookup:
    match value:
        case Instance(symbol):
            return _sight(upstream.member(symbol, name), receiver=symbol.dotted)
        case Definite(symbol) if symbol.kind in _HOLDERS:
            by_class = symbol.kind is SymbolKind.CLASS
            return _sight(upstream.member(symbol, name), receiver=symbol.dotted, by_class=by_class)
        case Definite(symbol):
            return Lookup(open=f"an attribute of {symbol.dotted}, which is not a class")
        case Builtin(kind) | Container(name=kind):
            python = _PYTHON_TYPES.get(kind)
            if python is None or hasattr(python, name):
                return Lookup(open=f"an attribute of {kind}")
            return Lookup(absent=(Absent(container=kind, name=name),))


def _first_of(upstream: Upstream, bases: tuple[AccessPath, ...], name: str, *, instance: bool) -> Lookup:
    """As the method resolution order goes: the first base that has it; unknown ones before that make it open."""
    missing: list[Absent] = []
    for base in bases:
        here = locate(upstream, base)
        if here.cascade or (here.absent and not here.found):
            return Lookup(cascade=True)
        if not here.closed or not here.found:
            return Lookup(open=here.open or "a base class is not known")
        for met in here.found:
            sight = _in_class(upstream, met.symbol, name, instance=instance)
            if sight.open or sight.found:
                return sight
            missing.extend(sight.absent)
    return Lookup(absent=tuple(missing[:1]), open="" if missing else "no base class is known")


def _in_class(upstream: Upstream, symbol: Symbol, name: str, *, instance: bool) -> Lookup:
    if symbol.kind is not SymbolKind.CLASS:
        return Lookup(open=f"{symbol.dotted} is not a class")
    if name == "__init__" and instance and not isinstance(upstream.member(symbol, name), Found):
        # Dataclasses and pydantic models have a constructor that nobody wrote: the class stands for it.
        return Lookup(found=(Resolved(symbol, receiver=symbol.dotted),))
    return _sight(upstream.member(symbol, name), receiver=symbol.dotted, by_class=not instance)


def _valued(upstream: Upstream, access_path: AccessPath) -> Lookup:
    outcome = upstream.follow(access_path)
    if isinstance(outcome, Gone):
        return Lookup(cascade=True)
    if isinstance(outcome, Open):
        return Lookup(open=outcome.why or "not known")
    found: list[Resolved] = []
    for each in outcome.types:
        if isinstance(each, Definite):
            method = each.symbol.kind is SymbolKind.FUNCTION and each.symbol.binding == "method"
            unbound = method and not each.bound and bool(each.symbol.owner)
            found.append(Resolved(each.symbol, unbound, receiver=each.receiver))
    partly = outcome.open or len(found) < len(outcome.types) or not found
    return Lookup(found=tuple(found), open="other values are possible" if partly else "", inferred=outcome.inferred)


def _joined(sights: Iterable[Lookup]) -> Lookup:
    whole = Lookup()
    for sight in sights:
        whole = Lookup(
            found=(*whole.found, *(met for met in sight.found if met not in whole.found)),
            absent=(*whole.absent, *(gone for gone in sight.absent if gone not in whole.absent)),
            open=whole.open or sight.open,
            beside=(*whole.beside, *(gone for gone in sight.beside if gone not in whole.beside)),
            cascade=whole.cascade or sight.cascade,
            inferred=whole.inferred or sight.inferred,
        )
    return whole
