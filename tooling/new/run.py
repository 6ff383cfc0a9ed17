"""Runs a change: plan, lock, write, then the tests of its units and what they prove.

    run_change(invocation, lambda project: plan_undo(project, "reward", "digits"))

A run that ends between writing and the end of the tests leaves units written, not proven, and its report says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, InterruptedRunError, ToolError, UsageError
from tooling.cli.report import say
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, pending, transaction
from tooling.kit.receipts import read_receipt
from tooling.new.change import apply_change, with_proof
from tooling.new.proof import Standing, hash_files, proof_of, standing, tests_there
from tooling.new.testing import run_tests, staged_tests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.cli.report import Report
    from tooling.kit.receipts import Proof, Receipt
    from tooling.new.change import Change, Invocation, Project


def run_change(invocation: Invocation, make: Callable[[Project], Change]) -> Report:
    """Plan and, unless this is a dry run, write. Raises what planning and writing raise; then nothing was written."""
    dry_run, plan_out = bool(invocation.option("dry_run")), invocation.option("plan_out")
    if plan_out is not None and dry_run:
        raise UsageError(
            "a dry run saves no plan", where="--plan-out", fix="leave --dry-run out: --plan-out applies nothing either"
        )
    project = invocation.project
    if dry_run or plan_out is not None:
        if pending(project.repository):  # what is on disk is half of something, and only a run that writes mends it
            fix = "run `areal-new recover`, then this command again"
            raise ConflictError("an interrupted run has not been rolled back yet", fix=fix)
        with invocation.phase("planning"):
            change = make(project)
        if _staged_tests_pass(invocation, change) and plan_out is not None:
            change.save(invocation.command, plan_out, force=invocation.arguments.force)
    else:
        wait = invocation.arguments.wait
        with transaction(project.repository, wait_seconds=wait, note=_say_rolled_back):
            with invocation.phase("planning"):
                change = make(project)
            if _staged_tests_pass(invocation, change, noted=True) and change.findings is None:
                with invocation.phase("writing"):
                    apply_change(project, change)
        skips = invocation.option("no_test") or invocation.option("test") == "staged" or change.conflicts
        if change.applied and not skips:
            with invocation.phase("running tests"):
                prove(project, change, wait_seconds=wait)
            if change.must_prove and change.stopped is None and not all(check.ok for check in change.checks):
                _take_back(project, change, wait_seconds=wait)
    change.cool()
    found = (read_receipt(project.root, unit.kind, unit.name) for unit in change.units)
    change.standings = [standing(Plan(project.root), receipt) for receipt in found if receipt is not None]
    return change.report(invocation.command, dry_run=dry_run, show_diff=bool(invocation.option("diff")))


def _staged_tests_pass(invocation: Invocation, change: Change, *, noted: bool = False) -> bool:
    """Run the tests on a copy of the repository as it will be, where that is asked for. noted: the receipts that will
    be written say what came out."""
    if change.conflicts or invocation.option("test") != "staged":
        return True
    project, plan = invocation.project, change.plan
    with invocation.phase("running tests on a copy"):
        for receipt in change.units:
            tests = tests_there(plan, receipt)
            if not tests or standing(plan, receipt).proven:
                continue
            result = staged_tests(project.repository, plan, tests, python=project.python)
            change.checks.append(result)
            if result.ok and noted:
                with_proof(plan, receipt, proof_of(tests, result, hash_files(plan, receipt)))
                tables = {(entry.file, entry.table) for entry in receipt.unproven}
                change.registered = [row for row in change.registered if (row.file, row.table) not in tables]
    return all(check.ok for check in change.checks)


def prove(project: Project, change: Change, *, wait_seconds: float) -> None:
    """Run the tests of each unit of a written change that is not proven, and note in its receipt what they say.

    An interrupt, and whatever else stops the tests or the note, becomes the problem of the change: its files are there.
    """
    for unit in change.units:
        disk = Plan(project.root)
        receipt = read_receipt(project.root, unit.kind, unit.name) or unit
        if standing(disk, receipt).proven:
            continue
        tests, tested = tests_there(disk, receipt), hash_files(disk, receipt)
        if not tests:
            continue
        name = "tests" if len(change.units) == 1 else f"tests of {receipt.kind} {receipt.name}"
        try:
            result = run_tests(project.root, tests, python=project.python, name=name, warm=change.warm)
            change.checks.append(result)
            if result.ok and change.further_proof is not None:
                further = change.further_proof()
                change.checks.append(further)
                result = result if further.ok else replace(result, ok=False)
            _note(project, change, receipt, proof_of(tests, result, tested), wait_seconds)
        except KeyboardInterrupt:
            change.stopped = InterruptedRunError(
                "interrupted: the files are written, the proof is not finished",
                where=f"{receipt.kind} {receipt.name}",
                fix=_ways_on(change, receipt),
            )
        except ToolError as error:
            error.message = f"the files are written, the proof is not: {error.message}"
            error.fix = "; ".join(filter(None, (error.fix, _ways_on(change, receipt))))
            change.stopped = error
        if change.stopped is not None:
            return


def _take_back(project: Project, change: Change, *, wait_seconds: float) -> None:
    """Put every file back to what it was before the change. Where somebody changed one since, all stay, with a
    warning."""
    with transaction(project.repository, wait_seconds=wait_seconds, note=_say_rolled_back):
        plan, receipts = Plan(project.root), {unit.path for unit in change.units}
        for item in change.plan.changes:
            if item.path not in receipts and plan.read(item.path) != item.after:
                change.warnings.append(f"the files stay: {item.path} changed while the tests ran")
                change.must_prove = False
                return
        for item in change.plan.changes:
            if item.before is None:
                plan.delete(item.path, reason="undone: its tests failed")
            else:
                plan.write(item.path, item.before, reason="undone: its tests failed")
        apply_plan(project.repository, plan)
    change.applied, change.units, change.plan = False, [], Plan(project.root)
    change.registered, change.next_steps = [], []


def _ways_on(change: Change, receipt: Receipt) -> str:
    back = f", or `{change.take_back}` to take it back" if change.take_back else ""
    return f"run `{Standing(receipt, current=False).command}` to finish it{back}"


def _note(project: Project, change: Change, receipt: Receipt, proof: Proof, wait_seconds: float) -> None:
    """Write a proof into the unit's receipt. Raises ConflictError when the unit changed while its tests ran."""
    with transaction(project.repository, wait_seconds=wait_seconds, note=_say_rolled_back):
        plan = Plan(project.root)
        found = read_receipt(project.root, receipt.kind, receipt.name)
        if found is None or found.files != receipt.files or hash_files(plan, found) != proof.tested:
            raise ConflictError("changed while its tests ran", where=receipt.path)
        _, made = with_proof(plan, found, proof)
        apply_plan(project.repository, plan)
    change.registered += made


def _say_rolled_back(line: str) -> None:
    say(f"rolled back an interrupted run: {line}")
