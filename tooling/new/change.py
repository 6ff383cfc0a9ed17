"""The record of a change: what was asked, what the kind adds, the plan, and what became of it.

    request = UnitRequest(kind="reward", name="digits", answers={"style": "exact"})
    change = plan_unit(workspace, request)       # commands plan; nothing was written yet
    apply_change(workspace, change)              # writes it
    change.report("reward")                      # what the command prints

One `Change` goes from the command through planning, writing and tests to the report; each step adds what it knows.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tooling.cli.errors import ChecksFailedError, EditedSinceError, MergeConflictError
from tooling.cli.report import Report
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.cli.errors import ToolError
    from tooling.cli.report import Registration
    from tooling.kit.kind import CheckResult
    from tooling.kit.names import Names
    from tooling.kit.receipts import Receipt

SHOWN_REFERENCES = 20
"""Most lines of other files that people are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRequest:
    """What a command asks for."""

    kind: str
    name: str
    """As the user wrote it."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Given answers, typed; questions that were not answered get their defaults."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Given options of the manifest, without dashes ("from-examples"); "" for one without a value."""
    register: bool = True


class KeptFile(NamedTuple):
    """Something of the user's that a command left alone although it was asked to change it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What a generator page found out, in place of a unit."""

    text: str
    """For people."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For programs: further fields of the JSON object."""


@dataclass(slots=True, kw_only=True)
class Change:
    """One change of a repository's units. Planning fills it in; `apply_change` writes its plan."""

    root: Path
    python: Path
    """Interpreter of the repository, for child processes."""
    request: UnitRequest
    names: Names | None = None
    """Spellings of the unit's name; set before a generator page sees the change."""

    warnings: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    findings: Findings | None = None
    """What the page found out; then nothing is generated."""
    checks: list[CheckResult] = field(default_factory=list)
    registered: list[Registration] = field(default_factory=list)
    """Registry entries and document lines that the plan makes or removes."""
    tests: tuple[str, ...] = ()
    """Files that prove the unit, relative to the repository root."""
    commit: str = ""
    """Subject for a commit of the change; empty when the template suggests none."""

    plan: Plan = field(init=False)
    receipt: Receipt | None = None
    """As it will be; None when the unit goes."""
    kept: list[KeptFile] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Files that will hold conflict markers."""
    references: tuple[str, ...] = ()
    """Places elsewhere that name the unit, "path:line: text"."""
    backups: list[str] = field(default_factory=list)
    """Files that are copied into the git directory before the plan changes them."""
    templates: dict[str, str] = field(default_factory=dict)
    """Kind -> tree hash of the templates to store in git, so that a later update finds its base."""
    fix_kept: str = ""
    """What to do about what was kept."""
    take_back: str = ""
    """Command that takes everything back, for when the tests fail."""

    applied: bool = False
    backup: Path | None = None
    """Folder that holds the files a forced undo took away, at their paths."""
    plan_file: str | None = None
    """Where the plan was saved instead of being applied."""

    def __post_init__(self) -> None:
        self.plan = Plan(self.root)

    @property
    def problem(self) -> ToolError | None:
        """Why the exit code is not 0 although everything that could be done was."""
        if not all(check.ok for check in self.checks):
            undo = f", or take everything back with `{self.take_back}`" if self.applied and self.take_back else ""
            what = "the files stay" if self.applied else "nothing was written"
            return ChecksFailedError(f"the unit's tests failed; {what}", fix=f"see the output above{undo}")
        if self.conflicts:
            return MergeConflictError(
                "edits and the new template changed the same lines",
                where=", ".join(self.conflicts),
                fix="resolve the conflict markers in the files",
            )
        if self.kept:
            return EditedSinceError(
                "changed since it was generated, so it was kept",
                where=", ".join(dict.fromkeys(item.path for item in self.kept)),
                fix=self.fix_kept,
            )
        return None

    @property
    def exit_code(self) -> int:
        """0 or that of the problem."""
        return self.problem.exit_code if self.problem else 0

    def report(self, command: str, *, dry_run: bool = False, show_diff: bool = False) -> Report:
        """Return what the command prints."""
        if self.findings is not None:
            return Report(
                command=command,
                changing=False,
                warnings=tuple(self.warnings),
                text=self.findings.text,
                data=self.findings.data,
            )
        steps = list(self.next_steps)
        if self.plan_file is not None:
            steps = [f"areal-new apply {shlex.quote(self.plan_file)}"]
        elif self.plan and self.commit:
            steps.append(f"git commit -m {shlex.quote(self.commit)}")
        name = self.receipt.name if self.receipt is not None else self.request.name
        return Report(
            command=command,
            problem=self.problem,
            dry_run=dry_run,
            changes=self.plan.changes,
            show_diff=show_diff,
            registered=tuple(self.registered),
            checks=tuple(self.checks),
            next_steps=tuple(steps),
            warnings=tuple(self.warnings),
            text=self._text(),
            data={
                "applied": self.applied,
                "unit": {"kind": self.request.kind, "name": name} if name else None,
                "tests": list(self.tests),
                "kept": [item._asdict() for item in self.kept],
                "conflicts": list(self.conflicts),
                "references": list(self.references),
                "commit": self.commit,
                "backup": None if self.backup is None else os.fspath(self.backup),
                "plan_file": self.plan_file,
            },
        )

    def _text(self) -> str:
        lines = [f"kept      {item.path}: {item.reason}" for item in self.kept]
        lines += [f"conflict  {path}" for path in self.conflicts]
        if self.references:
            lines += ["named elsewhere:", *(f"  {reference}" for reference in self.references[:SHOWN_REFERENCES])]
        if len(self.references) > SHOWN_REFERENCES:
            lines.append(f"  ... and {len(self.references) - SHOWN_REFERENCES} more; --json has all")
        if self.backup is not None:
            lines.append(f"backup of edited files: {self.backup}")
        if self.plan_file:
            lines.append(f"plan saved in {self.plan_file}; nothing was applied")
        return "\n".join(lines)
