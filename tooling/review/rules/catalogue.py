"""Lists all rules by id and family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    alignment,
    asynchrony,
    command_lines,
    completeness,
    conditions,
    configuration,
    contradictions,
    copies,
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
    testing,
    trajectories,
    typed,
    yaml_keys,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule


_MODULES: Final = (
    *(alignment, asynchrony, command_lines, completeness, conditions, configuration, contradictions, copies),
    *(distributed, imports, inheritance, invariants, kept, kinds, leftovers, lifetimes, linted, loops, members),
    *(messages, numerics, options, outcomes, paths, ranks, readings, references, regressions, reproducibility),
    *(rewards, robustness, security, services, testing, trajectories, typed, yaml_keys),
)
FAMILIES: Final = {each.__name__.rpartition(".")[2]: each.RULES for each in _MODULES}
RULES: Final[dict[str, Rule]] = {rule.id: rule for rules in FAMILIES.values() for rule in rules}


FORMER: Final = {"barrier-of-all-ranks": "group-unnamed"}
"""Former names of rules that became part of another: comments and settings may still say them."""


def family_of(rule: str) -> str:
    """Return the family of a rule's id."""
    return next(name for name, rules in FAMILIES.items() if any(each.id == rule for each in rules))
