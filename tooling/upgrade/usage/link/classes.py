"""Resolve values of one file: what classes inherit, what functions return."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, ClientClass, InstanceOf, SuperOf
from tooling.upgrade.usage.facts import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.access_paths import AccessPath
    from tooling.upgrade.usage.link.store import FactsStore


MAX_ALTERNATIVES = 8


@dataclass(frozen=True, slots=True)
class Ours:
    """Something of a package that is asked for."""

    access_path: AccessPath


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A class of the repository."""

    path: str
    qualname: str


@dataclass(frozen=True, slots=True)
class OwnInstance:
    """An instance of one."""

    path: str
    qualname: str


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function or method of the repository."""

    path: str
    qualname: str


@dataclass(frozen=True, slots=True)
class Super:
    """`super()` in a class."""

    path: str
    qualname: str


@dataclass(frozen=True, slots=True)
class LinkedModule:
    """A module of the repository."""

    path: str


@dataclass(frozen=True, slots=True)
class Held:
    """Values inside something. how: "await", "iter", "enter" or "dict": what gets them out."""

    how: str
    inside: Alternatives


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A tuple."""

    members: tuple[Alternatives, ...]


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key of a mapping that may become a keyword: where it stands, and what it holds."""

    path: str
    name: str
    span: tuple[int, int, int, int]
    literal: str | None
    value: int
    context: int
    evidence: str = ""
    """Why it is only likely that the mapping has it; "" if that is written out."""


@dataclass(frozen=True, slots=True)
class Keys:
    """A mapping with these keys, and perhaps more."""

    entries: tuple[KeyEntry, ...]


@dataclass(frozen=True, slots=True)
class Untyped:
    """A value that nothing in the repository types: row `number` of a file's table; -1 until that is known."""

    path: str = ""
    number: int = -1


@dataclass(frozen=True, slots=True)
class OfUntyped:
    """An attribute of one."""

    base: Untyped
    name: str


UNTYPED = Untyped()
Value = (
    Ours | OwnClass | OwnInstance | OwnFunction | Super | LinkedModule | Held | ValueRow | Keys | Untyped | OfUntyped
)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing a value may be. guards: (file, context) of the bindings that it came through."""

    value: Value | None
    """None if not known."""
    guards: tuple[tuple[str, int], ...] = ()
    evidence: str = ""
    """How its type is known where the code does not say it; "" where it does."""


Alternatives = tuple[Alternative, ...]
UNKNOWN: Alternatives = (Alternative(None),)


def one(value: Value | None) -> Alternatives:
    """A single alternative."""
    return (Alternative(value),)


def joined(parts: Iterable[Alternatives]) -> Alternatives:
    """One of several."""
    found = tuple(dict.fromkeys(entry for part in parts for entry in part))
    if len(found) > MAX_ALTERNATIVES:
        found = tuple(dict.fromkeys(Alternative(entry.value) for entry in found))
    return found if 0 < len(found) <= MAX_ALTERNATIVES else UNKNOWN


def has_ours(alternatives: Alternatives, depth: int = 3) -> bool:
    """Whether any of it is, or holds, something of a package."""
    for entry in alternatives:
        value = entry.value
        if isinstance(value, Ours):
            return True
        if depth and isinstance(value, Held) and has_ours(value.inside, depth - 1):
            return True
        if depth and isinstance(value, ValueRow) and any(has_ours(member, depth - 1) for member in value.members):
            return True
    return False


_MAX_CLASSES = 40


class RepositoryLineage:
    """What a class descends from."""

    def __init__(self) -> None:
        self.own: list[OwnClass] = []
        """Classes of the repository in the order they are looked through, itself first."""
        self.ours: list[AccessPath] = []
        """Bases that belong to packages."""
        self.foreign = False
        """Whether there are bases that nobody knows."""


class Classes:
    """Members of classes."""

    def __init__(self, store: FactsStore) -> None:
        self._store = store
        self._lineages: dict[OwnClass, RepositoryLineage] = {}

    def value(self, path: str, number: int) -> Alternatives:
        """What a row of a file's table may be."""
        raise NotImplementedError

    def result(self, function: OwnFunction) -> Alternatives:
        """What a function gives when it is called."""
        raise NotImplementedError

    def outside(self, owner: OwnClass, name: str) -> Alternatives:
        """An attribute of instances that the class itself does not tell."""
        raise NotImplementedError

    def beside(self, owner: OwnClass, name: str) -> Alternatives:
        """An attribute that a mix-in has from the classes it is mixed into."""
        raise NotImplementedError

    def lineage(self, owner: OwnClass) -> RepositoryLineage:
        """Bases, followed to the end."""
        found = self._lineages.get(owner)
        if found is None:
            found = self._lineages[owner] = RepositoryLineage()
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
            for entry in self.value(owner.path, base):
                if isinstance(entry.value, OwnClass):
                    self._collect(entry.value, into)
                elif isinstance(entry.value, Ours):
                    if entry.value.access_path not in into.ours:
                        into.ours.append(entry.value.access_path)
                else:
                    into.foreign = True

    def client_class(self, owner: OwnClass) -> ClientClass | None:
        """The class as an access path; None if nothing of it belongs to a package."""
        lineage = self.lineage(owner)
        if not lineage.ours:
            return None
        module = self._store.checkout.module_name(owner.path)
        return ClientClass(f"{module}.{owner.qualname}", tuple(lineage.ours))

    def member(self, holder: OwnClass | OwnInstance | Super, name: str) -> Alternatives:
        """An attribute: of the repository's own classes first, then what packages' bases may have."""
        owner = OwnClass(holder.path, holder.qualname)
        lineage = self.lineage(owner)
        instance = not isinstance(holder, OwnClass)
        for entry in lineage.own[1:] if isinstance(holder, Super) else lineage.own:
            found = self._declared(entry, name, instance=instance)
            if found is not None:
                unknown = instance and all(each.value is None for each in found)
                return self.outside(entry, name) if unknown else found
        if not lineage.ours:
            if not instance or lineage.foreign:
                return UNKNOWN
            return self.beside(owner, name) if isinstance(holder, Super) else self.outside(owner, name)
        inherited = one(Ours(Attribute(self._base(holder, owner, lineage), name)))
        return joined([inherited, (Alternative(None),)]) if lineage.foreign else inherited

    def _base(self, holder: OwnClass | OwnInstance | Super, owner: OwnClass, lineage: RepositoryLineage) -> AccessPath:
        if isinstance(holder, Super):
            return SuperOf(tuple(lineage.ours))
        client = self.client_class(owner)
        assert client is not None  # it has bases of packages
        return client if isinstance(holder, OwnClass) else InstanceOf(client)

    def _declared(self, owner: OwnClass, name: str, *, instance: bool) -> Alternatives | None:
        """A member that the class itself has."""
        facts = self._store.facts(owner.path).classes[owner.qualname]
        method = facts.methods.get(name)
        if method is not None:
            function = OwnFunction(owner.path, method)
            binding = self._store.facts(owner.path).functions[method].binding
            return self.result(function) if binding == "property" and instance else one(function)
        if facts.annotations.get(name):
            return self.value(owner.path, facts.annotations[name])
        numbers = [number for number in facts.attributes.get(name, ()) if number != NONE]
        if numbers:
            return joined(self.value(owner.path, number) for number in numbers)
        return UNKNOWN if name in facts.annotations or name in facts.attributes else None
