"""Find what the last step of an access path meets, and what calling it reaches: definitions found or missing, and
whether that is all. Values of whole expressions come from `SymbolTree.follow`; here the definition itself counts (a
property, not what it returns)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
    Keyword,
    Open,
    Parameter,
    Signature,
    Symbol,
    SymbolKind,
    Values,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Resolution, Type
    from tooling.python.symbols.tree import SymbolTree

_HOLDERS = (SymbolKind.CLASS, SymbolKind.MODULE)
"""Definitions whose attributes are looked up in themselves."""
_PYTHON_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset)
} | {"MappingProxyType": MappingProxyType}


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
    """Of what is open: absent, unless a base class outside of the tree has it, or a `__getattr__` gives it."""
    cascade: bool = False
    """An earlier step fails already: that step has a use of its own."""
    inferred: bool = False
    """Known only through return statements of unannotated code."""

    @property
    def closed(self) -> bool:
        """Whether nothing else is possible."""
        return not self.open and not self.cascade


def locate(tree: SymbolTree[Any], access_path: AccessPath) -> Lookup:
    """Find the definitions that the last step of an access path reaches."""
    match access_path:
        case Name(dotted):
            holder, _, name = dotted.rpartition(".")
            found, held = tree.resolve(dotted), tree.resolve(holder)
            kind = held.symbol.kind if isinstance(held, Found) else None
            if isinstance(held, Found) and kind is SymbolKind.CLASS and name == "__init__":
                return _in_class(tree, held.symbol, name, instance=False)
            if isinstance(found, Open) and kind is SymbolKind.VALUE:
                return _member_of(tree, Name(holder), name)  # `up.REGISTRY.get`: what the constant holds says more
            return _lookup(found, receiver=holder, by_class=kind is SymbolKind.CLASS)
        case Attribute(base, name):
            return _member_of(tree, base, name)
        case Either(members):
            return _joined(locate(tree, member) for member in members)
        case ClientClass(bases=bases):
            return _joined(locate(tree, base) for base in bases)
        case Unknown():
            return Lookup(open="not ours, or beyond inference")
    return _valued(tree, access_path)


def _lookup(resolution: Resolution, *, receiver: str, by_class: bool = False) -> Lookup:
    match resolution:
        case Found(symbol, _through, deprecated):
            unbound = by_class and bool(symbol.owner) and symbol.binding == "method"
            return Lookup(found=(Resolved(symbol, unbound, deprecated, receiver),))
        case Absent():
            return Lookup(absent=(resolution,))
        case Open(why, beside, of_class):
            if by_class and of_class is not None:
                return Lookup(absent=(of_class,))
            return Lookup(open=why or "not known", beside=(beside,) if beside is not None else ())


def _member_of(tree: SymbolTree[Any], base: AccessPath, name: str) -> Lookup:
    match base:
        case SuperOf(bases):
            return _first_of(tree, bases, name, instance=True)
        case ClientClass(bases=bases):
            return _first_of(tree, bases, name, instance=False)
        case Called(ClientClass(bases=bases)) | InstanceOf(ClientClass(bases=bases)):
            return _first_of(tree, bases, name, instance=True)
    outcome = tree.follow(base)
    if not isinstance(outcome, Values):
        return _unmet(outcome)
    types = [each for each in outcome.types if each != Builtin("NoneType")]
    if not types:
        missing = (Absent("None", name),) if outcome.types and not outcome.open else ()
        stub = "a body that gives nothing may wait to be overridden" if outcome.inferred else ""
        return Lookup(absent=missing, open=stub if missing else "nothing is known of the value")
    if any(isinstance(each, Definite) and each.symbol.kind not in _HOLDERS for each in types):
        return _behind(tree, Attribute(base, name))
    lookup = _joined(_of_type(tree, each, name) for each in types)
    why = lookup.open or ("other values are possible" if outcome.open else "")
    return replace(lookup, open=why, inferred=lookup.inferred or outcome.inferred)


def _unmet(outcome: Gone | Open) -> Lookup:
    return Lookup(cascade=True) if isinstance(outcome, Gone) else Lookup(open=outcome.why or "not known")


def _behind(tree: SymbolTree[Any], access_path: Attribute) -> Lookup:
    """Find an attribute of what a constant, field or property holds: only the tree can say what that is."""
    outcome = tree.follow(access_path)
    if isinstance(outcome, Gone):
        if outcome.step != access_path:
            return Lookup(cascade=True)
        return Lookup(absent=(outcome.absent,), open="some values have it" if outcome.partly else "")
    held = tree.value(access_path.base) if isinstance(outcome, Open) else None
    if held is not None and held.types and not any(isinstance(each, Definite) for each in held.types):
        lookup = _joined(_of_type(tree, each, access_path.name) for each in held.types)
        why = lookup.open or ("other values are possible" if held.open else "")
        return replace(lookup, open=why, inferred=lookup.inferred or held.inferred)
    return _valued(tree, access_path)


def _of_type(tree: SymbolTree[Any], value: Type, name: str) -> Lookup:
    match value:
        case Instance(symbol):
            return _lookup(tree.member(symbol, name), receiver=symbol.dotted)
        case Definite(symbol) if symbol.kind is SymbolKind.CLASS:
            return _in_class(tree, symbol, name, instance=False)
        case Definite(symbol) if symbol.kind is SymbolKind.MODULE:
            return _lookup(tree.member(symbol, name), receiver=symbol.dotted)
        case Definite(symbol):
            return Lookup(open=f"an attribute of {symbol.dotted}, which is not a class")
        case Builtin(kind) | Container(name=kind):
            kind = (value.exact if isinstance(value, Container) else "") or kind
            python = _PYTHON_TYPES.get(kind)
            if python is None:
                return Lookup(open=f"an attribute of {kind}")
            if hasattr(python, name):
                return Lookup(found=(Resolved(tree.definitions.outside(f"builtins.{kind}.{name}"), receiver=kind),))
            return Lookup(absent=(Absent(container=kind, name=name),))


def _first_of(tree: SymbolTree[Any], bases: tuple[AccessPath, ...], name: str, *, instance: bool) -> Lookup:
    """As the method resolution order goes: the first base that has it; unknown ones before that make it open."""
    missing: list[Absent] = []
    for base in bases:
        here = locate(tree, base)
        if here.cascade or (here.absent and not here.found):
            return Lookup(cascade=True)
        if not here.closed or not here.found:
            return Lookup(open=here.open or "a base class is not known")
        for met in here.found:
            lookup = _in_class(tree, met.symbol, name, instance=instance)
            if lookup.open or lookup.found:
                return lookup
            missing.extend(lookup.absent)
    return Lookup(absent=tuple(missing[:1]), open="" if missing else "no base class is known")


def _in_class(tree: SymbolTree[Any], symbol: Symbol, name: str, *, instance: bool) -> Lookup:
    if symbol.kind is not SymbolKind.CLASS:
        return Lookup(open=f"{symbol.dotted} is not a class")
    member = tree.member(symbol, name)
    if name == "__init__" and not (isinstance(member, Found) and member.symbol.file):
        # Dataclasses and pydantic models have a constructor that nobody wrote: the class stands for it.
        return Lookup(found=(Resolved(symbol, unbound=not instance, receiver=symbol.dotted),))
    return _lookup(member, receiver=symbol.dotted, by_class=not instance)


def _valued(tree: SymbolTree[Any], access_path: AccessPath) -> Lookup:
    outcome = tree.follow(access_path)
    if not isinstance(outcome, Values):
        return _unmet(outcome)
    found: list[Resolved] = []
    for each in outcome.types:
        if isinstance(each, Definite):
            method = each.symbol.kind is SymbolKind.FUNCTION and each.symbol.binding == "method"
            unbound = method and not each.bound and bool(each.symbol.owner)
            found.append(Resolved(each.symbol, unbound, receiver=each.receiver))
    partly = outcome.open or len(found) < len(outcome.types) or not found
    return Lookup(found=tuple(found), open="other values are possible" if partly else "", inferred=outcome.inferred)


def _joined(lookups: Iterable[Lookup]) -> Lookup:
    whole = Lookup()
    for lookup in lookups:
        whole = Lookup(
            found=(*whole.found, *(met for met in lookup.found if met not in whole.found)),
            absent=(*whole.absent, *(gone for gone in lookup.absent if gone not in whole.absent)),
            open=whole.open or lookup.open,
            beside=(*whole.beside, *(gone for gone in lookup.beside if gone not in whole.beside)),
            cascade=whole.cascade or lookup.cascade,
            inferred=whole.inferred or lookup.inferred,
        )
    return whole


# ------------------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class Callable_:
    """One thing that a call may reach."""

    met: Resolved
    symbol: Symbol
    """Of the function, or of the class that is constructed."""
    signature: Signature
    tree: SymbolTree[Any]

    def accepts(self, keyword: str) -> Keyword:
        """Say what becomes of a keyword that only `**kwargs` takes."""
        return self.tree.keyword(self.symbol, keyword)


@dataclass(frozen=True, slots=True)
class Reach:
    """All that a call may reach."""

    callables: tuple[Callable_, ...] = ()
    open: str = ""
    inferred: bool = False


def reach(tree: SymbolTree[Any], target: AccessPath) -> Reach:
    """Find what calling the target reaches. Values that cannot be called are left out."""
    lookup = locate(tree, target)
    if not lookup.found:
        return _by_value(tree, target)
    callables: list[Callable_] = []
    unknown = lookup.open
    for met in lookup.found:
        found = _callable(tree, met)
        if isinstance(found, Callable_):
            callables.append(found)
            continue
        valued = _by_value(tree, target)
        callables.extend(each for each in valued.callables if each not in callables)
        unknown = unknown or valued.open
    return Reach(tuple(callables), unknown, lookup.inferred)


def reach_statement(tree: SymbolTree[Any], base: AccessPath) -> Reach:
    """Find what a class statement with a base reaches, which is called with the statement's keywords."""
    lookup = locate(tree, base)
    callables: list[Callable_] = []
    unknown = lookup.open
    for met in lookup.found:
        found = tree.signatures.of_statement(met.symbol) if met.symbol.kind is SymbolKind.CLASS else None
        if isinstance(found, tuple):
            callables.append(Callable_(met, *found, tree))
        else:
            unknown = unknown or "what its class statement calls is not known"
    return Reach(tuple(callables), unknown, lookup.inferred)


def _callable(tree: SymbolTree[Any], met: Resolved) -> Callable_ | str:
    symbol = met.symbol
    if symbol.kind is not SymbolKind.CLASS and (symbol.kind is not SymbolKind.FUNCTION or "property" in symbol.binding):
        return "a value is called"
    signature = tree.signature(symbol)
    if isinstance(signature, Open):
        return signature.why or "its signature is not known"
    if met.unbound:
        signature = replace(signature, parameters=(Parameter("self", "positional-only"), *signature.parameters))
    return Callable_(met, symbol, signature, tree)


def _by_value(tree: SymbolTree[Any], target: AccessPath) -> Reach:
    outcome = tree.follow(target)
    if not isinstance(outcome, Values):
        return Reach(open=outcome.why if isinstance(outcome, Open) else "an earlier step fails")
    callables: list[Callable_] = []
    unknown = "other values are possible" if outcome.open else ""
    for each in outcome.types:
        found = _called_type(tree, each)
        if not isinstance(found, Callable_) and isinstance(each, Definite):
            found = _of_held(tree, target) or found
        if isinstance(found, Callable_):
            callables.append(found)
        else:
            unknown = unknown or found
    return Reach(tuple(callables), unknown, outcome.inferred)


def _of_held(tree: SymbolTree[Any], target: AccessPath) -> Callable_ | None:
    """Find the `__call__` of what a constant, field or property holds."""
    outcome = tree.follow(Attribute(target, "__call__"))
    if not isinstance(outcome, Values) or outcome.open or len(outcome.types) != 1:
        return None
    (method,) = outcome.types
    found = _callable(tree, Resolved(method.symbol)) if isinstance(method, Definite) else None
    return found if isinstance(found, Callable_) else None


def _called_type(tree: SymbolTree[Any], value: Type) -> Callable_ | str:
    match value:
        case Definite(symbol):
            return _callable(tree, Resolved(symbol))
        case Instance(symbol):
            method = tree.member(symbol, "__call__")
            if isinstance(method, Found):
                return _callable(tree, Resolved(method.symbol))
            return f"{symbol.dotted} has no __call__" if isinstance(method, Absent) else "its __call__ is not known"
    return "a builtin value is called"
