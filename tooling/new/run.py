"""Runs a change: lock, plan, staged tests, write, tests, report; and writes it: backups, template, files.

    def make(workspace: Workspace) -> Change: return plan_undo(workspace, kind, name)
    report = run_change(invocation, make)

A dry run and `--plan-out` stop after the plan: they take no lock and write nothing into the repository. Backups lie in
the git directory, out of sight of git and of every tool that walks the work tree.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, ToolError, UsageError, WriteError
from tooling.cli.report import say
from tooling.kit.change.disk import ignore
from tooling.kit.change.transaction import apply_plan, pending, transaction
from tooling.new.testing import run_tests, staged_tests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tooling.cli.report import Report
    from tooling.kit.change.disk import Observe
    from tooling.new.change import Change
    from tooling.new.command_line import Invocation
    from tooling.new.workspace import Workspace


def run_change(invocation: Invocation, make: Callable[[Workspace], Change]) -> Report:
    """Plan and, unless this is a dry run, write. Raises what planning and writing raise; then nothing was written."""
    dry_run, plan_out = bool(invocation.option("dry_run")), invocation.option("plan_out")
    if plan_out is not None and dry_run:
        raise UsageError(
            "a dry run saves no plan", where="--plan-out", fix="leave --dry-run out: --plan-out applies nothing either"
        )
    workspace = invocation.workspace
    if dry_run or plan_out is not None:
        refuse_interrupted(workspace)
        with invocation.phase("planning"):
            change = make(workspace)
        if _staged_tests_pass(invocation, change) and plan_out is not None:
            from tooling.new.saved_plan import save_plan

            save_plan(change, invocation.command, plan_out, force=invocation.arguments.force)
            change.plan_file = plan_out
    else:
        with transaction(workspace.repository, wait_seconds=invocation.arguments.wait, note=note_recovery):
            with invocation.phase("planning"):
                change = make(workspace)
            if _staged_tests_pass(invocation, change) and change.findings is None:
                with invocation.phase("writing"):
                    apply_change(workspace, change)
        skips = invocation.option("no_test") or invocation.option("test") == "staged" or change.conflicts
        if change.applied and change.tests and change.plan and not skips:
            with invocation.phase("running tests"):
                change.checks.append(run_tests(workspace.root, list(change.tests), python=workspace.python))
    return change.report(invocation.command, dry_run=dry_run, show_diff=bool(invocation.option("diff")))


def note_recovery(line: str) -> None:
    """Tell people what an interrupted run had left."""
    say(f"rolled back an interrupted run: {line}")


def refuse_interrupted(workspace: Workspace) -> None:
    """Raise ConflictError when an interrupted run waits for its rollback: what is on disk is then half of something,
    and a command that writes nothing cannot put it right."""
    if pending(workspace.repository):
        raise ConflictError(
            "an interrupted run has not been rolled back yet", fix="run `areal-new recover`, then this command again"
        )


def _staged_tests_pass(invocation: Invocation, change: Change) -> bool:
    """Run the tests on a copy of the repository as it will be, where that is asked for."""
    if change.conflicts or not change.tests or invocation.option("test") != "staged":
        return True
    workspace = invocation.workspace
    with invocation.phase("running tests on a copy"):
        result = staged_tests(workspace.repository, change.plan, list(change.tests), python=workspace.python)
    change.checks.append(result)
    return result.ok


def apply_change(workspace: Workspace, change: Change, *, observe: Observe = ignore) -> None:
    """Write a change: backups first, then the template into git, then the files as one transaction. The caller holds
    the repository's lock.

    Raises what `apply_plan` raises; then nothing of the plan is on disk. `observe` is handed on to it.
    """
    for kind, tree in change.templates.items():
        warning = _store_template(workspace, kind, tree)
        if warning:
            change.warnings.append(warning)
    folder = _back_up(workspace, change) if change.backups else None
    try:
        apply_plan(workspace.repository, change.plan, observe=observe)
    except BaseException:
        if folder is not None:
            _discard(folder)
        raise
    change.applied, change.backup = True, folder


def _store_template(workspace: Workspace, kind: str, tree: str) -> str:
    """Keep a template's tree in git; "" or a warning: the unit is complete without it."""
    from tooling.kit.template.tree import store_tree

    try:
        stored = store_tree(workspace.repository, workspace.kind(kind).folder)
    except ToolError as error:
        return f"the template of {kind} was not stored in git, a later update may miss its base: {error}"
    if stored == tree:
        return ""
    return f"the template of {kind} changed since the plan was made; `areal-new update` will bring its units up to date"


def _back_up(workspace: Workspace, change: Change) -> Path:
    before = {item.path: item.before for item in change.plan.changes}
    folder = _new_folder(workspace.repository.state / "backup")
    try:
        for path in change.backups:
            content = before.get(path)
            if content is None:
                raise ConflictError("the plan does not change it, so it cannot be backed up", where=path)
            copy = folder / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except OSError as error:
        _discard(folder)
        if isinstance(error, ToolError):
            raise
        raise WriteError(f"no backup could be written: {error.strerror}", where=os.fspath(folder)) from error
    except ToolError:
        _discard(folder)
        raise
    return folder


def _new_folder(parent: Path) -> Path:
    """Make an empty folder named by the time, "20260131T120000Z" or, within the same second, "20260131T120000Z-2"."""
    import time

    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise WriteError(f"no backup could be written: {error.strerror}", where=os.fspath(parent)) from error
        return folder
    raise WriteError("too many backups in one second", where=os.fspath(parent))


def _discard(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
