"""Defaults with another value, at calls that rely on them. Values are compared, not their spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.findings import Severity, Verdict
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.binding import bind, named
from tooling.upgrade.verdicts.calls import arguments_of
from tooling.upgrade.verdicts.records import Problem
from tooling.upgrade.verdicts.wording import evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.symbols import Parameter
    from tooling.upgrade.uses import Arguments
    from tooling.upgrade.verdicts.callables import Callable_
    from tooling.upgrade.verdicts.case import Case


def changed(case: Case) -> Iterator[Problem]:
    """A parameter that the call leaves out has another default now."""
    arguments = arguments_of(case)
    before, after = case.called_before.callables, case.called_after.callables
    if arguments is None or arguments.partial or case.use.action is Action.DECORATE:
        return  # arguments of a partial may still come
    if len(before) != 1 or len(after) != 1:
        return  # of a union nobody knows which default is meant
    for parameter, was in _differing(before[0], after[0], arguments):
        yield Problem(
            kind=Verdict.DEFAULT_CHANGED,
            severity=Severity.WARNING,
            place=case.use.place,
            symbol=case.symbol,
            message=f"{case.symbol}: `{parameter.name}` is {parameter.default} by default now; it was {was.default}",
            parameter=parameter.name,
            confidence=case.confidence,
            old=evidence(case.old, before[0].symbol),
            new=evidence(case.new, after[0].symbol),
        )


def _differing(before: Callable_, after: Callable_, arguments: Arguments) -> Iterator[tuple[Parameter, Parameter]]:
    old = bind(before.signature, arguments, before.accepts)
    new = bind(after.signature, arguments, after.accepts)
    for parameter in after.signature.parameters:
        was = named(before.signature, parameter.name)
        if was is None or parameter.name not in new.omitted or was.name not in old.omitted:
            continue
        if was.folded is not None and parameter.folded is not None and was.folded != parameter.folded:
            yield parameter, was
