"""The way of every command that changes a unit: lock, plan, staged tests, write, tests, report.

    def make(workspace: Workspace) -> Work: return Work.of(plan_undo(workspace, kind, name), kind, name)
    report = perform(invocation, make)

A dry run and `--plan-out` stop after the plan: they take no lock and write nothing into the repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ChecksFailedError, ConflictError, EditedSinceError, MergeConflictError, UsageError
from tooling.cli.report import Registration, Report, say
from tooling.kit.kind import RegistryEntry
from tooling.new.cli.arguments import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.cli.errors import ToolError
    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import CheckResult
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.carry_out import Outcome
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.records import Registered, UnitPlan
    from tooling.new.unit.work import Work

    Maker = Callable[[Workspace], Work]


SHOWN_REFERENCES = 20
"""Most lines of other files that people are shown."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do when a command did not fully succeed."""

    tests_failed: str = ""
    """Command that takes everything back."""
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a plan."""

    applied: bool
    checks: tuple[CheckResult, ...] = ()
    warnings: tuple[str, ...] = ()
    backup: str | None = None
    """Folder with the files that a forced undo took away."""
    plan_file: str | None = None


def perform(invocation: Invocation, make: Maker, advice: Advice | None = None) -> Report:
    """Plan and, unless this is a dry run, carry out. Raises what planning and applying raise; then nothing was
    written."""
    advice = advice or Advice()
    if not invocation.writes:
        return _preview(invocation, make, advice)
    from tooling.kit.change.transaction import transaction
    from tooling.new.unit.carry_out import carry_out

    with transaction(invocation.repository, wait_seconds=invocation.arguments.wait, note=note_recovery):
        with invocation.phase("planning"):
            work = make(invocation.workspace)
        staged = _staged_checks(invocation, work.unit)
        if not all(check.ok for check in staged):
            return _report(invocation, work, Done(applied=False, checks=staged), _tests_failed("nothing was written"))
        with invocation.phase("writing"):
            outcome = carry_out(invocation.workspace, work.unit.plan, work.extra)
    done = _done(outcome, staged)
    problem = _problem(work.unit, advice)
    if invocation.option("test") == "staged" or work.unit.conflicts or not work.unit.plan:
        return _report(invocation, work, done, problem)
    checks = run_unit_tests(invocation, work.unit.tests)
    if not all(check.ok for check in checks):
        problem = _tests_failed("the files stay", advice.tests_failed)
    return _report(invocation, work, replace(done, checks=checks), problem)


def note_recovery(line: str) -> None:
    """Tell people what an interrupted run had left."""
    say(f"rolled back an interrupted run: {line}")


def refuse_interrupted(invocation: Invocation) -> None:
    """Raise ConflictError when an interrupted run waits for its rollback: what is on disk is then half of something,
    and a command that writes nothing cannot put it right."""
    from tooling.kit.change.transaction import pending

    if pending(invocation.repository):
        raise ConflictError(
            "an interrupted run has not been rolled back yet", fix=f"run `{PROGRAM} recover`, then this command again"
        )


def run_unit_tests(invocation: Invocation, paths: Sequence[str]) -> tuple[CheckResult, ...]:
    """Run tests in the repository, unless `--no-test`; nothing without paths."""
    if invocation.option("no_test") or not paths:
        return ()
    from tooling.new.unit.testing_run import run_tests

    with invocation.phase("running tests"):
        return (run_tests(invocation.repository.root, list(paths), python=invocation.workspace.python),)


def run_staged_tests(invocation: Invocation, plan: Plan, paths: Sequence[str]) -> tuple[CheckResult, ...]:
    """With `--test staged`, run tests on a copy of the repository as it will be; else nothing."""
    if invocation.option("test") != "staged" or not paths:
        return ()
    from tooling.new.unit.testing_run import staged_tests

    with invocation.phase("running tests on a copy"):
        return (staged_tests(invocation.repository, plan, list(paths), python=invocation.workspace.python),)


def _preview(invocation: Invocation, make: Maker, advice: Advice) -> Report:
    saves = invocation.option("plan_out") is not None
    if saves and invocation.option("dry_run"):
        raise UsageError(
            "a dry run saves no plan", where="--plan-out", fix="leave --dry-run out: --plan-out applies nothing either"
        )
    refuse_interrupted(invocation)
    with invocation.phase("planning"):
        work = make(invocation.workspace)
    done = Done(applied=False, checks=_staged_checks(invocation, work.unit))
    if not all(check.ok for check in done.checks):
        return _report(invocation, work, done, _tests_failed("nothing was written"))
    if saves:
        from tooling.new.cli.plan_file import save_plan

        save_plan(work, invocation.command, invocation.arguments.plan_out, force=invocation.arguments.force)
        done = replace(done, plan_file=invocation.arguments.plan_out)
    return _report(invocation, work, done, _problem(work.unit, advice))


def _staged_checks(invocation: Invocation, unit: UnitPlan) -> tuple[CheckResult, ...]:
    return () if unit.conflicts else run_staged_tests(invocation, unit.plan, unit.tests)


def _tests_failed(consequence: str, undo_hint: str = "") -> ChecksFailedError:
    undo = f", or take everything back with `{undo_hint}`" if undo_hint else ""
    return ChecksFailedError(f"the unit's tests failed; {consequence}", fix=f"see the output above{undo}")


def _done(outcome: Outcome, checks: tuple[CheckResult, ...]) -> Done:
    backup = None if outcome.backup is None else os.fspath(outcome.backup)
    return Done(applied=True, checks=checks, warnings=outcome.warnings, backup=backup)


def _report(invocation: Invocation, work: Work, done: Done, problem: ToolError | None) -> Report:
    unit = work.unit
    if unit.findings is not None:
        return Report(
            command=invocation.command,
            changing=False,
            warnings=unit.warnings,
            text=unit.findings.text,
            data=unit.findings.data,
        )
    return Report(
        command=invocation.command,
        problem=problem,
        dry_run=bool(invocation.option("dry_run")),
        changes=unit.plan.changes,
        show_diff=bool(invocation.option("diff")),
        registered=tuple(registration(item) for item in unit.registered),
        checks=(*unit.checks, *done.checks),
        next_steps=_next_steps(unit, done),
        warnings=(*unit.warnings, *done.warnings),
        text=_text(unit, done),
        data=_data(work, done),
    )


def _problem(unit: UnitPlan, advice: Advice) -> ToolError | None:
    """Why the exit code is not 0 although everything that could be done was."""
    if unit.conflicts:
        return MergeConflictError(
            "edits and the new template changed the same lines",
            where=", ".join(unit.conflicts),
            fix="resolve the conflict markers in the files",
        )
    if unit.kept:
        return EditedSinceError(
            "changed since it was generated, so it was kept",
            where=", ".join(dict.fromkeys(item.path for item in unit.kept)),
            fix=advice.kept,
        )
    return None


def _next_steps(unit: UnitPlan, done: Done) -> tuple[str, ...]:
    import shlex

    if done.plan_file is not None:
        return (f"{PROGRAM} apply {shlex.quote(done.plan_file)}",)
    if not unit.plan or not unit.commit:
        return unit.next_steps
    return (*unit.next_steps, f"git commit -m {shlex.quote(unit.commit)}")


def _text(unit: UnitPlan, done: Done) -> str:
    lines = [f"kept      {item.path}: {item.reason}" for item in unit.kept]
    lines += [f"conflict  {path}" for path in unit.conflicts]
    if unit.references:
        lines += ["named elsewhere:", *(f"  {reference}" for reference in unit.references[:SHOWN_REFERENCES])]
    if len(unit.references) > SHOWN_REFERENCES:
        lines.append(f"  ... and {len(unit.references) - SHOWN_REFERENCES} more; --json has all")
    if done.backup:
        lines.append(f"backup of edited files: {done.backup}")
    if done.plan_file:
        lines.append(f"plan saved in {done.plan_file}; nothing was applied")
    return "\n".join(lines)


def _data(work: Work, done: Done) -> dict[str, Any]:
    unit = work.unit
    return {
        "applied": done.applied,
        "unit": {"kind": work.kind, "name": work.name} if work.name else None,
        "tests": list(unit.tests),
        "kept": [{"path": item.path, "reason": item.reason} for item in unit.kept],
        "conflicts": list(unit.conflicts),
        "references": list(unit.references),
        "commit": unit.commit,
        "backup": done.backup,
        "plan_file": done.plan_file,
    }


def registration(item: Registered) -> Registration:
    """A registry entry or document line as reports show it."""
    entry = item.entry
    if isinstance(entry, RegistryEntry):
        return Registration(entry.file, entry.table or entry.shape, entry.key, entry.value, item.line, item.action)
    return Registration(entry.file, entry.section, entry.key, entry.line, item.line, item.action)
