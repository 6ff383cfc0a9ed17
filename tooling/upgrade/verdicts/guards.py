"""Judge conditions: whether a guard or a fallback answers a problem, and guards that no allowed version needs."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tooling.upgrade.findings import AuditFinding, AuditSeverity, FindingKind
from tooling.upgrade.symbols import Absent, Open, SymbolKind
from tooling.upgrade.uses import (
    Action,
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
from tooling.upgrade.verdicts.targets import locate, root_of, spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.upgrade.symbols import Upstream
    from tooling.upgrade.uses import Condition, DeadGuard, TryPart, Use
    from tooling.upgrade.verdicts.comparison import Alternatives, JudgeContext, ReleasePair, UseProblem


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


_BROAD = frozenset({"*", "Exception", "BaseException"})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What fallbacks make of a problem."""

    problem: UseProblem | None
    guard: str = ""


def catches(caught: Iterable[str], raised: str) -> bool:
    """Whether handlers of these exceptions catch one of that name."""
    names = set(caught)
    if "*" in names:
        return True
    kind = getattr(builtins, raised, None)
    if not isinstance(kind, type):
        return raised in names
    return any(base.__name__ in names for base in kind.__mro__)


def rule(problem: UseProblem, use: Use, context: JudgeContext) -> Ruling:
    """Innermost statement first. A use in a handler counts only if the body can fail on the new version."""
    guard = ""
    for attempt in reversed(use.attempts):
        alternatives = context.alternatives(use.place.path, attempt.number)
        if attempt.part == "handler":
            # The body may raise what this handler catches; one that does nothing of ours may always.
            known = alternatives.body_uses and not alternatives.body_open
            if known and not any(catches(attempt.catches, raised) for raised in alternatives.body_raises):
                return Ruling(None)
            guard = guard or f"except {_names(attempt)}"
            continue
        if not problem.raises or attempt.reraises or not catches(attempt.catches, problem.raises):
            continue
        guard = guard or f"try ... except {_names(attempt)}"
        # A handler of everything that does nothing of ours is there to report errors, unless an import is tried.
        importing = use.action in (Action.IMPORT, Action.STAR_IMPORT) or use.switches
        if attempt.catches & _BROAD and not importing and not alternatives.handler_uses:
            continue
        return Ruling(_masked(problem, use, alternatives), guard)
    return Ruling(problem, guard)


def _masked(problem: UseProblem, use: Use, alternatives: Alternatives) -> UseProblem | None:
    if alternatives.handler_uses:
        return None
    if problem.severity is AuditSeverity.INFO:
        return problem
    off = ", ".join(name.dotted for name in use.switches)
    effect = f"{off} is switched off" if off else "the fallback hides it"
    return replace(problem, severity=AuditSeverity.WARNING, message=f"{problem.message}; {effect}")


def _names(attempt: TryPart) -> str:
    names = sorted(attempt.catches - {"*"})
    return " | ".join(names) if names else "everything"


def dead(path: str, guard: DeadGuard, pair: ReleasePair, allowed: SpecifierSet) -> AuditFinding | None:
    """allowed: versions that the new manifest admits. A condition that asks for anything else is not judged."""
    compares = list(_compares(guard.condition))
    if not compares or None in compares or not all(_is_about(each, pair) for each in compares if each is not None):
        return None
    points = [point for point in _points(compares, allowed, pair) if allowed.contains(point, prereleases=True)]
    texts = [each.literal.rstrip(".") for each in compares if each is not None]
    if points and any(is_later(text, max(points)) for text in texts):
        return None  # it waits for a version that is still to come
    answers = {_value(guard.condition, str(point)) for point in points}
    if len(answers) != 1 or None in answers:
        return None
    answer = next(iter(answers))
    return AuditFinding(
        path=path,
        line=guard.place.line,
        column=guard.place.column,
        end_line=guard.place.end_line,
        kind=FindingKind.GUARD_DEAD,
        severity=AuditSeverity.WARNING,
        confidence=0.95,
        distribution=pair.distribution,
        symbol=pair.distribution,
        message=f"`{describe(guard.condition)}` is {answer} for every version that is allowed ({allowed or 'any'})",
    )


def is_later(text: str, version: Version) -> bool:
    """Whether a text is a version above another one."""
    try:
        return Version(text) > version
    except InvalidVersion:
        return False


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


def _is_about(condition: CompareVersion, pair: ReleasePair) -> bool:
    if condition.source is VersionSource.MODULE:
        return pair.owns(condition.subject)
    return canonicalize_name(condition.subject) == canonicalize_name(pair.distribution)


def _points(compares: list[CompareVersion | None], allowed: SpecifierSet, pair: ReleasePair) -> Iterator[Version]:
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


class ReleaseSide:
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


def old_side(pairs: Iterable[ReleasePair]) -> ReleaseSide:
    """What is installed before the upgrade."""
    return ReleaseSide([(pair.distribution, pair.old) for pair in pairs])


def new_side(pairs: Iterable[ReleasePair]) -> ReleaseSide:
    """What is installed after it."""
    return ReleaseSide([(pair.distribution, pair.new) for pair in pairs])


def reachable(conditions: Iterable[Condition], side: ReleaseSide) -> bool | None:
    """Whether all conditions hold."""
    return _all(evaluate(condition, side) for condition in conditions)


def evaluate(condition: Condition, side: ReleaseSide) -> bool | None:
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
    """`version operator literal` as the code writes it; None if one of them is not a version."""
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


def _probe(condition: HasName | HasParameter | ModuleExists, side: ReleaseSide) -> bool | None:
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
