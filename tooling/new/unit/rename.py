"""Giving a generated unit another name: files, symbols, registry entry, tests, docs line and receipt move together.

The template a unit came from is rendered with the old name (base) and with the new one (theirs); each file is merged
into its new place, so edits survive. Elsewhere in the repository, lines that name the unit are reported, and with
`references` rewritten where a word can mean nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.plan import Plan
from tooling.kit.merge import Labels
from tooling.kit.names import parse_name
from tooling.kit.receipts import read_receipt
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_questions
from tooling.kit.template.rendering import complete_answers
from tooling.new.unit.bases import find_bases, old_template
from tooling.new.unit.collisions import refuse_collisions
from tooling.new.unit.context import find_unit
from tooling.new.unit.merging import Merger, check_merged
from tooling.new.unit.produce import Produced, checked, produce, template_tree
from tooling.new.unit.records import UnitPlan
from tooling.new.unit.references import Rewriting, find_references, rewrite_references, rewriting
from tooling.new.unit.registration import document_state, entry_state, move_entries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.kit.kind import ResolvedManifest
    from tooling.kit.names import Names
    from tooling.kit.project import Settings
    from tooling.kit.receipts import Receipt
    from tooling.kit.template.kinds import KindSource
    from tooling.new.unit.bases import Bases
    from tooling.new.unit.context import Workspace


def plan_rename(workspace: Workspace, kind: str, old: str, new: str, *, references: bool = False) -> UnitPlan:
    """The plan that renames a unit; its `references` are the lines elsewhere that still name it.

    Raises NameRefusedError and ConflictError for the new name, UsageError when the unit or the template it came from
    cannot be found, ChecksFailedError when the result does not pass the gates.
    """
    receipt = find_unit(workspace, kind, old)
    source = _source(workspace, kind)
    plan = Plan(workspace.root)
    with old_template(workspace, receipt, source) as folder:
        if folder is None:
            raise UsageError(
                f"the template that {receipt.name!r} came from (tree {receipt.template.tree[:12]}) is not in this "
                "repository",
                where=receipt.path,
                fix=f"run `areal-new update {kind} {receipt.name}` first, or `git fetch` the commit that holds it",
            )
        reserved = load_manifest(folder).reserved
        names = _new_names(workspace, receipt, new, reserved)
        bases = find_bases(workspace, receipt, plan, folder)
        settings = replace(workspace.settings, package=receipt.package, tests=receipt.tests)
        answers = _answers(folder, receipt, settings)
        produced = produce(workspace, folder, names, answers, kind=kind, settings=settings)
        refuse_collisions(workspace, plan, kind, produced, reserved=reserved, own=receipt)
        unit = _merge(workspace, bases, produced, references=references)
    if source is not None and template_tree(workspace, source) == receipt.template.tree:
        return replace(unit, templates={kind: receipt.template.tree})
    return unit


def _source(workspace: Workspace, kind: str) -> KindSource | None:
    try:
        return workspace.kind(kind)
    except UsageError:
        return None  # the kind is gone; git may still hold the template


def _new_names(workspace: Workspace, receipt: Receipt, new: str, reserved: tuple[str, ...]) -> Names:
    names = parse_name(new, reserved=reserved)
    if names.snake == receipt.name:
        raise UsageError(f"the {receipt.kind} is called {receipt.name!r} already", where=new, fix="give another name")
    if read_receipt(workspace.root, receipt.kind, names.snake) is not None:
        raise ConflictError(f"there is a {receipt.kind} {names.snake!r} already", where=new, fix="give another name")
    return names


def _answers(folder: Path, receipt: Receipt, settings: Settings) -> dict[str, Any]:
    """The old answers without those that were the default under the old name, so that they follow the new one."""
    kept = dict(receipt.answers)
    for question in load_questions(folder):
        if question.required or question.name not in kept:
            continue
        others: Mapping[str, Any] = {name: value for name, value in receipt.answers.items() if name != question.name}
        try:
            default = complete_answers(folder, others, receipt.names, settings, kind=receipt.kind)
        except UsageError:
            continue
        if default.get(question.name) == receipt.answers[question.name]:
            del kept[question.name]
    return kept


def _merge(workspace: Workspace, bases: Bases, produced: Produced, *, references: bool) -> UnitPlan:
    receipt, plan = bases.receipt, bases.plan
    pairs = _pairs(bases, produced)
    change = rewriting(receipt, produced.manifest.symbols, pairs)
    checks = checked(workspace, produced.files, f"the {receipt.kind} {produced.names.snake!r}")
    merger = Merger(bases, change, Labels("yours", receipt.name, produced.names.snake))
    purposes = {entry.path: entry.purpose for entry in produced.manifest.files}
    for old, new in pairs.items():
        merger.merge(old, new, produced.files[new], purposes[new])
    merger.drop(path for path in sorted(receipt.files) if path not in merger.seen)
    checks += check_merged(workspace, merger)
    entries = move_entries(plan, receipt, None, _wanted(bases, produced.manifest))
    described = produced.receipt_files()
    renamed = replace(
        produced.receipt(receipt.kind, receipt.template, register=receipt.register),
        files={path: described[path] for path in merger.managed},
        entries=entries.entries,
        documents=entries.documents,
    )
    plan.delete(receipt.path, reason="receipt under the old name")
    plan.write(renamed.path, renamed.to_bytes(), reason="receipt")
    places = _references(workspace, plan, change, {*pairs, *pairs.values()}, references=references)
    return UnitPlan(
        plan=plan,
        receipt=renamed,
        registered=entries.registered,
        checks=checks,
        warnings=(*bases.warnings, *merger.warnings, *entries.warnings),
        tests=tuple(path for path in renamed.tests_of_unit if plan.read(path) is not None),
        kept=(*merger.kept, *entries.kept),
        conflicts=tuple(merger.conflicts),
        references=places,
        next_steps=_next_steps(receipt, places, references=references),
    )


def _wanted(bases: Bases, new: ResolvedManifest) -> ResolvedManifest:
    """The new manifest without entries and lines that somebody took out under the old name: they are not put back."""
    receipt, plan = bases.receipt, bases.plan
    old = new if bases.rendered is None else bases.rendered.manifest
    if (len(old.registry), len(old.documents)) != (len(new.registry), len(new.documents)):
        return new
    entries = zip(old.registry, new.registry, strict=True)
    lines = zip(old.documents, new.documents, strict=True)
    return replace(
        new,
        registry=tuple(n for o, n in entries if o in receipt.entries or entry_state(plan, o) != "absent"),
        documents=tuple(n for o, n in lines if o in receipt.documents or document_state(plan, o) != "absent"),
    )


def _pairs(bases: Bases, produced: Produced) -> dict[str, str]:
    """Old path -> new path of each file, in the manifest's order."""
    if bases.rendered is None:
        raise UsageError("the old template cannot be rendered", where=bases.receipt.path, fix="; ".join(bases.warnings))
    old, new = bases.rendered.manifest.files, produced.manifest.files
    if len(old) != len(new):
        raise UsageError(
            "the template makes other files for the new name", where=bases.receipt.path, fix="generate the unit anew"
        )
    return {before.path: after.path for before, after in zip(old, new, strict=True)}


def _references(
    workspace: Workspace, plan: Plan, change: Rewriting, own: set[str], *, references: bool
) -> tuple[str, ...]:
    if references:
        rewrite_references(plan, workspace.repository, change, own, skipped=workspace.settings.templates)
    return find_references(plan, workspace.repository, change, own)


def _next_steps(receipt: Receipt, places: tuple[str, ...], *, references: bool) -> tuple[str, ...]:
    if not places:
        return ()
    advice = "correct them by hand" if references else "`--references` rewrites symbols, modules and paths"
    return (f"{len(places)} lines elsewhere still name {receipt.name!r}: {advice}",)
