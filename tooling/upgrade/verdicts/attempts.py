"""Fallbacks: what fails inside a `try` that catches it is no breakage while another path works.

try:                                   gone in new: silent, the handler takes over
    from pkg.old import f
except ImportError:                    judged only because the body can fail
    from pkg.new import f
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Severity
from tooling.upgrade.uses import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.uses import Attempt, Use
    from tooling.upgrade.verdicts.records import Alternatives, JudgeContext, Problem

_BROAD = frozenset({"*", "Exception", "BaseException"})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What fallbacks make of a problem."""

    problem: Problem | None
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


def rule(problem: Problem, use: Use, context: JudgeContext) -> Ruling:
    """Innermost statement first. A use in a handler counts only if the body can fail on the new version."""
    guard = ""
    for attempt in reversed(use.attempts):
        alternatives = context.alternatives(use.place.path, attempt.number)
        if attempt.part == "handler":
            if not _handler_reached(attempt, alternatives):
                return Ruling(None)
            guard = guard or f"except {_names(attempt)}"
            continue
        if not problem.raises or attempt.reraises or not catches(attempt.catches, problem.raises):
            continue
        guard = guard or f"try ... except {_names(attempt)}"
        if not _is_fallback(attempt, use, alternatives):
            continue
        return Ruling(_masked(problem, use, alternatives), guard)
    return Ruling(problem, guard)


def _handler_reached(attempt: Attempt, alternatives: Alternatives) -> bool:
    """Whether the body may raise what this handler catches; a body that does nothing of ours may always."""
    if alternatives.body_open or not alternatives.body_uses:
        return True
    return any(catches(attempt.catches, raised) for raised in alternatives.body_raises)


def _is_fallback(attempt: Attempt, use: Use, alternatives: Alternatives) -> bool:
    """A handler of everything that does nothing of ours is there to report errors, unless an import is tried."""
    if use.action in (Action.IMPORT, Action.STAR_IMPORT) or use.switches or alternatives.handler_uses:
        return True
    return not attempt.catches & _BROAD


def _masked(problem: Problem, use: Use, alternatives: Alternatives) -> Problem | None:
    if alternatives.handler_uses:
        return None
    if problem.severity is Severity.INFO:
        return problem
    off = ", ".join(name.dotted for name in use.switches)
    effect = f"{off} is switched off" if off else "the fallback hides it"
    return replace(problem, severity=Severity.WARNING, message=f"{problem.message}; {effect}")


def _names(attempt: Attempt) -> str:
    names = sorted(attempt.catches - {"*"})
    return " | ".join(names) if names else "everything"
