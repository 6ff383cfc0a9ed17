"""Judges one use against the old and the new release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, InstanceOf, Name, SuperOf, spelled
from tooling.python.conditions import describe
from tooling.upgrade.findings import AuditFinding, AuditSeverity, FindingKind
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts import callbacks, calls, deprecations, kinds, overrides, presence, returns
from tooling.upgrade.verdicts.comparison import ReleasePair, UseProblem, evidence_of_absence
from tooling.upgrade.verdicts.guards import hedged, new_side, old_side, reachable, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.uses import Use
    from tooling.upgrade.verdicts.case import JudgedUse
    from tooling.upgrade.verdicts.comparison import JudgeContext

_FAMILIES = (
    presence.lost_modules,
    presence.lost_members,
    presence.lost_values,
    presence.lost_keys,
    presence.lost_places,
    presence.lost_holders,
    presence.star_losses,
    presence.unloaded,
    calls.mismatches,
    calls.changed,
    callbacks.misfits,
    returns.contradictions,
    kinds.kind_changes,
    kinds.async_changes,
    overrides.drifts,
    overrides.new_abstract_methods,
    deprecations.announced,
    deprecations.touched_privately,
)
_ABSENT = (FindingKind.REMOVED, FindingKind.MOVED, FindingKind.RENAMED)


def judge(case: JudgedUse) -> list[AuditFinding]:
    """All that the new release does to this use: a pure function of its argument.

    Nothing is said of a place that is not reached on the new version, nor of a failure that a fallback answers. A
    place that is reached on the new version only is judged by that side alone.
    """
    use, context = case.use, case.context
    if case.meets_own_member:
        return []
    pairs = context.pairs or (ReleasePair(context.distribution, case.old, case.new),)
    if reachable(use.conditions, new_side(pairs)) is False:
        return []
    was_reached = reachable(use.conditions, old_side(pairs)) is not False
    found = list(problems(case)) if was_reached else list(_new_path(case, pairs))
    if use.conditions and any(problem.severity is AuditSeverity.BREAKING for problem in found):
        if reachable(use.conditions, new_side(pairs), fully=True) is False:
            return []
        if was_reached and reachable(use.conditions, old_side(pairs), fully=True) is False:
            found = list(_new_path(case, pairs))
    findings = []
    for problem in found:
        of_import = use.action is not Action.IMPORT and problem.kind in _ABSENT and imported_name(use)
        certain = _certain(problem, use)  # what is imported fails at its import, whatever guards its uses
        ruling = rule(certain if of_import else hedged(certain, use, pairs), use, context)
        if ruling.problem is not None:
            findings.append(_finding(ruling.problem, use, context, ruling.guard))
    return findings


def problems(case: JudgedUse) -> Iterator[UseProblem]:
    """What differs for a use between the two sides, whatever guards and fallbacks make of it."""
    if case.use.action in (Action.ASSIGN, Action.DELETE):
        inherited = isinstance(case.use.target, Attribute) and isinstance(case.use.target.base, SuperOf)
        gone = [] if inherited else list(presence.lost_patches(case))  # who sets it on `self` reads it as well
        yield from gone
        yield from presence.misfitting_patches(case)
        yield from kinds.read_only(case) if not gone else ()
        yield from deprecations.touched_privately(case)
        return
    gone = list(presence.absences(case))
    refused = [] if gone else list(presence.refusals(case))
    yield from (*gone, *refused)
    if refused and len(case.after.found) == 1:
        return  # nothing else in a body that only raises is ever done
    if not gone:
        for family in _FAMILIES:
            yield from family(case)
        return
    # What a call of a moved name runs into once the name is mended; until then it fails as the name does
    first = gone[0]
    moved = first.kind in (FindingKind.MOVED, FindingKind.RENAMED) and isinstance(case.use.target, Name)
    if case.use.action is Action.CALL and moved and first.replacement is not None:
        for problem in calls.mismatches(replace(case, moved=first.replacement.text)):
            yield replace(problem, raises=first.raises, confidence=problem.confidence * 0.9)


def _new_path(case: JudgedUse, pairs: Sequence[ReleasePair]) -> Iterator[UseProblem]:
    """Code written for the new version, which lacks what the code names: nothing of the old side can be shown. What it
    puts into the package is there by its own doing."""
    if case.use.action is Action.ASSIGN:
        return
    if case.before.found:
        yield from problems(case)
        return
    if case.before.absent and isinstance(case.use.target, Attribute) and isinstance(case.use.target.base, InstanceOf):
        return  # on an instance it is of the repository's own making
    certain = reachable(case.use.conditions, new_side(pairs)) is True
    if not case.after.absent or case.after.found or not case.after.closed or case.use.action in presence.SILENT:
        return
    absent = case.after.absent[0]
    explained = case.explain(absent) or (FindingKind.REMOVED, None)
    symbol = spelled(case.use.target) or f"{absent.container}.{absent.name}"
    yield case.problem(
        explained[0],
        AuditSeverity.BREAKING,
        f"{symbol} does not exist, and this path is taken from the new version on",
        whole=certain,
        symbol=symbol,
        raises=presence.exception_of(case, absent),
        weight=0.9,
        new=evidence_of_absence(absent),
        replacement=explained[1],
        fixable=False,
        cause=f"{absent.container}.{absent.name}",
    )


def _certain(problem: UseProblem, use: Use) -> UseProblem:
    """What is never run breaks for type checkers only, and what the code does not say itself is a warning at most."""
    if use.evidence:
        problem = replace(problem, fixable=False)  # what the value is was guessed: nothing is written on that ground
    if (use.evaluated and not use.evidence) or problem.severity is not AuditSeverity.BREAKING:
        return problem
    if use.evidence:
        message = f"{problem.message} ({use.evidence})"
        return replace(problem, severity=AuditSeverity.WARNING, message=message, confidence=problem.confidence * 0.8)
    return replace(problem, severity=AuditSeverity.WARNING, message=f"{problem.message}; only type checkers read this")


def _finding(problem: UseProblem, use: Use, context: JudgeContext, fallback: str) -> AuditFinding:
    conditions = [describe(condition) for condition in use.conditions]
    guard = "; ".join(part for part in (*conditions, fallback) if part)
    return AuditFinding(
        path=problem.place.path or use.place.path,
        line=problem.place.line,
        column=problem.place.column,
        end_line=problem.place.end_line,
        kind=problem.kind,
        severity=problem.severity,
        confidence=round(problem.confidence, 3),
        distribution=context.distribution,
        symbol=problem.symbol,
        parameter=problem.parameter,
        message=problem.message,
        old=problem.old,
        new=problem.new,
        replacement=problem.replacement,
        fixable=problem.fixable,
        guard=guard,
    )


def is_absence(finding: AuditFinding) -> bool:
    """Whether it says that a name is gone. What is there only to raise has a new signature to show."""
    return finding.kind in _ABSENT and not (finding.kind is FindingKind.REMOVED and finding.new.signature)


def imported_name(use: Use) -> str:
    """Dotted path of a name that an import bound before, for a use that spells only the bound name, or takes an
    attribute of it."""
    spelt, target = use.symbol_text.partition("(")[0].count("."), use.target
    holder = target.base if isinstance(target, Attribute) and spelt == 1 else target
    return holder.dotted if isinstance(holder, Name) and spelt == (holder is not target) else ""
