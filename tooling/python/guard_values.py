"""Hold what the names of a condition may stand for, beside constants, versions and conditions."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tooling.python.operations import Symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.python.access_paths import AccessPath
    from tooling.python.conditions import Condition


class GuardScope(Protocol):
    """Where the names of a condition come from."""

    def find(self, name: str) -> object:
        """Return a value or a definition; UNKNOWN if the name is bound to something else, None if nobody knows."""
        ...

    def symbol(self, dotted: str) -> object:
        """Return what a dotted path stands for if it leads into the repository; None for others."""
        ...


@dataclass(frozen=True, slots=True)
class GuardSymbol(Symbolic):
    """Something imported; `access_path` if it belongs to a package that is asked for, or leads there."""

    dotted: str
    access_path: AccessPath | None = None
    exists: Condition | None = None
    """For a name that a handler sets to None: when it is something else."""


@dataclass(frozen=True, slots=True)
class GuardNames(Symbolic):
    """A collection of names: `dir(x)`, or the parameters of x."""

    of: AccessPath
    parameters: bool


@dataclass(frozen=True, slots=True)
class GuardSkip(Symbolic):
    """A decorator or mark that skips a test."""

    unless: Condition


@dataclass(frozen=True, slots=True)
class GuardDefinition(Symbolic):
    """A function of the repository, or an expression that a name was bound to, with the scope to read it in."""

    node: ast.FunctionDef | ast.expr
    scope: GuardScope

    @property
    def function(self) -> ast.FunctionDef | None:
        """A function to be called, also where it is a lambda; None for a value."""
        if isinstance(self.node, ast.Lambda):
            return ast.FunctionDef("", self.node.args, [ast.Return(self.node.body)], [])
        return self.node if isinstance(self.node, ast.FunctionDef) else None


@dataclass(frozen=True, slots=True)
class GuardClass(Symbolic):
    """A class of the repository, to be read when something of it is asked for."""

    read: Callable[[], ast.ClassDef | None]
    scope: GuardScope


@dataclass(frozen=True, slots=True)
class GuardObject(Symbolic):
    """An object of a class of the repository."""

    made: GuardClass
    arguments: tuple[object, ...] = ()
    named: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class InnerScope:
    """Names of a function around, then those of its file."""

    around: GuardScope
    names: dict[str, object]

    def find(self, name: str) -> object:
        """See `GuardScope`."""
        return self.names[name] if name in self.names else self.around.find(name)

    def symbol(self, dotted: str) -> object:
        """See `GuardScope`."""
        return self.around.symbol(dotted)
