"""Version checks that have the same answer for every version the manifest allows: one of their branches is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tooling.upgrade.findings import Finding, Severity, Verdict
from tooling.upgrade.uses import AllOf, AnyOf, CompareVersion, Not, VersionSource
from tooling.upgrade.verdicts.conditions import describe
from tooling.upgrade.verdicts.guards import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.specifiers import SpecifierSet

    from tooling.upgrade.uses import Condition, DeadGuard
    from tooling.upgrade.verdicts.records import Comparison


def dead(path: str, guard: DeadGuard, pair: Comparison, allowed: SpecifierSet) -> Finding | None:
    """allowed: versions that the new manifest admits. A condition that asks for anything else is not judged."""
    compares = list(_compares(guard.condition))
    if not compares or None in compares or not all(_is_about(each, pair) for each in compares if each is not None):
        return None
    points = [point for point in _points(compares, allowed, pair) if allowed.contains(point, prereleases=True)]
    answers = {_value(guard.condition, str(point)) for point in points}
    if len(answers) != 1 or None in answers:
        return None
    answer = next(iter(answers))
    return Finding(
        path=path,
        line=guard.place.line,
        column=guard.place.column,
        end_line=guard.place.end_line,
        kind=Verdict.GUARD_DEAD,
        severity=Severity.WARNING,
        confidence=0.95,
        distribution=pair.distribution,
        symbol=pair.distribution,
        message=f"`{describe(guard.condition)}` is {answer} for every version that is allowed ({allowed or 'any'})",
    )


def _compares(condition: Condition) -> Iterator[CompareVersion | None]:
    """All version checks in a condition; None for anything else."""
    match condition:
        case CompareVersion():
            yield condition
        case Not(inner):
            yield from _compares(inner)
        case AllOf(conditions) | AnyOf(conditions):
            for each in conditions:
                yield from _compares(each)
        case _:
            yield None


def _is_about(condition: CompareVersion, pair: Comparison) -> bool:
    if condition.source is VersionSource.MODULE:
        return pair.owns(condition.subject)
    return canonicalize_name(condition.subject) == canonicalize_name(pair.distribution)


def _points(compares: list[CompareVersion | None], allowed: SpecifierSet, pair: Comparison) -> Iterator[Version]:
    """Versions around each boundary: between two of them every answer is constant."""
    texts = [each.literal.rstrip(".") for each in compares if each is not None]
    texts += [specifier.version.removesuffix(".*") for specifier in allowed]
    texts += [pair.new.release.origin.version, "0", "99999"]
    for text in texts:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        yield version
        # Just below, just above, and the next of each release part
        base = version.base_version
        yield Version(f"{base}.post1")
        yield Version(f"{base}.1")
        release = version.release
        for index in range(len(release)):
            raised = [*release[:index], release[index] + 1]
            yield Version(".".join(map(str, raised)))
            if release[index] > 0:
                lowered = [*release[:index], release[index] - 1, 99999]
                yield Version(".".join(map(str, lowered)))


def _value(condition: Condition, version: str) -> bool | None:
    match condition:
        case CompareVersion():
            return compare(version, condition)
        case Not(inner):
            value = _value(inner, version)
            return None if value is None else not value
        case AllOf(conditions):
            values = [_value(each, version) for each in conditions]
            return False if False in values else None if None in values else True
        case AnyOf(conditions):
            values = [_value(each, version) for each in conditions]
            return True if True in values else None if None in values else False
    return None
