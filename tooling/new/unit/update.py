"""Bringing a generated unit up to date with its template, or giving it other answers, without losing edits.

For each file: base is what was generated, ours is the disk, theirs is the template now; `git merge-file` merges them.
Lines that both changed get conflict markers (exit code 5). Files that a user deleted stay deleted; files that left the
template go when they are pristine; files that the template renamed move. Registry entries move when they changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, ToolError
from tooling.kit.change.plan import Plan, sha256
from tooling.kit.merge import has_markers
from tooling.kit.receipts import read_receipts
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_questions, refuse_unasked
from tooling.kit.template.rendering import template_context
from tooling.new.unit.bases import Bases, find_bases, old_template
from tooling.new.unit.context import find_unit
from tooling.new.unit.merging import Merger, check_merged
from tooling.new.unit.produce import checked, json_values, prepare, produce, reference, refuse_unknown, template_tree
from tooling.new.unit.records import UnitPlan
from tooling.new.unit.registration import move_entries
from tooling.new.unit.renames import renamed_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.kit.receipts import Receipt
    from tooling.kit.template.kinds import KindSource
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.produce import Produced


def plan_update(
    workspace: Workspace,
    kind: str,
    name: str,
    *,
    answers: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    plan: Plan | None = None,
) -> UnitPlan:
    """The plan that merges the template as it is now, with the old answers and the given ones, into a unit.

    An unchanged template with unchanged answers, from which the kind's page derives what it did, gives an empty plan,
    whose `conflicts` are the files that still hold the markers of an earlier update. `plan` collects several updates in
    one. Raises UsageError when the unit, the kind or the merge base cannot be found, and for answers that no longer fit
    (give new ones); ConflictError when a new file is in the way; MergeConflictError when markers of an earlier update
    are in the way; ChecksFailedError when the result does not pass the gates.
    """
    receipt = find_unit(workspace, kind, name)
    source = workspace.kind(kind)
    plan = Plan(workspace.root) if plan is None else plan
    answers = answers or {}
    changed = bool(options) or template_tree(workspace, source) != receipt.template.tree or not _same(answers, receipt)
    if not changed and _same(_derived(workspace, source, receipt), receipt):
        known = {**template_context(receipt.names, workspace.settings, receipt.kind), **receipt.answers}
        refuse_unasked(load_questions(source.folder), answers, known)
        unresolved = tuple(_unresolved(plan, receipt))
        return UnitPlan(plan=plan, receipt=receipt, tests=receipt.tests_of_unit, conflicts=unresolved)
    with old_template(workspace, receipt, source) as folder:
        bases = find_bases(workspace, receipt, plan, folder)
        return _merge(workspace, source, bases, answers, options or {})


def plan_update_all(workspace: Workspace, kind: str | None = None) -> UnitPlan:
    """One plan that updates every unit, or every unit of a kind; all or none. Raises as `plan_update`, with the unit
    in the message."""
    plan = Plan(workspace.root)
    units = []
    if kind is not None:
        workspace.kind(kind)  # refuses a misspelt one
    for receipt in read_receipts(workspace.root):
        if kind is not None and receipt.kind != kind:
            continue
        try:
            units.append(plan_update(workspace, receipt.kind, receipt.name, plan=plan))
        except ToolError as error:
            error.message = f"{receipt.kind} {receipt.name}: {error.message}"
            raise
    return _combined(plan, units)


def _unresolved(plan: Plan, receipt: Receipt) -> Iterator[str]:
    for path, entry in receipt.files.items():
        try:
            content = plan.read(path)
        except ConflictError:
            continue  # something else in its place: `status` tells
        if content is not None and sha256(content) != entry.sha256 and has_markers(content):
            yield path


def _same(answers: Mapping[str, Any], receipt: Receipt) -> bool:
    given = json_values(answers)
    return all(name in receipt.answers and receipt.answers[name] == given[name] for name in given)


def _derived(workspace: Workspace, source: KindSource, receipt: Receipt) -> Mapping[str, Any]:
    """What the kind's page makes of the old answers now. It is code, which no hash of the template tells of."""
    return prepare(workspace, source, load_manifest(source.folder), receipt.names, receipt.answers, {})[1].answers


def _merge(
    workspace: Workspace, source: KindSource, bases: Bases, answers: Mapping[str, Any], options: Mapping[str, str]
) -> UnitPlan:
    receipt, plan = bases.receipt, bases.plan
    produced, warnings = _new_render(workspace, source, bases, answers, options)
    checks = checked(workspace, produced.files, f"the {receipt.kind} {receipt.name!r} as the template makes it now")
    moved = renamed_paths(workspace, source.folder, receipt, produced)
    merger = Merger(bases)
    for entry in produced.manifest.files:
        merger.merge(moved.get(entry.path, entry.path), entry.path, produced.files[entry.path], entry.purpose)
    merger.drop(path for path in sorted(receipt.files) if path not in merger.seen)
    checks += check_merged(workspace, merger)
    template = reference(workspace, source)
    before = None if bases.rendered is None else bases.rendered.manifest
    entries = move_entries(plan, receipt, before, produced.manifest)
    described = produced.receipt_files()
    updated = replace(
        produced.receipt(receipt.kind, template, register=receipt.register),
        files={path: described[path] for path in merger.managed},
        entries=entries.entries,
        documents=entries.documents,
    )
    plan.write(receipt.path, updated.to_bytes(), reason="receipt")
    return UnitPlan(
        plan=plan,
        receipt=updated,
        registered=entries.registered,
        checks=checks,
        warnings=(*warnings, *bases.warnings, *merger.warnings, *entries.warnings),
        tests=tuple(path for path in updated.tests_of_unit if plan.read(path) is not None),
        kept=(*merger.kept, *entries.kept),
        conflicts=tuple(merger.conflicts),
        templates={receipt.kind: template.tree},
    )


def _new_render(
    workspace: Workspace, source: KindSource, bases: Bases, answers: Mapping[str, Any], options: Mapping[str, str]
) -> tuple[Produced, tuple[str, ...]]:
    """The template now, with the old answers, the given ones, and what the options stand for."""
    receipt = bases.receipt
    manifest = load_manifest(source.folder)
    known = {question.name for question in load_questions(source.folder)}
    old = {name: value for name, value in receipt.answers.items() if name in known}
    warnings = [
        f"the template no longer asks for {name!r}; the answer {value!r} was dropped"
        for name, value in receipt.answers.items()
        if name not in known
    ]
    # The page hears old answers too: what it derives from them (not from options) follows the given ones.
    refuse_unknown(source.folder, answers)
    given = {**old, **answers}
    page, prepared = prepare(workspace, source, manifest, receipt.names, given, options)
    given.update(prepared.answers)
    produced = produce(workspace, source.folder, receipt.names, given, kind=receipt.kind, page=page, given=answers)
    return produced, (*warnings, *prepared.warnings)


def _combined(plan: Plan, units: Sequence[UnitPlan]) -> UnitPlan:
    return UnitPlan(
        plan=plan,
        receipt=None,
        registered=tuple(item for unit in units for item in unit.registered),
        checks=tuple(item for unit in units for item in unit.checks),
        warnings=tuple(item for unit in units for item in unit.warnings),
        tests=tuple(item for unit in units for item in unit.tests),
        kept=tuple(item for unit in units for item in unit.kept),
        conflicts=tuple(item for unit in units for item in unit.conflicts),
        templates={kind: tree for unit in units for kind, tree in unit.templates.items()},
    )
