"""Compares generated units with their receipts: proven or not; files pristine, edited or missing; entries in place;
template newer.

Only reads; a unit that needs attention is not an error: the exit code is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tooling.cli.errors import ConflictError, ToolError
from tooling.cli.report import Report, aligned
from tooling.kit.change.plan import Plan, sha256
from tooling.kit.change.transaction import pending
from tooling.kit.receipts import read_receipts
from tooling.kit.template.tree import hash_algorithm, tree_hash
from tooling.new.change import find_unit
from tooling.new.proof import standing
from tooling.new.unit import entry_state

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.kit.kind import DocumentEntry, RegistryEntry
    from tooling.kit.receipts import Receipt
    from tooling.new.change import Invocation, Project


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="only units of this kind")
    parser.add_argument("name", metavar="NAME", nargs="?", help="only this unit")


def run(invocation: Invocation) -> Report:
    """Compare the units with their receipts."""
    kind, name, project = invocation.arguments.kind, invocation.arguments.name, invocation.project
    if kind is not None and name is not None:
        receipts = [find_unit(project, kind, name)]
    else:
        if kind is not None:
            project.kind(kind)  # refuses a misspelt one
        receipts = [receipt for receipt in read_receipts(project.root) if kind in (None, receipt.kind)]
    units = [unit_status(project, receipt) for receipt in receipts]
    warnings = ("an interrupted run waits for `areal-new recover`",) if pending(project.repository) else ()
    parts = []
    for receipt, unit in zip(receipts, units, strict=True):
        known = standing(Plan(project.root), receipt)
        rows = [("", "proof", f"{known}{known.advice}")]
        rows += [("", file["state"], file["path"]) for file in unit["files"]]
        rows += [("", item["state"], f"{item['file']} {item['table']} {item['key']}") for item in unit["entries"]]
        parts += [f"{unit['kind']} {unit['name']}: {unit['state']} (template {unit['template']})", aligned(rows)]
    text = "\n".join(parts) or "no generated units"
    return Report(command="status", changing=False, warnings=warnings, text=text, data={"units": units})


def unit_status(project: Project, receipt: Receipt) -> dict[str, Any]:
    """Say how one unit is, as JSON values.

    `state` is the first that holds of: "incomplete" (a file or entry is missing or changed), "failed" (its tests did),
    "written" (they have not passed yet), "edited", "outdated", "clean"; `template` is "current", "outdated", or
    "unavailable" when the kind is gone.
    """
    plan = Plan(project.root)
    files = [
        {"path": path, "state": file_state(plan, path, entry.sha256)} for path, entry in sorted(receipt.files.items())
    ]
    known = standing(plan, receipt)
    unproven = () if receipt.proof.state == "proven" else receipt.unproven
    made: tuple[RegistryEntry | DocumentEntry, ...] = (*receipt.entries, *unproven, *receipt.documents)
    entries = [
        {"file": item.file, "table": item.table, "key": item.key, "state": entry_state(plan, item)} for item in made
    ]
    try:
        tree = tree_hash(project.kind(receipt.kind).folder, algorithm=hash_algorithm(project.repository))
        template = "current" if tree == receipt.template.tree else "outdated"
    except ToolError:
        template = "unavailable"
    states = {file["state"] for file in files}
    if "missing" in states or any(item["state"] != "present" for item in entries):
        state = "incomplete"
    elif receipt.proof.state != "proven":
        state = "failed" if receipt.proof.state == "failed" else "written"
    elif "edited" in states:
        state = "edited"
    else:
        state = "outdated" if template == "outdated" else "clean"
    return {
        "kind": receipt.kind,
        "name": receipt.name,
        "state": state,
        "template": template,
        "proof": known.as_data(),
        "generator": receipt.generator,
        "files": files,
        "entries": entries,
    }


def file_state(plan: Plan, path: str, digest: str) -> Literal["pristine", "edited", "missing"]:
    """Say how a generated file is; something else in its place counts as an edit."""
    try:
        content = plan.read(path)
    except ConflictError:
        return "edited"
    if content is None:
        return "missing"
    return "pristine" if sha256(content) == digest else "edited"
