"""Lists all rules by id and family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    alignment,
    asynchrony,
    bounds,
    completeness,
    configuration,
    contradictions,
    dimensions,
    distributed,
    invariants,
    kinds,
    lifetimes,
    linted,
    members,
    messages,
    numerics,
    outcomes,
    references,
    regressions,
    robustness,
    security,
    services,
    settings,
    slips,
    typed,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule


FAMILIES: Final = {
    "alignment": alignment.RULES,
    "asynchrony": asynchrony.RULES,
    "bounds": bounds.RULES,
    "completeness": completeness.RULES,
    "configuration": configuration.RULES,
    "contradictions": contradictions.RULES,
    "dimensions": dimensions.RULES,
    "distributed": distributed.RULES,
    "invariants": invariants.RULES,
    "kinds": kinds.RULES,
    "lifetimes": lifetimes.RULES,
    "linted": linted.RULES,
    "members": members.RULES,
    "messages": messages.RULES,
    "numerics": numerics.RULES,
    "outcomes": outcomes.RULES,
    "references": references.RULES,
    "regressions": regressions.RULES,
    "robustness": robustness.RULES,
    "security": security.RULES,
    "services": services.RULES,
    "settings": settings.RULES,
    "slips": slips.RULES,
    "typed": typed.RULES,
}
RULES: Final[dict[str, Rule]] = {rule.id: rule for rules in FAMILIES.values() for rule in rules}


FORMER: Final = {
    "barrier-of-all-ranks": "group-unnamed",
    "unknown-yaml-key": "unknown-setting-key",
}
"""Former names of rules: comments and settings may still say them."""


def family_of(rule: str) -> str:
    """Return the family of a rule's id."""
    return next(name for name, rules in FAMILIES.items() if any(each.id == rule for each in rules))
