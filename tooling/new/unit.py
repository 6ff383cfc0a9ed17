"""What a unit consists of: its files, rendered in memory, and its entries in registries and documents.

    unit = render_unit(project, folder, names, answers, kind="reward")
    unit.files["areal/reward/digits.py"]                  # formatted bytes; the repository was not touched
    register(change, unit.manifest.registry)              # adds entries to the plan; `unregister` removes them

A generator page is the Python that a kind may add to its template, for answers that no question can give: a module with
`prepare(change) -> Mapping` (further answers) and maybe `finish(change, answers, folder) -> Mapping | None`. Built-in
templates and installed packages have pages. A project's own template folder is data: a page it names is not run, unless
the folder is byte for byte a built-in template (a clone or work tree of this repository).

A registry that cannot be edited safely stops a command (exit 6); a document without its markers is a warning, since a
unit works without its line of prose. When a unit goes, what somebody changed since is kept and reported.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tooling.cli.errors import ChecksFailedError, ConflictError, RegistryShapeError, ToolError, UsageError
from tooling.cli.report import Registration
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import version
from tooling.kit.change.plan import sha256
from tooling.kit.edits import add_entry, find_entry, keys, remove_entry
from tooling.kit.edits.text import refuse_conflicts
from tooling.kit.kind import DocumentEntry, RegistryEntry
from tooling.kit.names import check_free
from tooling.kit.receipts import Receipt, ReceiptFile, TemplateReference
from tooling.kit.template.kinds import built_in_folder
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.questions import check_answers, load_questions, refuse_unasked
from tooling.kit.template.rendering import (
    check_edited,
    check_files,
    complete_answers,
    format_files,
    render,
    template_context,
)
from tooling.kit.template.tree import hash_algorithm, tree_hash
from tooling.new.change import KeptFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import ResolvedManifest
    from tooling.kit.names import Names
    from tooling.kit.template.kinds import KindSource, ProjectSettings
    from tooling.new.change import Change, Project

    Finish = Callable[[Mapping[str, Any], Path], Mapping[str, Any] | None]
    Entry = RegistryEntry | DocumentEntry
    EntryState = Literal["present", "absent", "changed"]

ADVISORY = frozenset({"ruff-format"})
"""Checks that an edited file may fail: people do not format as they type, and a formatter can repair the layout."""


# --------------------------------------------------------------------------------------------------------- rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedUnit:
    """A unit as its template makes it."""

    names: Names
    answers: Mapping[str, Any]
    """Complete, as JSON values."""
    settings: ProjectSettings
    files: Mapping[str, bytes]
    manifest: ResolvedManifest

    def receipt_files(self) -> dict[str, ReceiptFile]:
        """Return what a receipt says about the files."""
        return {
            entry.path: ReceiptFile(
                sha256(self.files[entry.path]), entry.purpose, entry.contract, entry.todo, entry.test
            )
            for entry in self.manifest.files
        }

    def receipt(self, kind: str, template: TemplateReference, *, register: bool) -> Receipt:
        """Return the receipt without entries: those are known once they are made."""
        return Receipt(
            kind=kind,
            names=self.names,
            generator=f"areal-new {version()}",
            template=template,
            answers=self.answers,
            package=self.settings.package,
            tests=self.settings.tests,
            register=register,
            symbols=self.manifest.symbols,
            files=self.receipt_files(),
            unproven=self.manifest.unproven if register else (),
        )


def render_unit(
    project: Project,
    folder: Path,
    names: Names,
    answers: Mapping[str, Any],
    *,
    kind: str,
    settings: ProjectSettings | None = None,
    finish: Finish | None = None,
    given: Collection[str] = (),
) -> RenderedUnit:
    """Render a template folder with the given answers and defaults, and format the result with the repository's ruff.

    `settings` are the repository's unless others are given. `given`: names of the answers that a user gave just now;
    those have to be asked for. When `finish` gives further answers for the files, the template is rendered again with
    them. Raises UsageError for answers or a template that cannot be used.
    """
    settings = settings or project.settings
    complete = complete_answers(folder, answers, names, settings, kind=kind)
    context = template_context(names, settings, kind)
    if given:
        refuse_unasked(load_questions(folder), given, {**context, **complete})
    files = format_files(project.root, render(folder, complete, names, settings))
    if finish is not None:
        with tempfile.TemporaryDirectory(prefix="areal-new-stage-") as stage:
            for path, content in files.items():
                target = Path(stage) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            more = finish(complete, Path(stage))
        if more:
            complete = complete_answers(folder, {**complete, **more}, names, settings, kind=kind)
            files = format_files(project.root, render(folder, complete, names, settings))
    manifest = resolve(load_manifest(folder), {**context, **complete}, tuple(files))
    return RenderedUnit(names=names, answers=json_values(complete), settings=settings, files=files, manifest=manifest)


def prepare(project: Project, source: KindSource, change: Change) -> tuple[Mapping[str, Any], Finish | None]:
    """Run the kind's page: the answers that it derives, and how it finishes the rendered files. The page may add
    warnings, next steps and findings to the change.

    Raises UsageError for options the kind does not have, for unknown given answers, for a page that cannot be imported,
    and when options are given but the project's template may not run a page.
    """
    manifest, request = load_manifest(source.folder), change.request
    known = [option.name for option in manifest.options]
    for name in request.options:
        if name not in known:
            fix = did_you_mean(name, known) or f"options of {source.name}: {', '.join(known) or 'none'}"
            raise UsageError(f"{source.name} has no option {name!r}", where=f"--{name}", fix=fix)
    refuse_unknown(source.folder, request.answers)
    module = source.prepare or manifest.generator
    if not module:
        return {}, None
    original = built_in_folder() / source.folder.name
    if source.origin == "project" and not (
        original.is_dir() and tree_hash(original) == tree_hash(source.folder)
    ):  # not a copy of what this program brings along
        if request.options:
            raise UsageError(
                f"the page {module} that --{next(iter(request.options))} needs is not run for a project's own template",
                where=os.fspath(source.folder),
                fix="ship the kind as a package with an entry point, or answer the questions instead",
            )
        change.warnings.append(f"the page {module} was not run: a project's own template is data")
        return {}, None
    try:
        page = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        where = f"{source.folder}/template.toml"
        raise UsageError(
            f"the generator page {module!r} does not exist", where=where, fix="name an existing module"
        ) from error
    answers = page.prepare(change) if hasattr(page, "prepare") else {}
    if not hasattr(page, "finish"):
        return answers, None
    return answers, lambda complete, folder: page.finish(change, complete, folder)


def refuse_unknown(folder: Path, answers: Mapping[str, Any]) -> None:
    """Raise UsageError for a given answer to no question: a page may add such answers, a user has mistyped a name."""
    questions = load_questions(folder)
    if answers.keys() - {question.name for question in questions}:
        check_answers(questions, answers)


def reference(project: Project, source: KindSource) -> TemplateReference:
    """Say which template this is, free of machine paths."""
    folder = source.folder.resolve()
    inside = folder.is_relative_to(project.root)
    name = folder.relative_to(project.root).as_posix() if inside else folder.name
    return TemplateReference(source.origin, name, template_tree(project, source))


def template_tree(project: Project, source: KindSource) -> str:
    """Return git's hash of a kind's template folder, as this repository would store it."""
    return tree_hash(source.folder, algorithm=hash_algorithm(project.repository))


def check_rendered(change: Change, files: Mapping[str, bytes], what: str) -> None:
    """Add the results of the gates on generated files. Raises ChecksFailedError with all results when one failed."""
    results = check_files(change.root, dict(files)) if files else []
    failed = [result.name for result in results if not result.ok]
    if failed:
        raise ChecksFailedError(
            f"{what} does not pass {', '.join(failed)}; nothing was written",
            fix="correct the template or the answers",
            checks=results,
        )
    change.checks += results


def json_values(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers as they come back from a receipt. Raises UsageError for values JSON does not have."""
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(answers), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"an answer is not a JSON value: {error}", fix="use texts, numbers, lists and tables"
        ) from error
    return values


# ----------------------------------------------------------------------------------------------------------- entries


class Entries(NamedTuple):
    """Registry entries and document lines of a unit, as its receipt lists them."""

    entries: tuple[RegistryEntry, ...] = ()
    documents: tuple[DocumentEntry, ...] = ()

    @classmethod
    def of(cls, mixed: Iterable[Entry]) -> Entries:
        """Sort entries and lines apart."""
        mixed = tuple(mixed)
        return cls(
            tuple(entry for entry in mixed if isinstance(entry, RegistryEntry)),
            tuple(entry for entry in mixed if isinstance(entry, DocumentEntry)),
        )


def register(change: Change, wanted: Iterable[Entry]) -> Entries:
    """Add what is missing; return those that were not there before.

    Raises RegistryShapeError (with the line to paste), ConflictError (another value), MergeConflictError (a file with
    conflict markers), and ChecksFailedError when a
    registry would no longer pass the repository's ruff, e.g. by the length of a line.
    """
    registries, documents = Entries.of(wanted)
    plan = change.plan
    made: list[Entry] = []
    before: dict[str, bytes] = {}
    for entry in registries:  # before documents: what stops a command is found before what only warns
        source = plan.read(entry.file)
        if source is None:
            raise RegistryShapeError(
                f"the registry does not exist; it should hold {entry.table or entry.shape}",
                where=entry.file,
                fix=f"create it with the entry {entry.key!r}: {entry.value!r}, or use --no-register",
            )
        refuse_conflicts(source, entry.file)
        if _add(change, entry, source, made):
            before.setdefault(entry.file, source)
    worse = check_edited(change.root, {path: (source, plan.read(path) or b"") for path, source in before.items()})
    failed = [result for result in worse if result.name not in ADVISORY]
    if failed:
        raise ChecksFailedError(
            f"would not pass {failed[0].name} any more with the new entry; nothing was written",
            where=", ".join(before),
            fix="use a shorter name where a line is too long, or --no-register and enter it by hand",
            checks=worse,
        )
    change.warnings += [f"{result.name} of {', '.join(before)}: {result.detail}" for result in worse]
    for line in documents:
        source = plan.read(line.file)
        refuse_conflicts(source or b"", line.file)
        try:
            if source is None:
                raise RegistryShapeError("does not exist", fix=f"line to paste: {line.value}")
            _add(change, line, source, made)
        except ToolError as error:
            change.warnings.append(f"{line.file} was left alone: {error}")
    return Entries.of(made)


def _add(change: Change, entry: Entry, source: bytes, made: list[Entry]) -> bool:
    """Put an entry into the plan; say whether it was missing."""
    edit = add_entry(source, entry)
    if isinstance(entry, DocumentEntry):
        what, table, value = "line of", entry.section, entry.line
    else:
        what, table, value = "register", entry.table or entry.shape, entry.value
        if edit.note:
            change.warnings.append(f"{entry.file}: {edit.note}")
    if not edit.changed:
        return False
    made.append(entry)
    keys_here = ", ".join(each.key for each in made if each.file == entry.file)
    change.plan.write(entry.file, edit.source, reason=f"{what} {keys_here} in {table}")
    change.add_registration(Registration(entry.file, table, entry.key, value, edit.line))
    return True


def unregister(change: Change, entries: Iterable[Entry], *, forget: bool = False) -> Entries:
    """Take out what is still as it was made; what is gone already is fine. Return what was left because somebody
    changed it, which the change keeps, or with `forget` only warns about. Raises MergeConflictError for a file with
    conflict markers."""
    left: list[Entry] = []
    for entry in entries:
        is_line = isinstance(entry, DocumentEntry)
        what = f"the line of {entry.key!r}" if is_line else f"the entry {entry.key!r}"
        refuse_conflicts(change.plan.read(entry.file) or b"", entry.file)
        state, source = entry_state(change.plan, entry), change.plan.read(entry.file)
        if state == "absent" or source is None:
            continue
        problem = f"{what} was changed since; remove it by hand when it is not needed"
        if state == "present":
            try:
                edit = remove_entry(source, entry)
            except ToolError as error:
                problem = f"{what} cannot be removed safely: {error.message}"
            else:
                if edit.changed:
                    table = entry.table or entry.shape
                    shown = f"the line of {entry.key}" if is_line else entry.key
                    change.plan.write(entry.file, edit.source, reason=f"remove {shown} from {table}")
                    made = Registration(entry.file, table, entry.key, entry.value, edit.line, "remove")
                    change.registered.append(made)
                continue
        left.append(entry)
        if forget:
            change.warnings.append(f"{entry.file}: {problem}")
        else:
            change.kept.append(KeptFile(entry.file, problem))
    return Entries.of(left)


def move_entries(change: Change, receipt: Receipt, old: ResolvedManifest | None, new: ResolvedManifest) -> Entries:
    """Make a unit's entries those of a manifest: what it no longer has goes, what it has now comes. Return those of
    the receipt afterwards.

    What the old manifest had already and the receipt does not list was removed by somebody, or was there before; it is
    left alone. A unit generated with --no-register stays out of registries. Raises as `register`.
    """
    if not receipt.register:
        return Entries()
    listed: Sequence[Entry] = (*receipt.entries, *receipt.documents)
    wanted: Sequence[Entry] = (*new.registry, *new.documents)
    before = {*listed, *((*old.registry, *old.documents) if old is not None else ())}
    gone = [entry for entry in listed if entry not in wanted]
    gone += [entry for entry in receipt.unproven if entry not in new.unproven]
    left = unregister(change, gone)
    stays: Sequence[Entry] = (*left.entries, *left.documents)
    held = {(entry.file, entry.table, entry.key) for entry in stays}
    done = register(
        change, [item for item in wanted if item not in before and (item.file, item.table, item.key) not in held]
    )
    made = {*listed, *done.entries, *done.documents}
    return Entries.of([*(item for item in wanted if item in made), *stays])


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
    project: Project,
    plan: Plan,
    kind: str,
    unit: RenderedUnit,
    *,
    reserved: Iterable[str] = (),
    own: Receipt | None = None,
) -> None:
    """Raise NameRefusedError when the unit's name is taken in any spelling, ConflictError when a file is in its way;
    both suggest a free name. `tooling.kit.names` says what counts as taken.

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
        paths=[path for path in project.repository.files() if path not in own_files],
        planned_paths=tuple(unit.files),
        symbols=unit.manifest.symbols,
        repository=project.repository,
        below=unit.settings.package_path,
        reserved=tuple(reserved),
    )
    for path in unit.files:  # git does not list what it ignores
        if path not in own_files and plan.read(path) is not None:
            raise ConflictError("exists already", where=path, fix="move it away, or use another name")
