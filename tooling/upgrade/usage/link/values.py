"""Hold what a value of the repository may be, each alternative with the bindings it came through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.access_paths import AccessPath


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


def guarded(found: Alternatives, *places: tuple[str, int]) -> Alternatives:
    """The alternatives as they are where these bindings (file, context) were passed too."""
    return tuple(replace(each, guards=tuple(dict.fromkeys((*places, *each.guards)))[:4]) for each in found)


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
