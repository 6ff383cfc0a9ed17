"""Conditions around a use, evaluated for one side of an upgrade: True, False, or None where nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tooling.upgrade.symbols import Absent, Open, SymbolKind
from tooling.upgrade.uses import (
    AllOf,
    AnyOf,
    Attribute,
    CompareVersion,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
    VersionSource,
)
from tooling.upgrade.verdicts.targets import locate, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.upgrade.symbols import Upstream
    from tooling.upgrade.uses import Condition
    from tooling.upgrade.verdicts.records import Comparison


class Side:
    """The releases of one side of an upgrade."""

    def __init__(self, releases: Sequence[tuple[str, Upstream]]) -> None:
        """releases: distribution and release."""
        self.releases = releases

    def holding(self, dotted: str) -> Upstream | None:
        """The release that holds a dotted name."""
        return next((release for _name, release in self.releases if release.owns(dotted)), None)

    def version_of(self, condition: CompareVersion) -> str | None:
        """Version that a condition asks for; None if that distribution does not change here."""
        if condition.source is VersionSource.MODULE:
            release = self.holding(condition.subject)
            return release.release.origin.version if release is not None else None
        wanted = canonicalize_name(condition.subject)
        for name, release in self.releases:
            if canonicalize_name(name) == wanted:
                return release.release.origin.version
        return None


def old_side(pairs: Iterable[Comparison]) -> Side:
    """What is installed before the upgrade."""
    return Side([(pair.distribution, pair.old) for pair in pairs])


def new_side(pairs: Iterable[Comparison]) -> Side:
    """What is installed after it."""
    return Side([(pair.distribution, pair.new) for pair in pairs])


def reachable(conditions: Iterable[Condition], side: Side) -> bool | None:
    """Whether all conditions hold."""
    return _all(evaluate(condition, side) for condition in conditions)


def evaluate(condition: Condition, side: Side) -> bool | None:
    """The value of a condition on one side."""
    match condition:
        case Constant(value):
            return value
        case Undecided():
            return None
        case Not(inner):
            answer = evaluate(inner, side)
            return None if answer is None else not answer
        case AllOf(conditions):
            return _all(evaluate(each, side) for each in conditions)
        case AnyOf(conditions):
            values = [evaluate(each, side) for each in conditions]
            return True if True in values else None if None in values else False
        case CompareVersion():
            version = side.version_of(condition)
            return None if version is None else compare(version, condition)
    return _probe(condition, side)


def compare(version: str, condition: CompareVersion) -> bool | None:
    """`version operator literal` as the code writes it; None if one of them is no version."""
    if condition.operator == "startswith":
        return version.startswith(condition.literal)
    try:
        # Local parts (+cu128) are of a build, and which one will be installed is not known here.
        ours, literal = Version(Version(version).public), Version(condition.literal)
    except InvalidVersion:
        return None
    if condition.release_parts:
        return _compared(ours.release[: condition.release_parts], condition.operator, literal.release)
    return _compared(ours, condition.operator, literal)


def _compared(left: Version | tuple[int, ...], operator: str, right: Version | tuple[int, ...]) -> bool | None:
    less, equal = left < right, left == right  # type: ignore[operator]  # both are of one kind: see the two callers
    answers = {"<": less, "<=": less or equal, "==": equal, "!=": not equal, ">=": not less}
    answers[">"] = not less and not equal
    return answers.get(operator)


def _probe(condition: HasName | HasParameter | ModuleExists, side: Side) -> bool | None:
    if isinstance(condition, ModuleExists):
        release = side.holding(condition.dotted)
        if release is None:
            # Gone with its whole root: some release of this side may have held it before.
            return False if (side.holding(condition.dotted.partition(".")[0]) is not None) else None
        found = release.resolve(condition.dotted)
        if isinstance(found, Open):
            return None
        return not isinstance(found, Absent) and found.symbol.kind is SymbolKind.MODULE
    root = root_of(condition.base)
    release = side.holding(root) if root else None
    if release is None:
        return None
    if isinstance(condition, HasName):
        sight = locate(release, Attribute(condition.base, condition.name))
        if sight.closed and not sight.found and sight.absent:
            return False
        return True if sight.closed and sight.found and not sight.absent else None
    return _has_parameter(condition, release)


def _has_parameter(condition: HasParameter, release: Upstream) -> bool | None:
    sight = locate(release, condition.base)
    if not sight.closed or len(sight.found) != 1:
        return None
    signature = release.signature(sight.found[0].symbol)
    if isinstance(signature, Open) or not signature.exact:
        return None
    return any(parameter.name == condition.name for parameter in signature.parameters)


def _all(values: Iterable[bool | None]) -> bool | None:
    known = list(values)
    return False if False in known else None if None in known else True
