"""Lists all rules by id and family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    alignment,
    asynchrony,
    bounds,
    command_lines,
    completeness,
    conditions,
    configuration,
    contradictions,
    copies,
    dimensions,
    distributed,
    imports,
    inheritance,
    invariants,
    kept,
    kinds,
    leftovers,
    lifetimes,
    linted,
    loops,
    members,
    messages,
    numerics,
    options,
    outcomes,
    paths,
    ranks,
    readings,
    references,
    regressions,
    reproducibility,
    rewards,
    robustness,
    security,
    services,
    setting_keys,
    testing,
    trajectories,
    typed,
    waits,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule


FAMILIES: Final = {
    "alignment": alignment.RULES,
    "asynchrony": asynchrony.RULES,
    "bounds": bounds.RULES,
    "command_lines": command_lines.RULES,
    "completeness": completeness.RULES,
    "conditions": conditions.RULES,
    "configuration": configuration.RULES,
    "contradictions": contradictions.RULES,
    "copies": copies.RULES,
    "dimensions": dimensions.RULES,
    "distributed": distributed.RULES,
    "imports": imports.RULES,
    "inheritance": inheritance.RULES,
    "invariants": invariants.RULES,
    "kept": kept.RULES,
    "kinds": kinds.RULES,
    "leftovers": leftovers.RULES,
    "lifetimes": lifetimes.RULES,
    "linted": linted.RULES,
    "loops": loops.RULES,
    "members": members.RULES,
    "messages": messages.RULES,
    "numerics": numerics.RULES,
    "options": options.RULES,
    "outcomes": outcomes.RULES,
    "paths": paths.RULES,
    "ranks": ranks.RULES,
    "readings": readings.RULES,
    "references": references.RULES,
    "regressions": regressions.RULES,
    "reproducibility": reproducibility.RULES,
    "rewards": rewards.RULES,
    "robustness": robustness.RULES,
    "security": security.RULES,
    "services": services.RULES,
    "setting_keys": setting_keys.RULES,
    "testing": testing.RULES,
    "trajectories": trajectories.RULES,
    "typed": typed.RULES,
    "waits": waits.RULES,
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
