"""Where a use stands: its conditions and attempts, those of the bindings that lead to it included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.access_paths import Name
from tooling.python.conditions import Condition, Constant, is_decidable, negated
from tooling.upgrade.usage.link.classes import Ours
from tooling.upgrade.usage.link.scopes import linked_condition
from tooling.upgrade.uses import TryPart

if TYPE_CHECKING:
    from tooling.upgrade.usage.link.resolve import Resolver
    from tooling.upgrade.usage.link.store import FactsStore

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException", "*"})
_OTHER_FILE = 100_000
"""Numbers of attempts in other files start here, so that they are never taken for one of this file."""


class Contexts:
    """Conditions and attempts of all files."""

    def __init__(self, link: Resolver, store: FactsStore) -> None:
        self._link = link
        self._store = store
        self._conditions: dict[tuple[str, int], Condition] = {}
        self._files: dict[str, int] = {}
        self._places: dict[tuple[str, int], tuple[Condition, ...]] = {}
        self._tries: dict[tuple[str, int], tuple[TryPart, ...]] = {}

    def condition(self, path: str, number: int) -> Condition:
        """A test of a file; number + 1, negative where it must fail."""
        key = (path, abs(number) - 1)
        found = self._conditions.get(key)
        if found is None:
            found = self._conditions[key] = linked_condition(self._link, self._store, *key)
        return found if number > 0 else negated(found)

    def conditions(self, path: str, context: int) -> tuple[Condition, ...]:
        """All conditions of a place."""
        known = self._places.get((path, context))
        if known is None:
            numbers = self._store.facts(path).contexts[context][0]
            found = dict.fromkeys(self.condition(path, number) for number in numbers)
            known = self._places[path, context] = tuple(one for one in found if one != Constant(True))
        return known

    def attempts(self, path: str, context: int) -> tuple[TryPart, ...]:
        """All attempts around a place."""
        known = self._tries.get((path, context))
        if known is None:
            facts = self._store.facts(path)
            parts = []
            for index in facts.contexts[context][1]:
                number, part, caught, handler, reraises = facts.attempts[index]
                names: set[str] = set()
                for entry in caught:
                    names.update([entry] if isinstance(entry, str) else self._exception(path, entry))
                parts.append(TryPart(number, part, frozenset(names), handler, reraises))
            known = self._tries[path, context] = tuple(parts)
        return known

    def _exception(self, path: str, number: int) -> list[str]:
        facts = self._store.facts(path)
        row = facts.nodes[number]
        if row[0] in ("import", "name"):
            return [row[1]]
        found = [entry.value for entry in self._link.value(path, number)]
        return [one.access_path.dotted for one in found if isinstance(one, Ours) and isinstance(one.access_path, Name)]

    def bindings(
        self, path: str, guards: tuple[tuple[str, int], ...], known: tuple[TryPart, ...]
    ) -> tuple[list[Condition], list[TryPart]]:
        """What the bindings that a value came through add: conditions that a release can decide, and imports that were
        tried. Of the latter only failures to import count at the use: nothing else was tried there."""
        conditions: list[Condition] = []
        attempts: list[TryPart] = []
        for file, context in guards:
            conditions += [one for one in self.conditions(file, context) if is_decidable(one)]
            for attempt in self.attempts(file, context):
                if not attempt.catches & _IMPORT_ERRORS:
                    continue
                number = attempt.number + (
                    0 if file == path else (_OTHER_FILE * (1 + self._files.setdefault(file, len(self._files))))
                )
                tried = TryPart(number, attempt.part, frozenset({"ImportError"}), attempt.handler, attempt.reraises)
                if all((one.number, one.part) != (number, attempt.part) for one in (*known, *attempts)):
                    attempts.append(tried)
        return list(dict.fromkeys(conditions)), attempts
