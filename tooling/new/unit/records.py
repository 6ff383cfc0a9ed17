"""The records that every command on a unit takes and gives: a request, and the plan that answers it.

request = UnitRequest(kind="reward", name="digits", answers={"style": "exact"})
unit_plan = plan_unit(workspace, request)          # nothing was written yet
carry_out(workspace, unit_plan.plan, unit_plan.extra)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import CheckResult, DocumentEntry, Findings, RegistryEntry
    from tooling.kit.receipts import Receipt

EDITED_SINCE = 4
MERGE_CONFLICTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRequest:
    """What to generate."""

    kind: str
    name: str
    """As the user wrote it."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Given answers, typed; questions that were not answered get their defaults."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Given options of the manifest, without dashes."""
    register: bool = True


@dataclass(frozen=True, slots=True)
class Registered:
    """A registry entry or a document line that the plan makes or removes."""

    entry: RegistryEntry | DocumentEntry
    line: int
    """1-based line of the entry: in the new file when made, in the old one when removed."""
    action: Literal["add", "remove"] = "add"


@dataclass(frozen=True, slots=True)
class Kept:
    """Something of the user's that a command left alone although it was asked to change it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """A plan and what there is to say about it. Nothing is written before `carry_out`."""

    plan: Plan
    receipt: Receipt | None
    """As it will be; None when the unit goes."""
    registered: tuple[Registered, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    next_steps: tuple[str, ...] = ()
    commit: str = ""
    """Subject for a commit of the change; empty when the template suggests none."""
    warnings: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Files that prove the unit, relative to the repository root."""
    kept: tuple[Kept, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Files that will hold conflict markers."""
    references: tuple[str, ...] = ()
    """Places elsewhere that name the unit, "path:line: text"."""
    backups: tuple[str, ...] = ()
    """Files that are copied into the git directory before the plan changes them."""
    findings: Findings | None = None
    """What the page found out, where nothing was to be generated."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Kind -> tree hash of the templates to store in git, so that a later update finds its base."""

    @property
    def exit_code(self) -> int:
        """0; 4 when something edited was kept; 5 when conflict markers are left for a person."""
        if self.conflicts:
            return MERGE_CONFLICTS
        return EDITED_SINCE if self.kept else 0

    @property
    def extra(self) -> dict[str, Any]:
        """What `carry_out` needs besides the plan, as JSON; goes into a saved plan."""
        templates = [{"kind": kind, "tree": tree} for kind, tree in sorted(self.templates.items())]
        return {"backups": list(self.backups), "templates": templates}
