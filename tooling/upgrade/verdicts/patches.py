"""Assignments into a package. A patch of a name that is gone raises nothing and does nothing: the worst kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Severity, Verdict
from tooling.upgrade.symbols import Open, SymbolKind
from tooling.upgrade.uses import Attribute, Called, InstanceOf
from tooling.upgrade.verdicts.presence import absences
from tooling.upgrade.verdicts.records import Problem
from tooling.upgrade.verdicts.shapes import misfit
from tooling.upgrade.verdicts.wording import evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.verdicts.case import Case


def lost_patches(case: Case) -> Iterator[Problem]:
    """The patched name is gone. On an instance the assignment may be of the repository's own making: a warning."""
    for problem in absences(case):
        on_instance = isinstance(case.use.target, Attribute) and isinstance(case.use.target.base, Called | InstanceOf)
        severity = Severity.WARNING if on_instance else problem.severity
        yield replace(problem, severity=severity, fixable=False)


def misfitting_patches(case: Case) -> Iterator[Problem]:
    """What is put in place of a function does not take what the function takes now, and took what it took before."""
    method = case.use.method
    if method is None or len(case.before.found) != 1 or len(case.after.found) != 1 or not case.after.closed:
        return
    before, after = case.before.found[0].symbol, case.after.found[0].symbol
    if SymbolKind.FUNCTION not in (before.kind, after.kind) or before.kind is not after.kind:
        return
    old, new = case.old.signature(before), case.new.signature(after)
    if isinstance(old, Open) or isinstance(new, Open) or not old.exact or not new.exact:
        return
    why = misfit(method, new)
    if not why or misfit(method, old):
        return
    yield Problem(
        kind=Verdict.OVERRIDE_DRIFT,
        severity=Severity.WARNING,
        place=case.use.place,
        symbol=case.symbol,
        message=f"what replaces {case.symbol} does not fit its signature any more: {why}",
        confidence=case.confidence,
        old=evidence(case.old, before),
        new=evidence(case.new, after),
    )
