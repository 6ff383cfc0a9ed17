"""Follow one use through both releases, and tell how much of it is known."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tooling.python.access_paths import (
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Entered,
    InstanceOf,
    Name,
    spelled,
    translated,
)
from tooling.python.symbols.symbol import Absent, Found
from tooling.python.symbols.targets import Lookup, locate, reach, reach_statement
from tooling.upgrade.findings import AuditSeverity, FindingKind
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import UseProblem, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Symbol
    from tooling.python.symbols.targets import Reach, Resolved
    from tooling.upgrade.findings import Replacement
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Use
    from tooling.upgrade.verdicts.comparison import Explanation, JudgeContext


_READS = frozenset({Action.READ, Action.ITERATE, Action.UNPACK, Action.ENTER, Action.AWAIT})
_SURE = 0.95
_INFERRED = 0.7


@dataclass(frozen=True)
class JudgedUse:
    """One use, and what it meets on both sides; each is looked up once."""

    use: Use
    old: Upstream
    new: Upstream
    context: JudgeContext
    moved: str = ""
    """New dotted path of what the use names, to judge it as if that were mended already."""

    @cached_property
    def before(self) -> Lookup:
        """Definitions on the old side."""
        return locate(self.old, self.use.target)

    @cached_property
    def target_after(self) -> AccessPath:
        """The target as the new version spells it: what stands on names that moved is judged at their new places. A
        name that is used itself stays: that it moved is what there is to say."""
        if self.moved:
            return Name(self.moved)
        if self.context.explain is None or isinstance(self.use.target, Name):
            return self.use.target
        return translated(self.use.target, self._new_home)

    def _new_home(self, dotted: str) -> str:
        gone = self.new.resolve(dotted) if self.old.owns(dotted) else None
        if not isinstance(gone, Absent) or not isinstance(self.old.resolve(dotted), Found):
            return dotted
        imported = replace(self.use, action=Action.IMPORT, target=Name(dotted), arguments=None, method=None)
        assert self.context.explain is not None, "asked by the caller"
        explained = self.context.explain(gone, self.old, self.new, imported)
        if explained is None or explained[1] is None or explained[0] not in (FindingKind.MOVED, FindingKind.RENAMED):
            return dotted
        return explained[1].text

    @cached_property
    def after(self) -> Lookup:
        """Definitions on the new side. A root that only the old archive held is gone, not foreign."""
        target = self.target_after
        sight = locate(self.new, target)
        if (
            isinstance(target, Name)
            and sight.open
            and self.old.owns(target.dotted)
            and not self.new.owns(target.dotted)
        ):
            # A release without modules of its own requires what the old one did not: `typer` became `typer-slim`
            if not self.new.source.roots() and _requirements(self.new) - _requirements(self.old):
                return Lookup(open=f"{target.dotted} may be of a distribution that only the new version requires")
            container, _, name = target.dotted.rpartition(".")
            return Lookup(absent=(Absent(container or name, name),))
        return sight

    @cached_property
    def called_before(self) -> Reach:
        """What a call reaches on the old side."""
        return (reach_statement if self.use.action is Action.SUBCLASS else reach)(self.old, self.use.target)

    @cached_property
    def called_after(self) -> Reach:
        """What a call reaches on the new side."""
        return (reach_statement if self.use.action is Action.SUBCLASS else reach)(self.new, self.target_after)

    @cached_property
    def symbol(self) -> str:
        """What the finding is about, as a reader of the repository knows it."""
        otherwise = self.before.found[0].symbol.dotted if self.before.found else ""
        return spelled(self.use.target, otherwise) or otherwise or self.use.symbol_text

    @cached_property
    def meets_own_member(self) -> bool:
        """Whether a member of a class of the repository is used, which a method of the package gave:
        `Mine.from_dict(values).own()`. What such a class answers for by `__getattr__` is its own too."""
        step: AccessPath | None = self.use.target
        while step is not None:
            client = _own_class(step.base) if isinstance(step, Attribute) else None
            extension = self.context.extension(client.dotted) if client is not None else None
            if isinstance(step, Attribute) and client is not None and extension is not None:
                gone = locate(self.new, step).absent and not isinstance(step.base, ClientClass)
                if step.name in extension.names or (gone and "__getattr__" in extension.names):
                    owners = {met.symbol.dotted for base in client.bases for met in locate(self.old, base).found}
                    return any(met.receiver in owners for met in locate(self.old, step).found)
            step = getattr(step, "base", None)
        return False

    def reads(self, name: str) -> bool:
        """Whether the value is read by its name. `for x in frame.columns` has no other use that says so, while in
        `list(frame.columns)` the attribute is a use of its own."""
        return self.use.action in _READS and self.use.symbol_text.endswith(name)

    @property
    def confidence(self) -> float:
        """Lower where a type was inferred from return statements."""
        return _INFERRED if self.before.inferred or self.after.inferred else _SURE

    def pairs(self) -> Iterator[tuple[Resolved, Resolved]]:
        """Each definition of the new side with its counterpart of the old one."""
        for met in self.after.found:
            yield counterpart(met.symbol, self.before.found), met

    def problem(
        self,
        kind: FindingKind,
        severity: AuditSeverity,
        message: str,
        *,
        before: Symbol | None = None,
        after: Symbol | None = None,
        whole: bool = True,
        weight: float = 1.0,
        replacement: Replacement | None = None,
        fixable: bool = True,
        **details: Any,
    ) -> UseProblem:
        """Return what this use runs into, with the definitions of both sides as evidence.

        whole: whether it is so whatever is meant; else what breaks is a warning. weight: of the confidence. fixable:
        whether a certain replacement may be written. details: other fields of `UseProblem`."""
        given = {"place": self.use.place, "symbol": self.symbol, "confidence": self.confidence * weight}
        if before is not None:
            given["old"] = evidence(self.old, before)
        if after is not None:
            given["new"] = evidence(self.new, after)
        return UseProblem(
            kind=kind,
            severity=sure(severity, all_members=whole),
            message=message,
            replacement=replacement,
            fixable=fixable and replacement is not None and replacement.certain,
            **{**given, **details},
        )

    def explain(self, absent: Absent) -> Explanation | None:
        """Where something gone went; None if nobody knows."""
        if self.context.explain is None:
            return None
        return self.context.explain(absent, self.old, self.new, self.use)


def _own_class(access_path: AccessPath) -> ClientClass | None:
    """The class of the repository that this is, is made of, or that a method was called on which gives this."""
    match access_path:
        case ClientClass():
            return access_path
        case Called(Attribute(base)) | Called(base) | InstanceOf(base) | Awaited(base) | Entered(base):
            return _own_class(base)
    return None


def _requirements(upstream: Upstream) -> set[str]:
    found: set[str] = set()
    for text in upstream.source.requires():
        with suppress(InvalidRequirement):
            found.add(canonicalize_name(Requirement(text).name))
    return found


def counterpart(symbol: Symbol, candidates: Sequence[Resolved]) -> Resolved:
    """The old definition that a new one stands for: of the same owner and name, else the first."""

    def nearness(met: Resolved) -> tuple[bool, bool]:
        return met.symbol.dotted != symbol.dotted, _tail(met.symbol) != _tail(symbol)

    return min(candidates, key=nearness)


def _tail(symbol: Symbol) -> list[str]:
    return symbol.dotted.split(".")[-2:] if symbol.owner else symbol.dotted.split(".")[-1:]


def sure(severity: AuditSeverity, *, all_members: bool) -> AuditSeverity:
    """One level down when only some members of a union are meant, or other values are possible."""
    if all_members or severity is not AuditSeverity.BREAKING:
        return severity
    return AuditSeverity.WARNING


_OF_VALUES = frozenset({Action.UNPACK, Action.SUBSCRIPT, Action.ITERATE, Action.AWAIT, Action.ENTER, Action.OPERATE})


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much is known of one use."""

    symbol: str
    why: str = ""
    """Why it is open on either side; "" if it is known."""
    unresolved: bool = False
    """The old version does not have it."""


def coverage_of(case: JudgedUse) -> Coverage:
    """How much is known of a use on both sides."""
    use, before, after = case.use, case.before, case.after
    symbol = spelled(use.target, before.found[0].symbol.dotted if before.found else use.symbol_text)
    if use.action in _OF_VALUES:
        return Coverage(symbol)
    if before.absent and not before.found:
        return Coverage(symbol, unresolved=bool(after.absent) and not after.found)
    return Coverage(symbol, why="" if before.found and (after.found or after.absent) else before.open or after.open)
