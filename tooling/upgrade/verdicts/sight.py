"""Whether a use could be seen on both sides at all: "no findings, and 40 % open" is not "compatible"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.targets import spelled

if TYPE_CHECKING:
    from tooling.upgrade.verdicts.case import Case

_OF_VALUES = frozenset({Action.UNPACK, Action.SUBSCRIPT, Action.ITERATE, Action.AWAIT, Action.ENTER})


@dataclass(frozen=True, slots=True)
class Outlook:
    """How much is known of one use."""

    symbol: str
    why: str = ""
    """Why it is open on either side; "" if it is known."""
    unresolved: bool = False
    """The old version does not have it."""


def seen(case: Case) -> Outlook:
    """How much is known of a use on both sides."""
    use, before, after = case.use, case.before, case.after
    symbol = spelled(use.target, before.found[0].symbol.dotted if before.found else use.symbol_text)
    if use.action in _OF_VALUES:
        return Outlook(symbol)
    if before.absent and not before.found:
        return Outlook(symbol, unresolved=bool(after.absent) and not after.found)
    return Outlook(symbol, why="" if before.found and (after.found or after.absent) else before.open or after.open)
