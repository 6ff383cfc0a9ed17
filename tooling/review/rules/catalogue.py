"""All rules, by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    asynchrony,
    completeness,
    configuration,
    distributed,
    numerics,
    references,
    rewards,
    robustness,
    security,
    testing,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule

FAMILIES: Final = {
    "asynchrony": asynchrony.RULES,
    "completeness": completeness.RULES,
    "configuration": configuration.RULES,
    "distributed": distributed.RULES,
    "numerics": numerics.RULES,
    "references": references.RULES,
    "rewards": rewards.RULES,
    "robustness": robustness.RULES,
    "security": security.RULES,
    "testing": testing.RULES,
}
RULES: Final[dict[str, Rule]] = {rule.id: rule for rules in FAMILIES.values() for rule in rules}


def family_of(rule: str) -> str:
    """The family of a rule's id."""
    return next(name for name, rules in FAMILIES.items() if any(each.id == rule for each in rules))
