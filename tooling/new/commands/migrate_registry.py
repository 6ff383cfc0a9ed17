"""Turns a registry that dispatches by if/elif into a literal table, once.

The function keeps its signature, docstring and comments, and answers every name as before; anything that would not is
refused (exit code 6) with the line and the reason.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.report import Report
from tooling.kit.change.plan import Plan
from tooling.new.cli.arguments import add_changing
from tooling.new.cli.performing import note_recovery, refuse_interrupted

if TYPE_CHECKING:
    from tooling.kit.edits.migrate import Migration
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="the Python file with the dispatching function")
    parser.add_argument("--function", metavar="NAME", help="which function, when there are several")
    add_changing(parser)


def run(invocation: Invocation) -> Report:
    """Rewrite the file."""
    if not invocation.writes:
        refuse_interrupted(invocation)
        plan, migration = _plan(invocation)
        return _report(invocation, plan, migration)
    from tooling.kit.change.transaction import apply_plan, transaction

    with transaction(invocation.repository, wait_seconds=invocation.arguments.wait, note=note_recovery):
        plan, migration = _plan(invocation)
        apply_plan(invocation.repository, plan)
    return _report(invocation, plan, migration)


def _plan(invocation: Invocation) -> tuple[Plan, Migration]:
    from tooling.kit.edits.migrate import migrate_registry

    root = invocation.repository.root
    plan, path = Plan(root), _inside(root, invocation.arguments.file)
    source = plan.read(path)
    if source is None:
        raise UsageError("does not exist", where=path, fix="name a Python file of the repository")
    migration = migrate_registry(source, file=path, function=invocation.arguments.function)
    plan.write(path, migration.source, reason=f"{migration.function}: table {migration.table} instead of if/elif")
    return plan, migration


def _inside(root: Path, file: str) -> str:
    """The path relative to the repository, of a file that is named from the current folder."""
    full = Path(os.path.normpath(Path.cwd() / file))
    for base in (root, root.resolve()):
        if full.is_relative_to(base):
            return full.relative_to(base).as_posix()
    if not Path(file).is_absolute() and (root / file).is_file():
        return Path(file).as_posix()  # with --repo, from elsewhere
    raise UsageError("lies outside the repository", where=file, fix=f"name a file inside {root}")


def _report(invocation: Invocation, plan: Plan, migration: Migration) -> Report:
    entries = dict(migration.entries)
    lines = [f"{migration.table} of {migration.function}:", *(f"  {key}  {value}" for key, value in entries.items())]
    return Report(
        command="migrate-registry",
        dry_run=not invocation.writes,
        changes=plan.changes,
        show_diff=invocation.arguments.diff,
        warnings=migration.notes,
        text="\n".join(lines) if plan else "",
        data={
            "applied": invocation.writes,
            "function": migration.function,
            "table": migration.table,
            "entries": entries,
        },
    )
