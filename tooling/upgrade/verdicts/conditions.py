"""Conditions in words, for the `guard` of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.uses import (
    AllOf,
    AnyOf,
    CompareVersion,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
)
from tooling.upgrade.verdicts.targets import spelled

if TYPE_CHECKING:
    from tooling.upgrade.uses import Condition


def describe(condition: Condition) -> str:
    """A condition as a reader would write it."""
    match condition:
        case Not(inner):
            return f"not ({describe(inner)})"
        case AllOf(conditions):
            return " and ".join(describe(each) for each in conditions)
        case AnyOf(conditions):
            return " or ".join(describe(each) for each in conditions)
    return _simple(condition)


def _simple(condition: CompareVersion | HasName | HasParameter | ModuleExists | Constant | Undecided) -> str:
    match condition:
        case CompareVersion(_, subject, operator, literal):
            return f"{subject} {operator} {literal}"
        case HasName(base, name):
            return f"{spelled(base) or 'a value'} has {name}"
        case HasParameter(base, name):
            return f"{spelled(base) or 'a callable'} takes {name}"
        case ModuleExists(dotted):
            return f"{dotted} exists"
        case Constant(value):
            return str(value)
        case Undecided(text):
            return text
