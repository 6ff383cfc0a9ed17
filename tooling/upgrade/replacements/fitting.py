"""Whether something may be used as the old one was: as far as its signature and the arguments of one use tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.symbols import Open, SymbolKind
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.binding import bind

if TYPE_CHECKING:
    from tooling.upgrade.symbols import Parameter, Signature, Symbol, Upstream
    from tooling.upgrade.uses import Use

_CALLABLE = (SymbolKind.FUNCTION, SymbolKind.CLASS)


def fits(new: Upstream, symbol: Symbol, use: Use, renamed: tuple[str, str] = ("", "")) -> bool:
    """Whether the arguments of a use surely bind to a symbol of the new release. True for uses that pass none.

    renamed: (old, new) keyword."""
    if use.arguments is None or use.action not in (Action.CALL, Action.DECORATE):
        return True
    signature = new.signature(symbol) if symbol.kind in _CALLABLE else Open("it is no callable")
    if isinstance(signature, Open) or not signature.exact:
        return False
    given = tuple(
        replace(argument, name=renamed[1]) if argument.name and argument.name == renamed[0] else argument
        for argument in use.arguments.given
    )
    arguments = replace(use.arguments, given=given)
    return bind(signature, arguments, lambda name: new.keyword(symbol, name)).fits(len(given))


def is_compatible(old: Upstream, before: Symbol, new: Upstream, after: Symbol) -> bool:
    """Whether every call that fits the old one fits the new one, by parameters alone: none went, none is required that
    was not there. True for what is not called."""
    if before.kind is not after.kind:
        return False
    if before.kind not in _CALLABLE:
        return True
    left, right = old.signature(before), new.signature(after)
    if isinstance(left, Open) or isinstance(right, Open):
        return False
    had, has = _named(left), _named(right)
    required = {name for name, parameter in has.items() if parameter.default is None}
    return had.keys() <= has.keys() and required <= had.keys()


def _named(signature: Signature) -> dict[str, Parameter]:
    return {each.name: each for each in signature.parameters if each.kind not in ("star", "double-star")}
