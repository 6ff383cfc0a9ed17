"""Hold what a value of the repository may be, with the bindings it came through, and what its classes descend from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import ClientClass
from tooling.upgrade.usage.facts import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """Values inside something. how: "await", "call", "enter", "iter" or "dict": what gets them out; "partial": what is
    called when it is called."""

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

    @property
    def position(self) -> str:
        """Its name, if that is the place of a positional argument: "*0"."""
        return self.name if self.name.startswith("*") else ""


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
    parts = tuple(parts)
    if len(parts) == 1 and len(parts[0]) == 1:
        return parts[0]
    found = tuple(dict.fromkeys(entry for part in parts for entry in part))
    if len(found) > MAX_ALTERNATIVES:
        found = tuple(dict.fromkeys(Alternative(entry.value) for entry in found))
    return found if 0 < len(found) <= MAX_ALTERNATIVES else UNKNOWN


def guarded(found: Alternatives, *places: tuple[str, int]) -> Alternatives:
    """The alternatives as they are where these bindings (file, context) were passed too."""
    return tuple(replace(each, guards=tuple(dict.fromkeys((*places, *each.guards)))[:4]) for each in found)


def called_by(alternatives: Alternatives) -> Alternatives:
    """What is called when these are: of a `partial` its function, with the bindings that it came through."""
    found: list[Alternative] = []
    for entry in alternatives:
        if isinstance(entry.value, Held) and entry.value.how == "partial":
            inside = guarded(called_by(entry.value.inside), *entry.guards)
            found += [replace(each, evidence=each.evidence or entry.evidence) for each in inside]
        else:
            found.append(entry)
    return tuple(found)


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
