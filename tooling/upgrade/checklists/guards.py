"""Conditions on a package's version or shape, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.checklists.records import GuardedPlace
from tooling.upgrade.uses import AllOf, AnyOf, CompareVersion, HasName, HasParameter, ModuleExists, Not

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.checklists.records import Subject
    from tooling.upgrade.uses import Condition, Use


def guards_of(use: Use, subject: Subject) -> set[GuardedPlace]:
    """The conditions about the package that a use stands under."""
    return {
        GuardedPlace(use.place.path, use.function, text)
        for condition in use.conditions
        if (text := spelled(condition, subject))
    }


def spelled(condition: Condition, subject: Subject) -> str:
    """A condition in words if it speaks of the package's version or shape; else ""."""
    match condition:
        case Not(inner):
            text = spelled(inner, subject)
            return f"not ({text})" if text else ""
        case AllOf(conditions):
            return _joined(" and ", conditions, subject)
        case AnyOf(conditions):
            return _joined(" or ", conditions, subject)
    match condition:
        case CompareVersion(_, name, operator, literal):
            about = name in subject.imports or name.replace("_", "-").lower() == subject.distribution
            return f"{name} {operator} {literal}" if about else ""
        case HasName(_, name):
            return f"has `{name}`"
        case HasParameter(_, name):
            return f"takes `{name}`"
        case ModuleExists(dotted):
            return (
                f"has module {dotted}"
                if dotted.split(".", maxsplit=1)[0] in {name.split(".", maxsplit=1)[0] for name in subject.imports}
                else ""
            )
    return ""


def _joined(word: str, conditions: Iterable[Condition], subject: Subject) -> str:
    return word.join(filter(None, (spelled(part, subject) for part in conditions)))
