"""Derivations with other names at the bottom: how an expression reads once its moved imports are mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.uses import (
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Either,
    Entered,
    InstanceOf,
    Item,
    Iterated,
    Name,
    Parametrised,
    SuperOf,
)

if TYPE_CHECKING:
    from tooling.upgrade.uses import Derivation

Renaming = Callable[[str], str]


def translated(derivation: Derivation, rename: Renaming) -> Derivation:
    """rename: the new dotted path of a name, or the same."""
    match derivation:
        case Name(dotted):
            return Name(rename(dotted))
        case Attribute() | Called() | InstanceOf() | Awaited() | Iterated() | Item() | Entered():
            return replace(derivation, base=translated(derivation.base, rename))
        case SuperOf(bases) | ClientClass(bases=bases):
            return replace(derivation, bases=_all(bases, rename))
        case Either(members):
            return Either(_all(members, rename))
        case Parametrised(name, arguments):
            return Parametrised(name, _all(arguments, rename))
    return derivation


def _all(derivations: tuple[Derivation, ...], rename: Renaming) -> tuple[Derivation, ...]:
    return tuple(translated(each, rename) for each in derivations)
