"""The same name is another kind of thing: property and method, class and function, value and function; async or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, Called, Name
from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.symbol import Container, Found, Instance, Open, SymbolKind, Values
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import UseProblem, definition, mentions

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
    """An attribute is assigned that is a property without a setter now."""
    target = case.use.target
    if case.use.action is not Action.ASSIGN or not isinstance(target, Attribute) or not case.before.found:
        return
    setter = rf"@{target.name}\.setter|\b{target.name}\s*=\s*property\("
    for before, after in case.pairs():
        now_property = after.symbol.binding == "property" and not _is_property(before.symbol)
        if now_property and not mentions(case.new, after.symbol.file, setter):
            message = f"{case.symbol} is a property without a setter now: it cannot be assigned"
            yield _problem(case, FindingKind.KIND_CHANGED, before, after, message, "AttributeError")


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
        if old.kind is SymbolKind.CLASS and new.kind is SymbolKind.FUNCTION:
            return f"{name} is a function now; only a class can stand here", "TypeError", None
        return None
    if (
        action is Action.READ
        and _is_property(old)
        and new.kind is SymbolKind.FUNCTION
        and new.binding in ("method", "classmethod", "staticmethod")
    ):
        call = Replacement(f"{new.name}()", "the property became a method without required parameters", certain=True)
        message = f"{name} is a method now: this reads the method, not its value"
        return message, "", None if _needs_arguments(case.new, new) else call
    if (
        action is Action.READ
        and _is_literal(old)
        and (new.kind is SymbolKind.CLASS or (new.kind is SymbolKind.FUNCTION and not _is_property(new)))
    ):
        bare = new.kind is SymbolKind.FUNCTION and not _needs_arguments(case.new, new)
        ask = Replacement(f"{new.name}()", "the value became a function without required parameters", certain=True)
        return f"{name} is a {new.kind} now, and was the value {old.value}", "", ask if bare else None
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
    awaited = case.use.awaited
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
