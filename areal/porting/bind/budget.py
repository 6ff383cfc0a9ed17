"""Limits what an analysis may search and build; it counts steps, so that results are the same on every machine, however
busy it is. What was given up is named. A clock has only who started the analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEPS_OF_A_FIT: Final = 600_000
"""Comparisons that the search for one expression may cost: a few seconds."""

STEPS: Final = 6_000_000
"""Of all searches of an analysis together."""

LOOKS: Final = 1_500
"""Configs that an analysis builds and runs at most; families with most fields take a quarter of them."""


class GaveUpError(Exception):
    """The search for one expression has cost what it may."""


@dataclass
class AnalysisBudget:
    """What one analysis has left."""

    steps_of_a_fit: int = STEPS_OF_A_FIT
    steps: int = STEPS
    looks: int = LOOKS
    gave_up: dict[str, str] = field(default_factory=dict)
    """Slot whose search was given up to what was searched."""

    def fit(self, slot: str, names: Sequence[str]) -> Allowance:
        """For one search."""
        return Allowance(self, slot, names, self.steps_of_a_fit)

    def count_config(self, changes: Mapping[str, Any]) -> None:
        """Count a config that is about to be built. Raises UnsupportedError when there were too many."""
        self.looks -= 1
        if self.looks < 0:
            raise UnsupportedError(
                "more dependent config fields than the analysis looks at",
                where=", ".join(f"config.{name}" for name in sorted(changes)) or "config",
                detail="the last of many configs changed these",
            )


@dataclass
class Allowance:
    """What one search may still cost."""

    budget: AnalysisBudget
    slot: str
    names: Sequence[str]
    left: int

    def spend(self, steps: int) -> None:
        """Count steps. Raises GaveUpError when this search has cost too much, UnsupportedError when all together
        have."""
        self.left -= steps
        self.budget.steps -= steps
        if self.budget.steps < 0:
            raise UnsupportedError(
                "values that no short search over config fields explains",
                where=self.slot,
                detail=f"given up among {_listed(self.names)}",
            )
        if self.left < 0:
            self.budget.gave_up[self.slot] = f"the search among {_listed(self.names)} was given up"
            raise GaveUpError(self.slot)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "no fields"
