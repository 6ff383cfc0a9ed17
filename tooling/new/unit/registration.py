"""Registry entries and document lines of a unit, put into a plan or taken out of it.

A registry that cannot be edited safely stops a command (exit 6); a document without its markers is a warning, since a
unit works without its line of prose. When a unit goes, what somebody changed since is kept and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tooling.cli.errors import ChecksFailedError, ConflictError, RegistryShapeError, ToolError
from tooling.kit.edits import (
    add_document_line,
    add_entry,
    document_keys,
    find_entry,
    has_document_line,
    remove_document_line,
    remove_entry,
)
from tooling.kit.template.formatting import check_edited
from tooling.new.unit.records import Kept, Registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import DocumentEntry, RegistryEntry, ResolvedManifest
    from tooling.kit.receipts import Receipt

EntryState = Literal["present", "absent", "changed"]
_ADVISORY = frozenset({"ruff-format"})
"""Checks that an edited registry may fail: a formatter can repair the layout of a table, and nothing else does."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What `register` did."""

    registered: tuple[Registered, ...]
    entries: tuple[RegistryEntry, ...]
    """Those that were not there before."""
    documents: tuple[DocumentEntry, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """What `unregister` did, and what it left because somebody changed it."""

    registered: tuple[Registered, ...]
    kept: tuple[Kept, ...]
    entries: tuple[RegistryEntry, ...]
    documents: tuple[DocumentEntry, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """What `move_entries` did; entries and documents are those of the receipt afterwards."""

    registered: tuple[Registered, ...]
    kept: tuple[Kept, ...]
    entries: tuple[RegistryEntry, ...]
    documents: tuple[DocumentEntry, ...]
    warnings: tuple[str, ...]


def register(plan: Plan, entries: Iterable[RegistryEntry], documents: Iterable[DocumentEntry]) -> Registration:
    """Add what is missing. Raises RegistryShapeError (with the line to paste), ConflictError (another value), and
    ChecksFailedError when a registry would no longer pass the repository's ruff, e.g. by the length of a line."""
    registered: list[Registered] = []
    made: list[RegistryEntry] = []
    warnings: list[str] = []
    before: dict[str, bytes] = {}
    for entry in entries:
        source = _source(plan, entry)
        edit = add_entry(source, entry)
        if edit.note:
            warnings.append(f"{entry.file}: {edit.note}")
        if edit.changed:
            before.setdefault(entry.file, source)
            made.append(entry)
            keys_here = ", ".join(each.key for each in made if each.file == entry.file)
            plan.write(entry.file, edit.source, reason=f"register {keys_here} in {entry.table or entry.shape}")
            registered = [_below(item, entry, edit.line) for item in registered]
            registered.append(Registered(entry, edit.line))
    warnings += _check_registries(plan, before)
    lines: list[DocumentEntry] = []
    for document in documents:
        try:
            line = _add_line(plan, document)
        except ToolError as error:
            warnings.append(f"{document.file} was left alone: {error}")
            continue
        if line is not None:
            registered.append(Registered(document, line))
            lines.append(document)
    return Registration(tuple(registered), tuple(made), tuple(lines), tuple(warnings))


def _check_registries(plan: Plan, before: Mapping[str, bytes]) -> list[str]:
    """Warnings about the layout of edited registries. Raises ChecksFailedError for what ruff finds in them that it did
    not find before."""
    edits = {path: (source, plan.read(path) or b"") for path, source in before.items()}
    worse = check_edited(plan.root, edits)
    failed = [result for result in worse if result.name not in _ADVISORY]
    if failed:
        raise ChecksFailedError(
            f"would not pass {failed[0].name} any more with the new entry; nothing was written",
            where=", ".join(before),
            fix="use a shorter name where a line is too long, or --no-register and enter it by hand",
            checks=worse,
        )
    return [f"{result.name} of {', '.join(before)}: {result.detail}" for result in worse]


def unregister(plan: Plan, entries: Iterable[RegistryEntry], documents: Iterable[DocumentEntry]) -> Removal:
    """Take out what is still as it was made; what is gone already is fine."""
    registered: list[Registered] = []
    kept: list[Kept] = []
    left_entries: list[RegistryEntry] = []
    left_documents: list[DocumentEntry] = []
    for entry in entries:
        problem = _remove(plan, entry, registered)
        if problem:
            kept.append(Kept(entry.file, problem))
            left_entries.append(entry)
    for document in documents:
        problem = _remove_line(plan, document, registered)
        if problem:
            kept.append(Kept(document.file, problem))
            left_documents.append(document)
    return Removal(tuple(registered), tuple(kept), tuple(left_entries), tuple(left_documents))


def move_entries(plan: Plan, receipt: Receipt, old: ResolvedManifest | None, new: ResolvedManifest) -> Moved:
    """Make a unit's entries those of a manifest: what it no longer has goes, what it has now comes.

    What the old manifest had already and the receipt does not list was removed by somebody, or was there before; it is
    left alone. A unit generated with --no-register stays out of registries. Raises as `register`.
    """
    if not receipt.register:
        return Moved((), (), (), (), ())
    removal = unregister(
        plan,
        [entry for entry in receipt.entries if entry not in new.registry],
        [line for line in receipt.documents if line not in new.documents],
    )
    held = {(entry.file, entry.table, entry.key) for entry in removal.entries}
    before = (*receipt.entries, *(old.registry if old is not None else ()))
    lines_before = (*receipt.documents, *(old.documents if old is not None else ()))
    lines_held = {(line.file, line.section, line.key) for line in removal.documents}
    done = register(
        plan,
        [item for item in new.registry if item not in before and (item.file, item.table, item.key) not in held],
        [x for x in new.documents if x not in lines_before and (x.file, x.section, x.key) not in lines_held],
    )
    entries = [entry for entry in new.registry if entry in receipt.entries or entry in done.entries]
    documents = [line for line in new.documents if line in receipt.documents or line in done.documents]
    return Moved(
        registered=(*removal.registered, *done.registered),
        kept=removal.kept,
        entries=(*entries, *removal.entries),
        documents=(*documents, *removal.documents),
        warnings=done.warnings,
    )


def _below(item: Registered, entry: RegistryEntry, line: int) -> Registered:
    """An earlier entry where it stands once another one was put above it."""
    moved = item.entry.file == entry.file and item.line >= line
    return replace(item, line=item.line + 1) if moved else item


def entry_state(plan: Plan, entry: RegistryEntry) -> EntryState:
    """How a registry holds an entry now; "changed" also when the registry cannot be read but names the key."""
    source = plan.read(entry.file)
    if source is None:
        return "absent"
    try:
        found = find_entry(source, entry)
    except ConflictError:
        return "changed"
    except RegistryShapeError:
        return "changed" if _mentions(source, entry.key) else "absent"
    if found is None:
        return "absent"
    return "present" if found[0] == entry.value else "changed"


def document_state(plan: Plan, document: DocumentEntry) -> EntryState:
    """How a document holds a line now."""
    source = plan.read(document.file)
    if source is None:
        return "absent"
    try:
        if has_document_line(source, document.file, document.section, document.key, document.line):
            return "present"
        return "changed" if document.key in document_keys(source, document.file, document.section) else "absent"
    except RegistryShapeError:
        return "changed" if document.line.encode() in source else "absent"


def _source(plan: Plan, entry: RegistryEntry) -> bytes:
    source = plan.read(entry.file)
    if source is not None:
        return source
    raise RegistryShapeError(
        f"the registry does not exist; it should hold {entry.table or entry.shape}",
        where=entry.file,
        fix=f"create it with the entry {entry.key!r}: {entry.value!r}, or use --no-register",
    )


def _add_line(plan: Plan, document: DocumentEntry) -> int | None:
    """1-based line of a line that was added, None when it stood there."""
    source = plan.read(document.file)
    if source is None:
        raise RegistryShapeError("does not exist", fix=f"line to paste: {document.line}")
    edit = add_document_line(source, document.file, document.section, document.key, document.line)
    if not edit.changed:
        return None
    plan.write(document.file, edit.source, reason=f"line of {document.key} in {document.section}")
    return edit.line


def _remove(plan: Plan, entry: RegistryEntry, registered: list[Registered]) -> str:
    """Why an entry stays, "" when it does not."""
    state = entry_state(plan, entry)
    source = plan.read(entry.file)
    if state == "absent" or source is None:
        return ""
    if state == "changed":
        return f"the entry {entry.key!r} was changed since; remove it by hand when it is not needed"
    try:
        edit = remove_entry(source, entry)
    except ToolError as error:
        return f"the entry {entry.key!r} cannot be removed safely: {error.message}"
    if edit.changed:
        plan.write(entry.file, edit.source, reason=f"remove {entry.key} from {entry.table or entry.shape}")
        registered.append(Registered(entry, edit.line, "remove"))
    return ""


def _remove_line(plan: Plan, document: DocumentEntry, registered: list[Registered]) -> str:
    state = document_state(plan, document)
    source = plan.read(document.file)
    if state == "absent" or source is None:
        return ""
    if state == "changed":
        return f"the line of {document.key!r} was changed since; remove it by hand when it is not needed"
    try:
        edit = remove_document_line(source, document.file, document.section, document.key, document.line)
    except ToolError as error:
        return f"the line of {document.key!r} cannot be removed safely: {error.message}"
    if edit.changed:
        plan.write(document.file, edit.source, reason=f"remove the line of {document.key} from {document.section}")
        registered.append(Registered(document, edit.line, "remove"))
    return ""


def _mentions(source: bytes, key: str) -> bool:
    text = source.decode("utf-8", errors="replace")
    return f'"{key}"' in text or f"'{key}'" in text
