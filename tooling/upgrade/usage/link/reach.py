"""Which files matter: those that mention a package, and those that import what leads there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.upgrade.usage.facts import NONE
from tooling.upgrade.usage.link.classes import (
    Alternatives,
    LinkedModule,
    Ours,
    OwnClass,
    OwnFunction,
    OwnInstance,
    Value,
    has_ours,
    one,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.usage.link.resolve import Resolver
    from tooling.upgrade.usage.link.store import FactsStore

Importers = dict[str, list[tuple[str, str | None]]]
_ROUNDS = 5
"""How many files away from a package its values are followed."""


def affected_files(link: Resolver, store: FactsStore, mentioning: Iterable[str], edges: Importers) -> set[str]:
    """The files whose uses are worth looking for."""
    wanted = set(mentioning)
    new = set(wanted)
    reach = _Reach(link, store)
    for _ in range(_ROUNDS):
        leading = {path: names for path in new if (names := reach.names(path))}
        new = set()
        for path, names in leading.items():
            for importer, imported in edges.get(path, ()):
                if importer not in wanted and (imported is None or imported in names or imported == "*"):
                    new.add(importer)
        wanted |= new
        if not new:
            break
    return wanted


def importers(store: FactsStore) -> Importers:
    """By module: who imports it, and which name of it; None for all of it."""
    checkout = store.checkout
    edges: dict[str, list[tuple[str, str | None]]] = {}
    for path in checkout.paths:
        for level, module, names in checkout.imports(path):
            found = checkout.find(path, module, level)
            if found is None:
                continue
            if not names:
                edges.setdefault(found[0], []).append((path, None))
                continue
            for name in names:
                inner = checkout.find(path, f"{module}.{name}" if module else name, level)
                if inner is not None and inner[0] != found[0]:
                    edges.setdefault(inner[0], []).append((path, None))
                else:
                    edges.setdefault(found[0], []).append((path, name))
    return edges


class _Reach:
    """Names of modules that lead to packages."""

    def __init__(self, link: Resolver, store: FactsStore) -> None:
        self._link = link
        self._store = store

    def names(self, path: str) -> set[str]:
        """Top-level names of a file that lead to a package."""
        facts = self._store.facts(path)
        return {
            name
            for name, rows in facts.bindings.items()
            if any(row[0] > NONE for row in rows) and self._leads(self._link.module_name(path, name))
        } | ({"*"} if any(self._leads(self._link.value(path, star)) for star in facts.stars) else set())

    def _leads(self, alternatives: Alternatives) -> bool:
        return has_ours(alternatives) or any(
            entry.value is not None and self._value_leads(entry.value) for entry in alternatives
        )

    def _value_leads(self, value: Value) -> bool:
        if isinstance(value, OwnFunction):
            makers = self._store.facts(value.path).functions[value.qualname].makers
            if any(has_ours(self._link.value(value.path, maker)) for maker in makers):
                return True
            return has_ours(self._link.called(one(value))) or any(
                isinstance(entry.value, OwnInstance | OwnClass) and self._value_leads(entry.value)
                for entry in self._link.called(one(value))
            )
        if isinstance(value, OwnInstance):
            return self._class_leads(OwnClass(value.path, value.qualname))
        if isinstance(value, LinkedModule):
            return False  # importing a module is not yet using a name of it: the importer of that name counts
        return isinstance(value, OwnClass) and self._class_leads(value)

    @once(meanwhile=False)
    def _class_leads(self, owner: OwnClass) -> bool:
        if self._link.lineage(owner).ours:
            return True
        for own in self._link.lineage(owner).own:
            facts = self._store.facts(own.path).classes[own.qualname]
            instance = OwnInstance(own.path, own.qualname)
            for name in {*facts.attributes, *facts.annotations, *facts.methods}:
                found = self._link.member(instance, name)
                if has_ours(found) or any(isinstance(e.value, Ours) for e in found):
                    return True
                if any(
                    isinstance(entry.value, OwnFunction) and has_ours(self._link.result(entry.value)) for entry in found
                ):
                    return True
        return False
