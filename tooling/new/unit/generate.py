"""Planning a new unit: name, answers, files, gates, registry, docs line and receipt, all before the first write.

    unit_plan = plan_unit(workspace, UnitRequest(kind="reward", name="digits", answers={"style": "boxed"}))

Planning the same unit a second time gives an empty plan. It restores files that are gone and never touches files that
were edited; other answers are an update, not a second generation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tooling.cli.errors import ConflictError
from tooling.kit.change.plan import Plan, sha256
from tooling.kit.names import parse_name
from tooling.kit.receipts import read_receipt
from tooling.kit.template.manifest import load_manifest
from tooling.new.unit.collisions import refuse_collisions
from tooling.new.unit.produce import Produced, checked, prepare, produce, reference
from tooling.new.unit.records import UnitPlan, UnitRequest
from tooling.new.unit.registration import Registration, register

if TYPE_CHECKING:
    from tooling.kit.kind import Prepared
    from tooling.kit.receipts import Receipt, TemplateReference
    from tooling.new.unit.context import Workspace

__all__ = ["UnitPlan", "UnitRequest", "plan_unit"]

_Entry = TypeVar("_Entry")


def plan_unit(workspace: Workspace, request: UnitRequest) -> UnitPlan:
    """The plan that generates a unit. Nothing is written.

    Raises NameRefusedError and UsageError for the request, ConflictError when something is in the way or the unit
    exists with other answers, RegistryShapeError for a registry that cannot be edited, ChecksFailedError when the
    rendered files do not pass the gates.
    """
    source = workspace.kind(request.kind)
    manifest = load_manifest(source.folder)
    names = parse_name(request.name, reserved=manifest.reserved)
    existing = read_receipt(workspace.root, request.kind, names.snake)
    page, prepared = prepare(workspace, source, manifest, names, request.answers, request.options)
    if prepared.findings is not None:
        return UnitPlan(plan=Plan(workspace.root), receipt=None, findings=prepared.findings, warnings=prepared.warnings)
    answers = {**request.answers, **prepared.answers}
    produced = produce(workspace, source.folder, names, answers, kind=request.kind, page=page, given=request.answers)
    template = reference(workspace, source)
    if existing is None:
        unit = _fresh(workspace, request, produced, template, manifest.reserved)
    else:
        unit = _again(workspace, request, produced, template, existing)
    return _with_prepared(unit, prepared)


def _fresh(
    workspace: Workspace,
    request: UnitRequest,
    produced: Produced,
    template: TemplateReference,
    reserved: tuple[str, ...],
) -> UnitPlan:
    plan = Plan(workspace.root)
    refuse_collisions(workspace, plan, request.kind, produced, reserved=reserved)
    for entry in produced.manifest.files:
        plan.write(entry.path, produced.files[entry.path], reason=entry.purpose)
    checks = checked(workspace, produced.files, f"the {request.kind} {produced.names.snake!r}")
    wanted = request.register and workspace.settings.register
    done = _register(plan, produced, wanted=wanted)
    receipt = replace(
        produced.receipt(request.kind, template, register=wanted), entries=done.entries, documents=done.documents
    )
    plan.write(receipt.path, receipt.to_bytes(), reason="receipt")
    return UnitPlan(
        plan=plan,
        receipt=receipt,
        registered=done.registered,
        checks=checks,
        next_steps=produced.manifest.next,
        commit=produced.manifest.commit,
        warnings=done.warnings,
        tests=receipt.tests_of_unit,
        templates={request.kind: template.tree},
    )


def _again(
    workspace: Workspace, request: UnitRequest, produced: Produced, template: TemplateReference, existing: Receipt
) -> UnitPlan:
    """Restore what is gone; an untouched unit gives an empty plan."""
    _refuse_other_answers(request, produced, existing)
    plan = Plan(workspace.root)
    unit = UnitPlan(
        plan=plan,
        receipt=existing,
        next_steps=produced.manifest.next,
        commit=produced.manifest.commit,
        tests=existing.tests_of_unit,
    )
    if existing.template.tree != template.tree:
        update = f"areal-new update {request.kind} {existing.name}"
        warning = f"the template changed since {existing.name!r} was generated; `{update}` merges the changes"
        return replace(unit, warnings=(warning,))
    restored, warnings = _restore_files(plan, produced, existing)
    wanted = existing.register or (request.register and workspace.settings.register)
    done = _register(plan, produced, wanted=request.register and wanted)
    described = produced.receipt_files()
    receipt = replace(
        existing,
        register=wanted,
        files={**existing.files, **{path: described[path] for path in restored}},
        entries=_joined(existing.entries, done.entries),
        documents=_joined(existing.documents, done.documents),
    )
    plan.write(receipt.path, receipt.to_bytes(), reason="receipt")
    return replace(
        unit,
        receipt=receipt,
        registered=done.registered,
        checks=checked(workspace, {path: produced.files[path] for path in restored}, f"the {request.kind}"),
        warnings=(*warnings, *done.warnings),
        tests=receipt.tests_of_unit,
        templates={request.kind: template.tree} if plan else {},
    )


def _refuse_other_answers(request: UnitRequest, produced: Produced, existing: Receipt) -> None:
    differing = sorted(
        name
        for name in produced.answers.keys() & existing.answers.keys()
        if produced.answers[name] != existing.answers[name]
    )
    if differing:
        name = differing[0]
        raise ConflictError(
            f"the {request.kind} {existing.name!r} exists with other answers: {', '.join(differing)} "
            f"({name} is {_short(existing.answers[name])}, asked for is {_short(produced.answers[name])})",
            where=existing.path,
            fix=f"give them to `areal-new update {request.kind} {existing.name}`, or `areal-new undo` the unit first",
        )


def _short(answer: object, limit: int = 80) -> str:
    text = repr(answer)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _restore_files(plan: Plan, produced: Produced, existing: Receipt) -> tuple[list[str], list[str]]:
    """Paths that are written again, and warnings about edited ones."""
    restored: list[str] = []
    warnings: list[str] = []
    for entry in produced.manifest.files:
        content, rendered = plan.read(entry.path), produced.files[entry.path]
        known = existing.files.get(entry.path)
        if content is None:
            plan.write(entry.path, rendered, reason=f"{entry.purpose} (was gone)")
            restored.append(entry.path)
        elif known is None and content != rendered:
            raise ConflictError("exists and was not generated", where=entry.path, fix="move it away")
        elif content != rendered and (known is None or sha256(content) != known.sha256):
            warnings.append(f"{entry.path} was edited since it was generated and is kept as it is")
        elif known is None:
            restored.append(entry.path)
    return restored, warnings


def _register(plan: Plan, produced: Produced, *, wanted: bool) -> Registration:
    if not wanted:
        return Registration((), (), (), ())
    return register(plan, produced.manifest.registry, produced.manifest.documents)


def _joined(old: tuple[_Entry, ...], new: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    return (*old, *(entry for entry in new if entry not in old))


def _with_prepared(unit: UnitPlan, prepared: Prepared) -> UnitPlan:
    return replace(
        unit,
        warnings=(*prepared.warnings, *unit.warnings),
        next_steps=(*unit.next_steps, *prepared.next_steps),
    )
