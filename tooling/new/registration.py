"""Registry entries and document lines of a unit, put into a change or taken out of it; and whether a name is free.

A registry that cannot be edited safely stops a command (exit 6); a document without its markers is a warning, since a
unit works without its line of prose. When a unit goes, what somebody changed since is kept and reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from tooling.cli.errors import ChecksFailedError, ConflictError, RegistryShapeError, ToolError
from tooling.cli.report import Registration
from tooling.kit.edits import add_entry, find_entry, keys, remove_entry
from tooling.kit.kind import DocumentEntry, RegistryEntry
from tooling.kit.names import check_free
from tooling.kit.template.rendering import check_edited
from tooling.new.change import KeptFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import ResolvedManifest
    from tooling.kit.receipts import Receipt
    from tooling.new.change import Change
    from tooling.new.rendering import RenderedUnit
    from tooling.new.workspace import Workspace

    Entry = RegistryEntry | DocumentEntry
    EntryState = Literal["present", "absent", "changed"]

_ADVISORY = frozenset({"ruff-format"})
"""Checks that an edited registry may fail: a formatter can repair the layout of a table, and nothing else does."""


class Entries(NamedTuple):
    """Registry entries and document lines of a unit, as its receipt lists them."""

    entries: tuple[RegistryEntry, ...] = ()
    documents: tuple[DocumentEntry, ...] = ()


def register(change: Change, wanted: Iterable[Entry]) -> Entries:
    """Add what is missing; those that were not there before.

    Raises RegistryShapeError (with the line to paste), ConflictError (another value), and ChecksFailedError when a
    registry would no longer pass the repository's ruff, e.g. by the length of a line.
    """
    made: list[Entry] = []
    before: dict[str, bytes] = {}
    plan = change.plan
    documents: list[Entry] = []
    for entry in wanted:
        if isinstance(entry, DocumentEntry):
            documents.append(entry)  # registries first: what stops a command is found before what only warns
            continue
        source = plan.read(entry.file)
        if source is None:
            raise RegistryShapeError(
                f"the registry does not exist; it should hold {entry.table or entry.shape}",
                where=entry.file,
                fix=f"create it with the entry {entry.key!r}: {entry.value!r}, or use --no-register",
            )
        _add(change, entry, source, made, before)
    _check_registries(change, before)
    for document in documents:
        source = plan.read(document.file)
        try:
            if source is None:
                raise RegistryShapeError("does not exist", fix=f"line to paste: {document.value}")
            _add(change, document, source, made, {})
        except ToolError as error:
            change.warnings.append(f"{document.file} was left alone: {error}")
    return _sorted_out(made)


def _add(change: Change, entry: Entry, source: bytes, made: list[Entry], before: dict[str, bytes]) -> None:
    edit = add_entry(source, entry)
    if edit.note and not isinstance(entry, DocumentEntry):
        change.warnings.append(f"{entry.file}: {edit.note}")
    if not edit.changed:
        return
    before.setdefault(entry.file, source)
    made.append(entry)
    table = entry.table or entry.shape
    keys_here = ", ".join(each.key for each in made if each.file == entry.file)
    reason = (
        f"register {keys_here} in {table}" if isinstance(entry, RegistryEntry) else f"line of {keys_here} in {table}"
    )
    change.plan.write(entry.file, edit.source, reason=reason)
    # Earlier entries stand one line lower once another one was put above them.
    change.registered = [
        replace(item, line=item.line + 1) if item.file == entry.file and item.line >= edit.line else item
        for item in change.registered
    ]
    change.registered.append(Registration(entry.file, table, entry.key, entry.value, edit.line))


def _check_registries(change: Change, before: dict[str, bytes]) -> None:
    """Warn about the layout of edited registries. Raises ChecksFailedError for what ruff finds in them that it did not
    find before."""
    worse = check_edited(
        change.root, {path: (source, change.plan.read(path) or b"") for path, source in before.items()}
    )
    failed = [result for result in worse if result.name not in _ADVISORY]
    if failed:
        raise ChecksFailedError(
            f"would not pass {failed[0].name} any more with the new entry; nothing was written",
            where=", ".join(before),
            fix="use a shorter name where a line is too long, or --no-register and enter it by hand",
            checks=worse,
        )
    change.warnings += [f"{result.name} of {', '.join(before)}: {result.detail}" for result in worse]


def unregister(change: Change, entries: Iterable[Entry], *, forget: bool = False) -> Entries:
    """Take out what is still as it was made; what is gone already is fine. Returns what was left because somebody
    changed it, which the change keeps, or with `forget` only warns about."""
    left: list[Entry] = []
    for entry in entries:
        problem = _remove(change, entry)
        if not problem:
            continue
        left.append(entry)
        if forget:
            change.warnings.append(f"{entry.file}: {problem}")
        else:
            change.kept.append(KeptFile(entry.file, problem))
    return _sorted_out(left)


def _remove(change: Change, entry: Entry) -> str:
    """Say why an entry stays, "" when it does not."""
    is_document = isinstance(entry, DocumentEntry)
    what = f"the line of {entry.key!r}" if is_document else f"the entry {entry.key!r}"
    state, source = entry_state(change.plan, entry), change.plan.read(entry.file)
    if state == "absent" or source is None:
        return ""
    if state == "changed":
        return f"{what} was changed since; remove it by hand when it is not needed"
    try:
        edit = remove_entry(source, entry)
    except ToolError as error:
        return f"{what} cannot be removed safely: {error.message}"
    if edit.changed:
        table = entry.table or entry.shape
        shown = f"the line of {entry.key}" if is_document else entry.key
        change.plan.write(entry.file, edit.source, reason=f"remove {shown} from {table}")
        change.registered.append(Registration(entry.file, table, entry.key, entry.value, edit.line, "remove"))
    return ""


def move_entries(change: Change, receipt: Receipt, old: ResolvedManifest | None, new: ResolvedManifest) -> Entries:
    """Make a unit's entries those of a manifest: what it no longer has goes, what it has now comes. Returns those of
    the receipt afterwards.

    What the old manifest had already and the receipt does not list was removed by somebody, or was there before; it is
    left alone. A unit generated with --no-register stays out of registries. Raises as `register`.
    """
    if not receipt.register:
        return Entries()
    listed: Sequence[Entry] = (*receipt.entries, *receipt.documents)
    wanted: Sequence[Entry] = (*new.registry, *new.documents)
    before = {*listed, *((*old.registry, *old.documents) if old is not None else ())}
    left = unregister(change, [entry for entry in listed if entry not in wanted])
    stays: Sequence[Entry] = (*left.entries, *left.documents)
    held = {(entry.file, entry.table, entry.key) for entry in stays}
    done = register(
        change, [item for item in wanted if item not in before and (item.file, item.table, item.key) not in held]
    )
    made = {*listed, *done.entries, *done.documents}
    return _sorted_out([*(item for item in wanted if item in made), *stays])


def _sorted_out(entries: Iterable[Entry]) -> Entries:
    entries = tuple(entries)
    return Entries(
        tuple(entry for entry in entries if isinstance(entry, RegistryEntry)),
        tuple(entry for entry in entries if isinstance(entry, DocumentEntry)),
    )


def entry_state(plan: Plan, entry: Entry) -> EntryState:
    """Say how a registry or document holds an entry now; "changed" also when it cannot be read but names the key."""
    source = plan.read(entry.file)
    if source is None:
        return "absent"
    try:
        found = find_entry(source, entry)
    except ConflictError:
        return "changed"
    except RegistryShapeError:
        text = source.decode("utf-8", errors="replace")
        signs = [entry.value] if isinstance(entry, DocumentEntry) else [f'"{entry.key}"', f"'{entry.key}'"]
        return "changed" if any(sign in text for sign in signs) else "absent"
    if found is None:
        return "absent"
    return "present" if found[0] == entry.value else "changed"


def refuse_collisions(
    workspace: Workspace,
    plan: Plan,
    kind: str,
    unit: RenderedUnit,
    *,
    reserved: Iterable[str] = (),
    own: Receipt | None = None,
) -> None:
    """Raise NameRefusedError when the unit's name is taken in any spelling, ConflictError when a file is in its way;
    both suggest a free name. What counts as taken is said in `tooling.kit.names`.

    What `own` (the unit before it is renamed) holds does not count, nor does an entry that says just what the unit's
    own would say.
    """
    own_files = set() if own is None else {*own.files, own.path}
    own_keys = set() if own is None else {(entry.file, entry.key) for entry in own.entries}
    taken: list[str] = []
    planned: list[str] = []
    for entry in unit.manifest.registry:
        source = plan.read(entry.file)
        if source is None:
            continue
        try:
            found = find_entry(source, entry)
            existing = keys(source, entry)
        except RegistryShapeError:
            continue  # registering will say why
        if found is None or found[0] != entry.value:
            taken += [key for key in existing if (entry.file, key) not in own_keys]
            planned.append(entry.key)
    check_free(
        unit.names,
        kind=kind,
        keys=taken,
        planned_keys=planned,
        paths=[path for path in workspace.repository.files() if path not in own_files],
        planned_paths=tuple(unit.files),
        symbols=unit.manifest.symbols,
        repository=workspace.repository,
        below=unit.settings.package_path,
        reserved=tuple(reserved),
    )
    for path in unit.files:  # git does not list what it ignores
        if path not in own_files and plan.read(path) is not None:
            raise ConflictError("exists already", where=path, fix="move it away, or use another name")
