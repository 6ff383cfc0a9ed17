"""What expressions of conditions may be worth, and how conditions are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tooling.upgrade.uses import (
    AllOf,
    AnyOf,
    CompareVersion,
    Condition,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
)

if TYPE_CHECKING:
    import ast

    from tooling.upgrade.uses import Derivation, VersionSource


class Scope(Protocol):
    """Where the names of a condition come from."""

    def find(self, name: str) -> Value | Definition | None:
        """What a name stands for; None if nobody knows."""
        ...

    def symbol(self, dotted: str) -> Value | Definition | None:
        """What a dotted path stands for if it leads into the repository; None for others."""
        ...


@dataclass(frozen=True, slots=True)
class Literal:
    """A value known here and now."""

    value: Any


@dataclass(frozen=True, slots=True)
class VersionText:
    """The version of something, as text, tuple or Version: it makes no difference. parts: how many leading release
    parts are left of it, 0 for all."""

    source: VersionSource
    subject: str
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something imported; `derivation` if it belongs to a package that is asked for, or leads there."""

    dotted: str
    derivation: Derivation | None = None
    exists: Condition | None = None
    """For a name that a handler sets to None: when it is something else."""


@dataclass(frozen=True, slots=True)
class Names:
    """A collection of names: `dir(x)`, or the parameters of x."""

    of: Derivation
    parameters: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition as a value."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple of which not all is literal."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """Not known."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function of the repository, or an expression that a name was bound to, with the scope to read it in."""

    node: ast.FunctionDef | ast.expr
    scope: Scope


Value = Literal | VersionText | Symbol | Names | Truth | Several | Nothing
NOTHING = Nothing()
TRUE, FALSE = Constant(True), Constant(False)


def negated(condition: Condition) -> Condition:
    """The opposite."""
    if isinstance(condition, Constant):
        return Constant(not condition.value)
    return condition.condition if isinstance(condition, Not) else Not(condition)


def all_of(conditions: list[Condition]) -> Condition:
    """Conjunction, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != TRUE]
    if FALSE in kept:
        return FALSE
    if len(kept) == 1:
        return kept[0]
    return AllOf(tuple(kept)) if kept else TRUE


def any_of(conditions: list[Condition]) -> Condition:
    """Disjunction, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != FALSE]
    if TRUE in kept:
        return TRUE
    if len(kept) == 1:
        return kept[0]
    return AnyOf(tuple(kept)) if kept else FALSE


def is_decidable(condition: Condition) -> bool:
    """Whether a release can say anything about it."""
    if isinstance(condition, Not):
        return is_decidable(condition.condition)
    if isinstance(condition, AllOf | AnyOf):
        return any(is_decidable(one) for one in condition.conditions)
    return isinstance(condition, CompareVersion | HasName | HasParameter | ModuleExists | Constant)


def is_decided(condition: Condition) -> bool:
    """Whether a release says all about it: nothing else plays a part."""
    if isinstance(condition, Not):
        return is_decided(condition.condition)
    if isinstance(condition, AllOf | AnyOf):
        return all(is_decided(one) for one in condition.conditions)
    return not isinstance(condition, Undecided)


def undecided(text: str) -> Undecided:
    """A condition about something else."""
    shown = " ".join(text.split())
    return Undecided(shown if len(shown) <= 80 else f"{shown[:79]}…")
