"""The same name is another kind of thing: property and method, class and function, value and function; async or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, Called, ClientClass, Name, SuperOf
from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.symbol import Container, Found, Instance, Open, SymbolKind, Values
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import UseProblem, definition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.symbol import Symbol
    from tooling.python.symbols.targets import Resolved
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.verdicts.case import JudgedUse

_NEEDS_CLASS = frozenset({Action.SUBCLASS, Action.ISINSTANCE, Action.EXCEPT})


def kind_changes(case: JudgedUse) -> Iterator[UseProblem]:
    """What is done with the name does not go with what it is now."""
    for before, after in case.pairs() if case.before.found else ():
        found = _contradiction(case, before.symbol, after.symbol)
        if found is None:
            continue
        message, raises, replacement = found
        yield _problem(case, FindingKind.KIND_CHANGED, before, after, message, raises, replacement)


def read_only(case: JudgedUse) -> Iterator[UseProblem]:
    """An attribute is set or deleted that was free to be, and is not any more: a property, a frozen class, slots."""
    target = case.use.target
    if not isinstance(target, Attribute):
        return
    verb = "setter" if case.use.action is Action.ASSIGN else "deleter"
    derived = isinstance(target.base, SuperOf) or isinstance(getattr(target.base, "base", None), ClientClass)
    place = case.target_after
    assert isinstance(place, Attribute), "translated from an attribute"

    before, after = case.old.value(target.base), case.new.value(place.base)
    if before is None or after is None or not after.types:
        return

    def refused(upstream: Upstream, values: Values) -> list[str | None]:
        return [
            upstream.setting_refused(each.symbol, target.name, verb, derived=derived)
            if isinstance(each, Instance)
            else None
            for each in values.types
        ]

    reasons = refused(case.new, after)
    if not any(reasons) or any(each != "" for each in refused(case.old, before)):
        return
    done = "assigned" if verb == "setter" else "deleted"
    yield case.problem(
        FindingKind.KIND_CHANGED,
        AuditSeverity.BREAKING,
        f"{case.symbol} cannot be {done} any more: {next(filter(None, reasons))}",
        before=case.before.found[0].symbol if case.before.found else None,
        after=case.after.found[0].symbol if case.after.found else None,
        whole=all(reasons) and not after.open and not before.open,
        raises="AttributeError",
        replacement=_as_a_copy(case.new, after, target.name) if verb == "setter" else None,
    )


_COPIES = {
    "attrs": "attrs.evolve(old, {name}=...)",
    "dataclass": "dataclasses.replace(old, {name}=...)",
    "namedtuple": "old._replace({name}=...)",
    "pydantic": 'old.model_copy(update={{"{name}": ...}})',
}
"""How a copy with another value is made of what cannot be changed, by the style of its class."""


def _as_a_copy(new: Upstream, value: Values, name: str) -> Replacement | None:
    """How to make a changed copy of what cannot be changed, or the constructor that takes the value."""
    if len(value.types) != 1 or not isinstance(value.types[0], Instance):
        return None
    symbol = value.types[0].symbol
    style, signature = new.fields.style(symbol), new.signature(symbol)
    if isinstance(signature, Open) or all(each.name != name for each in signature.parameters):
        return None
    copy = _COPIES.get(style.name) if style is not None else None
    if copy is not None:
        return Replacement(copy.format(name=name), "a copy with another value", certain=False)
    return Replacement(f"{symbol.name}({name}=...)", "its constructor takes the value", certain=False)


def async_changes(case: JudgedUse) -> Iterator[UseProblem]:
    """A call whose result must be awaited now, or may not be awaited any more."""
    if case.use.action is not Action.CALL or not case.before.found:
        return
    for before, after in case.pairs():
        message = _async_contradiction(case, before.symbol, after.symbol)
        if message:
            raises = "TypeError" if case.use.awaited else ""
            styles = _call_style(before.symbol), _call_style(after.symbol)
            awaited = styles[1] == "coroutine"
            why = "its result must be awaited" if awaited else "its result is there at once"
            text = f"{'await ' if awaited else ''}{after.symbol.name}(...)"
            # Who looped over a generator does not loop over what a coroutine gives
            replacement = Replacement(text, why, certain=set(styles) == {"plain", "coroutine"})
            yield _problem(case, FindingKind.ASYNC_CHANGED, before, after, message, raises, replacement)


def _contradiction(case: JudgedUse, old: Symbol, new: Symbol) -> tuple[str, str, Replacement | None] | None:
    """What no longer goes, the exception it raises, and what to write."""
    action = case.use.action
    name = case.symbol
    if action in _NEEDS_CLASS:
        why = classless(case, old, new)
        return (why, "TypeError", None) if why else None
    read = case.reads(old.name)
    raises = "" if action is Action.READ else "TypeError"
    held = case.old.value(case.use.target) if read and _is_property(old) else None
    gave_function = held is not None and any(getattr(each, "name", "") == "function" for each in held.types)
    if (
        read
        and _is_property(old)
        and new.kind is SymbolKind.FUNCTION
        and new.binding in ("method", "classmethod", "staticmethod")
        and not gave_function  # which is called as a method is
    ):
        call = Replacement(f"{new.name}()", "the property became a method without required parameters", certain=True)
        message = f"{name} is a method now: this reads the method, not its value"
        return message, raises, None if _needs_arguments(case.new, new) else call
    if (
        read
        and _is_literal(old)
        and (new.kind is SymbolKind.CLASS or (new.kind is SymbolKind.FUNCTION and not _is_property(new)))
    ):
        bare = new.kind is SymbolKind.FUNCTION and not _needs_arguments(case.new, new)
        ask = Replacement(f"{new.name}()", "the value became a function without required parameters", certain=True)
        return f"{name} is a {new.kind} now, and was the value {old.value}", raises, ask if bare else None
    unbound = new.binding == "method" and any(met.unbound and met.symbol == new for met in case.after.found)
    if action is Action.CALL and old.binding in ("staticmethod", "classmethod") and unbound:
        message = f"{name} is a method of instances now: called on the class it lacks one"
        return message, "TypeError", _of_an_instance(new)
    if action in (Action.CALL, Action.READ) and _is_of_instances(case, old, new):
        message = f"{name} is set on instances only now: the class has none"
        return message, "AttributeError", _of_an_instance(new)
    if action is Action.CALL:
        return _uncallable(case, old, new)
    return None


def classless(case: JudgedUse, old: Symbol, new: Symbol) -> str:
    """Why it cannot stand where a class must; "" if it can."""
    name, action = case.symbol, case.use.action
    if old.kind is not SymbolKind.CLASS:
        return ""
    if new.kind is SymbolKind.FUNCTION:
        return f"{name} is a function now; only a class can stand here"
    if new.kind is SymbolKind.VALUE:
        held = case.new.value(case.target_after)
        made = held is not None and held.types and all(isinstance(each, Instance) for each in held.types)
        return f"{name} is an instance now; only a class can stand here" if made and held and not held.open else ""
    if new.kind is not SymbolKind.CLASS:
        return ""
    if action is Action.SUBCLASS:
        has = case.new.fields.has_members(new) and not case.old.fields.has_members(old)
        return f"{name} is an enumeration with members now, which nothing can derive from" if has else ""
    unasked = action is Action.ISINSTANCE and case.new.operators.unmade(new) == "it is a protocol"
    if unasked and not case.old.operators.unmade(old) and "runtime_checkable" not in definition(case.new, new):
        return f"{name} is a protocol now, which instances cannot be checked against"
    return ""


def _of_an_instance(new: Symbol) -> Replacement:
    owner = new.owner.rpartition(".")[2]
    return Replacement(f"{owner}(...).{new.name}", "only instances have it", certain=False)


def _is_of_instances(case: JudgedUse, old: Symbol, new: Symbol) -> bool:
    """Whether an attribute that is read from the class itself was a value of the class, and is assigned to `self`."""
    target = case.use.target
    holder = target.base if isinstance(target, Attribute) else target
    if not isinstance(holder, Name) or old.kind is not SymbolKind.VALUE or new.kind is not SymbolKind.VALUE:
        return False
    found = case.new.resolve(holder.dotted)
    if isinstance(target, Attribute) and not (isinstance(found, Found) and found.symbol.kind is SymbolKind.CLASS):
        return False  # read from an instance
    owner, name = new.owner, new.name
    before = case.old.member_names().get(name, {}).get(old.owner, 0)
    return bool(owner) and before != 0 and case.new.member_names().get(name, {}).get(owner) == 0


def _uncallable(case: JudgedUse, old: Symbol, new: Symbol) -> tuple[str, str, Replacement | None] | None:
    if old.kind not in (SymbolKind.FUNCTION, SymbolKind.CLASS) or _is_property(old):
        return None
    name = case.symbol
    if old.kind is new.kind is SymbolKind.CLASS and not isinstance(case.use.target, ClientClass):
        why = case.new.operators.unmade(new)
        return (
            (f"{name} cannot be made: {why}", "TypeError", None) if why and not case.old.operators.unmade(old) else None
        )
    if _is_property(new) and not _gives_callable(case):
        bare = case.use.arguments is not None and not case.use.arguments.given
        read = Replacement(new.name, "the method became a property", certain=True) if bare else None
        return f"{name} is a property now: its value cannot be called", "TypeError", read
    if _is_literal(new):
        bare = case.use.arguments is not None and not case.use.arguments.given
        read = Replacement(new.name, "the function became a value", certain=True) if bare else None
        return f"{name} is the value {new.value} now, and cannot be called", "TypeError", read
    if new.kind is SymbolKind.MODULE:
        return f"{name} is a module now, and cannot be called", "TypeError", None
    return None


def _gives_callable(case: JudgedUse) -> bool:
    """Whether a property's value may be called; an unannotated one that used to be a method is taken at its word."""
    outcome = case.new.follow(case.target_after)
    if isinstance(outcome, Values) and outcome.types and not outcome.open:
        return bool(case.called_after.callables)
    return any("Callable" in definition(case.new, met.symbol) for met in case.after.found)


def _async_contradiction(case: JudgedUse, old: Symbol, new: Symbol) -> str:
    was, now = _call_style(old), _call_style(new)
    # Executors and partials do not call on the spot: `awaited` is about something else
    if was == now or "" in (was, now) or (case.use.arguments is not None and case.use.arguments.partial):
        return ""
    awaited, target = case.use.awaited, case.use.target
    inherited = isinstance(target, Attribute) and isinstance(target.base, SuperOf) and target.name
    if inherited and not awaited and case.use.function.rpartition(".")[2] == inherited:
        return ""  # an override passes on what the base gives; if it does not, it is an override that drifts
    if awaited and was == "coroutine":
        return f"{case.symbol} is {_STYLES[now]} now: its result cannot be awaited"
    if awaited is not True and was != "coroutine" and now == "coroutine" and not _awaitable(case):
        return f"{case.symbol} is asynchronous now: without `await` nothing runs"
    return ""


_STYLES = {
    "plain": "an ordinary function",
    "generator": "a generator",
    "async-generator": "an asynchronous generator",
    "coroutine": "asynchronous",
}


def _call_style(symbol: Symbol) -> str:
    """What calling it gives; "" where a decorator may have changed that."""
    if symbol.kind is not SymbolKind.FUNCTION or _is_property(symbol):
        return ""
    if symbol.is_async:
        return "async-generator" if symbol.is_generator else "coroutine"
    return "generator" if symbol.is_generator else "plain"


def _awaitable(case: JudgedUse) -> bool:
    """Whether the old function gave something to await, though it was no coroutine function; then this code knows.
    Classes of the release may be awaitable too: not judged here."""
    outcome = case.old.follow(Called(case.use.target))
    return isinstance(outcome, Values) and any(
        (isinstance(each, Container) and each.name == "awaitable")
        or (isinstance(each, Instance) and bool(getattr(case.old.member(each.symbol, "__await__"), "symbol", None)))
        for each in outcome.types
    )


def _problem(
    case: JudgedUse,
    kind: FindingKind,
    before: Resolved,
    after: Resolved,
    message: str,
    raises: str,
    replacement: Replacement | None = None,
) -> UseProblem:
    whole = len(case.after.found) == 1 and not case.after.absent and case.after.closed
    return case.problem(
        kind,
        AuditSeverity.BREAKING,
        message,
        before=before.symbol,
        after=after.symbol,
        whole=whole,
        raises=raises,
        replacement=replacement,
        fixable=whole,
    )


def _is_property(symbol: Symbol) -> bool:
    return symbol.kind is SymbolKind.FUNCTION and "property" in symbol.binding


def _is_literal(symbol: Symbol) -> bool:
    return symbol.kind is SymbolKind.VALUE and literal(symbol.value) is not UNKNOWN


def _needs_arguments(upstream: Upstream, symbol: Symbol) -> bool:
    signature = upstream.signature(symbol)
    if isinstance(signature, Open):
        return True
    return any(each.default is None and each.kind not in ("star", "double-star") for each in signature.parameters)
