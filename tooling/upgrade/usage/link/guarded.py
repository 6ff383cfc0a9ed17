"""Functions that only guards lead to: a module's `patch_for_v1`, named nowhere but where the version is below 2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.usage.guards.values import all_of, any_of, is_decided
from tooling.upgrade.uses import Constant

if TYPE_CHECKING:
    from tooling.upgrade.usage.link.context import Contexts
    from tooling.upgrade.usage.link.store import Store
    from tooling.upgrade.uses import Condition


class GuardedFunctions:
    """What else must hold inside of functions, by all places that name them."""

    def __init__(self, store: Store, contexts: Contexts) -> None:
        self._store = store
        self._contexts = contexts
        self._known: dict[tuple[str, str], tuple[Condition, ...]] = {}

    def conditions(self, path: str, function: str) -> tuple[Condition, ...]:
        """Conditions that come with a function of a module, or with one inside of it; () if there are none."""
        key = path, function.partition(".")[0]
        if key not in self._known:
            self._known[key] = self._looked_up(*key)
        return self._known[key]

    def _looked_up(self, path: str, name: str) -> tuple[Condition, ...]:
        facts = self._store.facts(path)
        function = facts.functions.get(name)
        if function is None or function.owner or function.decorators or name in (facts.exports or ()):
            return ()
        mentions = facts.mentions.get(name, {})
        outside = [each for each in mentions.values() if facts.contexts[each][3].partition(".")[0] != name]
        ways: list[Condition] = []
        for context in dict.fromkeys(outside):
            conditions = [one for one in self._contexts.conditions(path, context) if _says_something(one)]
            if not conditions:
                return ()
            ways.append(all_of(conditions))
        if not ways or self._is_named_elsewhere(path, name, len(mentions)):
            return ()
        return (any_of(ways),)

    def _is_named_elsewhere(self, path: str, name: str, mentions: int) -> bool:
        """By text: in another file, in a string, or in a way that was not followed."""
        checkout = self._store.checkout
        pattern = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        if len(pattern.findall(checkout.content(path))) > 1 + mentions:
            return True
        return any(pattern.search(checkout.content(other)) for other in checkout.paths if other != path)


def _says_something(condition: Condition) -> bool:
    return is_decided(condition) and not isinstance(condition, Constant)
