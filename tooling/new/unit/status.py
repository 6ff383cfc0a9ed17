"""How generated units stand: files pristine, edited or missing; entries in place or not; template as it was or newer.

    unit_status(workspace, receipt).state    # "clean", "outdated", "edited", "incomplete"

Only reads; the answer comes from receipts, hashes and registries, never from running anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tooling.cli.errors import ConflictError, ToolError
from tooling.kit.change.plan import Plan, sha256
from tooling.kit.receipts import read_receipts
from tooling.new.unit.context import find_unit
from tooling.new.unit.registration import document_state, entry_state

if TYPE_CHECKING:
    from tooling.kit.receipts import Receipt
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.registration import EntryState

FileState = Literal["pristine", "edited", "missing"]
TemplateState = Literal["current", "outdated", "unavailable"]
UnitState = Literal["clean", "outdated", "edited", "incomplete"]


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One generated file."""

    path: str
    state: FileState


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """One registry entry or document line."""

    file: str
    table: str
    """Table of a registry, section of a document."""
    key: str
    state: EntryState


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """One unit."""

    kind: str
    name: str
    state: UnitState
    """The first that holds of: incomplete (a file or entry is missing or changed), edited, outdated, clean."""
    template: TemplateState
    generator: str
    files: tuple[FileStatus, ...]
    entries: tuple[EntryStatus, ...]

    def as_data(self) -> dict[str, Any]:
        """As JSON values."""
        from dataclasses import asdict

        data = asdict(self)
        return data | {"files": list(data["files"]), "entries": list(data["entries"])}


def unit_status(workspace: Workspace, receipt: Receipt) -> UnitStatus:
    """How one unit stands."""
    plan = Plan(workspace.root)
    files = tuple(
        FileStatus(path, file_state(plan, path, entry.sha256)) for path, entry in sorted(receipt.files.items())
    )
    entries = (
        *(EntryStatus(item.file, item.table, item.key, entry_state(plan, item)) for item in receipt.entries),
        *(EntryStatus(item.file, item.section, item.key, document_state(plan, item)) for item in receipt.documents),
    )
    template = template_state(workspace, receipt)
    return UnitStatus(
        kind=receipt.kind,
        name=receipt.name,
        state=_overall(files, entries, template),
        template=template,
        generator=receipt.generator,
        files=files,
        entries=entries,
    )


def all_status(workspace: Workspace, kind: str | None = None, name: str | None = None) -> list[UnitStatus]:
    """Every unit, those of one kind, or one unit. Raises UsageError when the one unit was not generated here."""
    if kind is not None and name is not None:
        return [unit_status(workspace, find_unit(workspace, kind, name))]
    return [
        unit_status(workspace, receipt)
        for receipt in read_receipts(workspace.root)
        if kind is None or receipt.kind == kind
    ]


def file_state(plan: Plan, path: str, digest: str) -> FileState:
    """How a generated file stands; something else in its place counts as an edit."""
    try:
        content = plan.read(path)
    except ConflictError:
        return "edited"
    if content is None:
        return "missing"
    return "pristine" if sha256(content) == digest else "edited"


def template_state(workspace: Workspace, receipt: Receipt) -> TemplateState:
    """Whether the kind's template is still the one the unit came from; "unavailable" when the kind is gone."""
    from tooling.kit.template.tree import hash_algorithm, tree_hash

    algorithm = hash_algorithm(workspace.repository)
    try:
        tree = tree_hash(workspace.kind(receipt.kind).folder, algorithm=algorithm)
    except ToolError:
        return "unavailable"
    return "current" if tree == receipt.template.tree else "outdated"


def _overall(files: tuple[FileStatus, ...], entries: tuple[EntryStatus, ...], template: TemplateState) -> UnitState:
    if any(file.state == "missing" for file in files) or any(entry.state != "present" for entry in entries):
        return "incomplete"
    if any(file.state == "edited" for file in files):
        return "edited"
    return "outdated" if template == "outdated" else "clean"
