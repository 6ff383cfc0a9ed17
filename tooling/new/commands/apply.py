"""Applies a plan that --plan-out saved, exactly as it was reviewed.

Refused (exit code 3) when a file has changed since the plan was made. Applying it again does nothing.
"""

# A plan file (`tooling.new.change.Change.save`) may come from anybody: paths and types are checked, nothing in it is
# evaluated. Its content is still code that its tests run; review it like a patch.

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.parser import add_changing
from tooling.cli.report import Registration
from tooling.kit.change.plan import read_inside, safe_path
from tooling.kit.change.plan_file import plan_from_document
from tooling.kit.receipts import RECEIPTS, parse_receipt, read_receipt
from tooling.new.change import KeptFile, UnitRequest, with_proof
from tooling.new.command_line import add_testing
from tooling.new.run import run_change

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.change.plan import Plan
    from tooling.kit.receipts import Receipt
    from tooling.new.change import Change, Invocation, Project

_TEXTS = ("command", "kind", "name", "commit")
_LISTS = ("tests", "next", "warnings", "conflicts", "references", "backups")
_TABLES: dict[str, dict[str, type]] = {
    "kept": {"path": str, "reason": str},
    "registered": {field.name: int if field.name == "line" else str for field in fields(Registration)},
    "templates": {"kind": str, "tree": str},
}
"""Lists of objects in a plan file, with the fields of an object and their types."""


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="the saved plan")
    add_changing(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Apply the plan."""
    return run_change(invocation, lambda project: load_plan(invocation.arguments.file, project))


def load_plan(file: str, project: Project) -> Change:
    """Return the change that a plan file describes; its plan is empty when everything in it is on disk already.

    Raises UsageError for a damaged file, ConflictError naming every file that changed since the plan was made.
    """
    try:
        document = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=file, fix="name a file of --plan-out") from error
    except (ValueError, RecursionError) as error:
        _refuse(file, f"not JSON: {error}")
    if not isinstance(document, dict):
        _refuse(file, "not a JSON object")
    plan, extra = plan_from_document(document, project.root), document["extra"]
    damaged = [name for name in _TEXTS if not isinstance(extra.get(name), str)]
    damaged += [name for name in _LISTS if not _is_list(extra.get(name), str)]
    damaged += [
        name
        for name, known in _TABLES.items()
        if not _is_list(extra.get(name), dict)
        or not all(item.keys() == known.keys() for item in extra[name])
        or not all(isinstance(value, known[field]) for item in extra[name] for field, value in item.items())
    ]
    if damaged:
        _refuse(file, f"`extra` has no usable {', '.join(damaged)}")
    change = project.change(UnitRequest(kind=extra["kind"], name=extra["name"]))
    if extra["tests"]:
        change.units = _receipts(plan)
    if _is_applied(project, plan_from_document(document, project.root)):
        return change
    moved = [item.path for item in plan.changes if read_inside(project.root, item.path) != item.before]
    if moved:
        raise ConflictError(
            "changed since the plan was made", where=", ".join(moved), fix="make the plan again with --plan-out"
        )
    for path in extra["tests"]:  # a path goes to pytest as an argument
        if safe_path(path) != path or path.startswith("-") or plan.read(path) is None:
            _refuse(file, f"the test {path!r} is not in the repository")
    change.plan, change.commit = plan, extra["commit"]
    change.tests, change.references = tuple(extra["tests"]), tuple(extra["references"])
    change.next_steps, change.warnings, change.conflicts = extra["next"], extra["warnings"], extra["conflicts"]
    change.backups = [safe_path(path) for path in extra["backups"]]
    change.kept = [KeptFile(**item) for item in extra["kept"]]
    change.registered = [Registration(**item) for item in extra["registered"]]
    change.templates = {item["kind"]: item["tree"] for item in extra["templates"]}
    return change


def _receipts(plan: Plan) -> list[Receipt]:
    """Return the receipts that a plan writes."""
    return [
        parse_receipt(item.after, item.path)
        for item in plan.changes
        if item.after is not None and item.path.startswith(f"{RECEIPTS}/")
    ]


def _is_applied(project: Project, plan: Plan) -> bool:
    """Check whether everything in a plan is on disk already, whatever the units' tests have said since."""
    for receipt in _receipts(plan):
        found = read_receipt(project.root, receipt.kind, receipt.name)
        if found is not None and replace(found, proof=receipt.proof) == receipt:
            with_proof(plan, receipt, found.proof)
    return all(read_inside(project.root, item.path) == item.after for item in plan.changes)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _refuse(file: str, problem: str) -> NoReturn:
    raise UsageError(f"the saved plan is damaged: {problem}", where=file, fix="make the plan again with --plan-out")
