"""All rules, by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    alignment,
    asynchrony,
    completeness,
    configuration,
    distributed,
    imports,
    members,
    numerics,
    options,
    ranks,
    references,
    reproducibility,
    rewards,
    robustness,
    security,
    testing,
    trajectories,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule

FAMILIES: Final = {
    "alignment": alignment.RULES,
    "asynchrony": asynchrony.RULES,
    "completeness": completeness.RULES,
    "configuration": configuration.RULES,
    "distributed": distributed.RULES,
    "imports": imports.RULES,
    "members": members.RULES,
    "numerics": numerics.RULES,
    "options": options.RULES,
    "ranks": ranks.RULES,
    "references": references.RULES,
    "reproducibility": reproducibility.RULES,
    "rewards": rewards.RULES,
    "robustness": robustness.RULES,
    "security": security.RULES,
    "testing": testing.RULES,
    "trajectories": trajectories.RULES,
}
RULES: Final[dict[str, Rule]] = {rule.id: rule for rules in FAMILIES.values() for rule in rules}


def family_of(rule: str) -> str:
    """The family of a rule's id."""
    return next(name for name, rules in FAMILIES.items() if any(each.id == rule for each in rules))
