"""Judge conditions: whether a guard or a fallback answers a problem, and guards that no allowed version needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from tooling.python.access_paths import Attribute, root_of, roots_of, spelled
from tooling.python.conditions import (
    CompareVersion,
    HasName,
    ModuleExists,
    Undecided,
    VersionSource,
    all_hold,
    answer_by_version,
    compare_versions,
    describe,
    evaluate,
    simple_parts,
)
from tooling.python.function_bodies import catches
from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.symbol import Absent, Found, Open, SymbolKind
from tooling.python.symbols.targets import locate
from tooling.python.versions import version_or_none
from tooling.upgrade.findings import AuditFinding, AuditSeverity, FindingKind
from tooling.upgrade.uses import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.python.access_paths import AccessPath
    from tooling.python.conditions import Condition, Probe, VersionedSubject
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import DeadGuard, TryPart, Use
    from tooling.upgrade.verdicts.comparison import Alternatives, JudgeContext, ReleasePair, UseProblem


_BROAD = frozenset({"*", "Exception", "BaseException"})
_OF_VERSIONS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError"})
"""What a name or parameter raises that a version lacks."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What fallbacks make of a problem."""

    problem: UseProblem | None
    guard: str = ""


def rule(problem: UseProblem, use: Use, context: JudgeContext) -> Ruling:
    """Innermost statement first. A use in a handler counts only if the body can fail on the new version."""
    guard = ""
    for attempt in reversed(use.attempts):
        alternatives = context.alternatives(attempt.path or use.place.path, attempt.number)
        if attempt.part == "else":
            if not attempt.reraises and any(catches(attempt.catches, raised) for raised in alternatives.body_raises):
                return Ruling(None)  # the body fails first
            continue
        if attempt.part == "handler":
            # The body may raise what this handler catches; one that does nothing of ours may always, and so may any
            # where it waits for bad data (`except ValueError`), not for a version.
            of_versions = attempt.catches & (_BROAD | _OF_VERSIONS)
            known = of_versions and alternatives.body_uses and not alternatives.body_open
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


def hedged(problem: UseProblem, use: Use, pairs: Sequence[ReleasePair]) -> UseProblem:
    """A problem under a condition that may keep the new version from it: one that holds on the old version and is
    open on the new one, or that cannot be read and looks at the version or asks for the name."""
    if problem.severity is not AuditSeverity.BREAKING:
        return problem
    old, new = old_side(pairs), new_side(pairs)
    roots = set(roots_of(use.target))
    own = roots | {problem.parameter, *spelled(use.target).split(".")[-1:]}
    own |= {canonicalize_name(pair.distribution) for pair in pairs if any(map(pair.owns, roots))}
    own.add(use.target.name if isinstance(use.target, Attribute) else "")
    for condition in use.conditions:
        if evaluate(condition, new.work_out) is not None:
            continue
        parts = (part.question for part in simple_parts(condition) if isinstance(part, Undecided))
        unread = {each for part in parts if part is not None for each in part.about()}
        if evaluate(condition, old.work_out) is True or unread & (own - {""}):
            message = f"{problem.message}, unless `{describe(condition)}` keeps the new version from it"
            return replace(problem, severity=AuditSeverity.WARNING, message=message, fixable=False)
    return problem


def _masked(problem: UseProblem, use: Use, alternatives: Alternatives) -> UseProblem | None:
    if alternatives.handler_uses:
        return None
    if problem.severity is AuditSeverity.INFO:
        return problem
    off = ", ".join(name.dotted for name in use.switches)
    effect = f"{off} is switched off" if off else "the fallback hides it"
    fixable = problem.fixable and not off  # mended, the attempt would ask for something else
    return replace(problem, severity=AuditSeverity.WARNING, message=f"{problem.message}; {effect}", fixable=fixable)


def _names(attempt: TryPart) -> str:
    names = sorted(attempt.catches - {"*"})
    return " | ".join(names) if names else "everything"


def dead(path: str, guard: DeadGuard, pair: ReleasePair, allowed: SpecifierSet) -> AuditFinding | None:
    """allowed: versions that the new manifest admits. A condition that asks for anything else is not judged."""
    compares = [part for part in simple_parts(guard.condition) if isinstance(part, CompareVersion)]
    own = canonicalize_name(pair.distribution)
    about_it = all(
        pair.owns(each.subject) if each.source is VersionSource.MODULE else canonicalize_name(each.subject) == own
        for each in compares
    )
    if len(compares) < len(list(simple_parts(guard.condition))) or not about_it:
        return None
    if any(each.index for each in compares):
        return None  # the number of one part repeats itself
    points = [point for point in _points(compares, allowed, pair) if allowed.contains(point, prereleases=True)]
    texts = [each.literal.rstrip(".") for each in compares]
    if points and any(is_later(text, max(points)) for text in texts):
        return None  # it waits for a version that is still to come
    answers = {evaluate(guard.condition, partial(answer_by_version, str(point))) for point in points}
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
    told = version_or_none(text)
    return told is not None and told > version


def _points(compares: list[CompareVersion], allowed: SpecifierSet, pair: ReleasePair) -> Iterator[Version]:
    """Versions around each boundary: between two of them every answer is constant."""
    texts = [each.literal.rstrip(".") for each in compares]
    texts += [specifier.version.removesuffix(".*") for specifier in allowed]
    texts += [pair.new.source.origin.version, "0", "99999"]
    for text in texts:
        version = version_or_none(text)
        if version is None:
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


class ReleaseSide:
    """The releases of one side of an upgrade."""

    def __init__(self, releases: Sequence[tuple[str, Upstream]]) -> None:
        """releases: distribution and release."""
        self.releases = releases

    def holding(self, dotted: str) -> Upstream | None:
        """The release that holds a dotted name."""
        return next((release for _name, release in self.releases if release.owns(dotted)), None)

    def version_of(self, asked: VersionedSubject) -> str | None:
        """Version that a condition asks for; None if that distribution does not change here."""
        if asked.source is VersionSource.MODULE:
            release = self.holding(asked.subject)
            return release.source.origin.version if release is not None else None
        wanted = canonicalize_name(asked.subject)
        for name, release in self.releases:
            if canonicalize_name(name) == wanted:
                return release.source.origin.version
        return None

    def constant(self, access_path: AccessPath) -> object:
        """What a constant holds, by its name in capitals and its value, which is a literal; UNKNOWN."""
        release = self.holding(root_of(access_path))
        found = locate(release, access_path).found if release is not None else ()
        values = [met.symbol for met in found if met.symbol.kind is SymbolKind.VALUE and met.symbol.name.isupper()]
        return literal(values[0].value) if len(values) == len(found) == 1 else UNKNOWN

    def answer(self, probe: Probe) -> bool | None:
        """What the releases say about a version, name, parameter or module."""
        if isinstance(probe, CompareVersion):
            version = self.version_of(probe)
            if probe.by_letter and self._compares_itself(probe.subject):
                probe = replace(probe, by_letter=False)
            return None if version is None else compare_versions(version, probe)
        if isinstance(probe, ModuleExists | Undecided):
            return self._has_module(probe.dotted) if isinstance(probe, ModuleExists) else None
        root = root_of(probe.base)
        release = self.holding(root) if root else None
        if release is None:
            return None
        if isinstance(probe, HasName):
            sight = locate(release, Attribute(probe.base, probe.name))
            if sight.closed and not sight.found and sight.absent:
                return False
            return True if sight.closed and sight.found and not sight.absent else None
        sight = locate(release, probe.base)
        if not sight.closed or len(sight.found) != 1:
            return None
        signature = release.signature(sight.found[0].symbol)
        if isinstance(signature, Open) or not signature.exact:
            return None
        return any(parameter.name == probe.name for parameter in signature.parameters)

    def work_out(self, probe: Probe) -> bool | None:
        """Like `answer`; what was not read is read now."""
        if isinstance(probe, Undecided) and probe.question is not None:
            return probe.question.holds(self)
        return self.answer(probe)

    def _compares_itself(self, subject: str) -> bool:
        """Whether a package's version is an object of its own, no plain text: `TorchVersion("2.10")`."""
        release = self.holding(subject)
        found = release.resolve(f"{subject}.__version__") if release is not None else None
        return isinstance(found, Found) and re.match(r"(?:\w+\.)*[A-Z]\w*\(", found.symbol.value or "") is not None

    def _has_module(self, dotted: str) -> bool | None:
        release = self.holding(dotted)
        if release is None:
            # Gone with its whole root: some release of this side may have held it before.
            return False if self.holding(dotted.partition(".")[0]) is not None else None
        found = release.resolve(dotted)
        if isinstance(found, Open):
            return None
        return not isinstance(found, Absent) and found.symbol.kind is SymbolKind.MODULE


def old_side(pairs: Iterable[ReleasePair]) -> ReleaseSide:
    """What is installed before the upgrade."""
    return ReleaseSide([(pair.distribution, pair.old) for pair in pairs])


def new_side(pairs: Iterable[ReleasePair]) -> ReleaseSide:
    """What is installed after it."""
    return ReleaseSide([(pair.distribution, pair.new) for pair in pairs])


def reachable(conditions: Iterable[Condition], side: ReleaseSide, *, fully: bool = False) -> bool | None:
    """Whether all conditions hold. fully: also those that are read only if much depends on it."""
    answer = side.work_out if fully else side.answer
    return all_hold(evaluate(condition, answer) for condition in conditions)
