"""A plan of a unit together with what reports and saved plans say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.new.unit.records import UnitPlan


@dataclass(frozen=True, slots=True)
class Work:
    """A plan of a unit with what reports and `carry_out` need besides."""

    unit: UnitPlan
    kind: str
    name: str
    extra: Mapping[str, Any]
    """For `carry_out`."""

    @classmethod
    def of(cls, unit: UnitPlan, kind: str, name: str) -> Work:
        """The work of a plan that was made just now."""
        return cls(unit, kind, unit.receipt.name if unit.receipt is not None else name, unit.extra)
