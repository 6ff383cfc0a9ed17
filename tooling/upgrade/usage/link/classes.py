"""Follow the bases of the repository's classes: which of them are its own, which belong to packages."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.access_paths import ClientClass
from tooling.upgrade.usage.facts import NONE
from tooling.upgrade.usage.link.values import Ours, OwnClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.python.access_paths import AccessPath
    from tooling.upgrade.usage.link.store import FactsStore
    from tooling.upgrade.usage.link.values import Alternatives

_MAX_CLASSES = 40


@dataclass(slots=True)
class RepositoryLineage:
    """What a class descends from."""

    own: list[OwnClass] = field(default_factory=list)
    """Classes of the repository in the order they are looked through, itself first."""
    ours: list[AccessPath] = field(default_factory=list)
    """Bases that belong to packages."""
    foreign: bool = False
    """Whether there are bases that nobody knows."""


class Lineages:
    """The lineage of each class, worked out once."""

    def __init__(self, store: FactsStore, value: Callable[[str, int], Alternatives]) -> None:
        """value: what a row of a file's table may be."""
        self._store = store
        self._value = value
        self._known: dict[OwnClass, RepositoryLineage] = {}

    def of(self, owner: OwnClass) -> RepositoryLineage:
        """Bases, followed to the end."""
        found = self._known.get(owner)
        if found is None:
            found = self._known[owner] = RepositoryLineage()
            self._collect(owner, found)
        return found

    def _collect(self, owner: OwnClass, into: RepositoryLineage) -> None:
        if owner in into.own or len(into.own) > _MAX_CLASSES:
            return
        into.own.append(owner)
        facts = self._store.facts(owner.path)
        for base in facts.classes[owner.qualname].bases:
            row = facts.nodes[base]
            if base <= NONE or (row[0] in ("import", "name") and row[1].partition(".")[0] in sys.stdlib_module_names):
                into.foreign |= base == 0
                continue
            for entry in self._value(owner.path, base):
                if isinstance(entry.value, OwnClass):
                    self._collect(entry.value, into)
                elif isinstance(entry.value, Ours):
                    if entry.value.access_path not in into.ours:
                        into.ours.append(entry.value.access_path)
                else:
                    into.foreign = True

    def client_class(self, owner: OwnClass) -> ClientClass | None:
        """The class as an access path; None if nothing of it belongs to a package."""
        bases = self.of(owner).ours
        module = self._store.checkout.module_name(owner.path)
        return ClientClass(f"{module}.{owner.qualname}", tuple(bases)) if bases else None
