"""Generates a unit of a kind: files, registry entries, document lines and receipt, as one change."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.plan import sha256
from tooling.kit.names import parse_name
from tooling.kit.receipts import read_receipt
from tooling.kit.template.manifest import load_manifest
from tooling.new.answering import ask_missing, ask_name, may_ask, read_answers
from tooling.new.change import Change, UnitRequest
from tooling.new.registration import Entries, refuse_collisions, register
from tooling.new.rendering import check_rendered, prepare, reference, render_unit
from tooling.new.run import run_change

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.receipts import Receipt, TemplateReference
    from tooling.new.command_line import Invocation
    from tooling.new.rendering import RenderedUnit
    from tooling.new.workspace import Workspace


def configure(parser: Parser) -> None:
    """Add the arguments that all kinds share."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="what to call the unit, e.g. gsm8k-hard")
    parser.add_argument("--answers", metavar="FILE.json", help="an object of answers; options win over it ('-': stdin)")
    parser.add_argument(
        "--no-register", dest="register", action="store_false", help="leave registries and documents alone"
    )


def run(invocation: Invocation) -> Report:
    """Generate. What is missing is asked when a person is at a terminal."""
    kind, arguments = invocation.kind, invocation.arguments
    if kind is None:
        raise UsageError("no kind was given", fix="see `areal-new kinds`")
    answers, options = read_answers(arguments)
    name, ask = arguments.name, may_ask(as_json=arguments.json)
    known = load_manifest(kind.folder).options
    if any(option.name in options for option in known if option.reports):  # findings only: nothing has to be locked
        arguments.dry_run = True
        name = name or f"{kind.name}-report"
    if not name:
        if not ask:
            raise UsageError(
                f"no name for the new {kind.name} was given", where="NAME", fix=f"write `areal-new {kind.name} NAME`"
            )
        name = ask_name(kind)
    if ask and not options:  # options may answer questions themselves
        answers = ask_missing(arguments.questions, answers)
    request = UnitRequest(kind=kind.name, name=name, answers=answers, options=options, register=arguments.register)
    return run_change(invocation, lambda workspace: plan_unit(workspace, request))


def plan_unit(workspace: Workspace, request: UnitRequest) -> Change:
    """Plan a new unit: name, answers, files, gates, registry, docs line and receipt, all before the first write.

    Planning the same unit a second time gives an empty plan. It restores files that are gone and never touches files
    that were edited; other answers are an update, not a second generation. Raises NameRefusedError and UsageError for
    the request, ConflictError when something is in the way or the unit exists with other answers, RegistryShapeError
    for a registry that cannot be edited, ChecksFailedError when the rendered files do not pass the gates.
    """
    source = workspace.kind(request.kind)
    reserved = load_manifest(source.folder).reserved
    change = workspace.change(request)
    change.take_back = f"areal-new undo {request.kind} {shlex.quote(request.name)}"
    change.names = parse_name(request.name, reserved=reserved)
    existing = read_receipt(workspace.root, request.kind, change.names.snake)
    derived, finish = prepare(workspace, source, change)
    if change.findings is not None:
        return change
    # Next steps of the page come behind those of the manifest.
    more_steps, change.next_steps = change.next_steps, []
    unit = render_unit(
        workspace,
        source.folder,
        change.names,
        {**request.answers, **derived},
        kind=request.kind,
        finish=finish,
        given=request.answers,
    )
    change.commit, change.next_steps = unit.manifest.commit, [*unit.manifest.next, *more_steps]
    template = reference(workspace, source)
    if existing is None:
        refuse_collisions(workspace, change.plan, request.kind, unit, reserved=reserved)
        _plan_new(workspace, change, unit, template)
    else:
        _refuse_other_answers(request, unit, existing)
        _plan_again(workspace, change, unit, template, existing)
    assert change.receipt is not None
    change.tests = change.receipt.tests_of_unit
    return change


def _plan_new(workspace: Workspace, change: Change, unit: RenderedUnit, template: TemplateReference) -> None:
    kind = change.request.kind
    for entry in unit.manifest.files:
        change.plan.write(entry.path, unit.files[entry.path], reason=entry.purpose)
    check_rendered(change, unit.files, f"the {kind} {unit.names.snake!r}")
    wanted = change.request.register and workspace.settings.register
    done = register(change, [*unit.manifest.registry, *unit.manifest.documents]) if wanted else Entries()
    receipt = replace(unit.receipt(kind, template, register=wanted), entries=done.entries, documents=done.documents)
    change.plan.write(receipt.path, receipt.to_bytes(), reason="receipt")
    change.receipt, change.templates = receipt, {kind: template.tree}


def _plan_again(
    workspace: Workspace, change: Change, unit: RenderedUnit, template: TemplateReference, existing: Receipt
) -> None:
    """Restore what is gone; an untouched unit gives an empty plan."""
    plan, kind, change.receipt = change.plan, change.request.kind, existing
    if existing.template.tree != template.tree:
        update = f"areal-new update {kind} {existing.name}"
        change.warnings.append(
            f"the template changed since {existing.name!r} was generated; `{update}` merges the changes"
        )
        return
    restored: list[str] = []
    for entry in unit.manifest.files:
        content, rendered = plan.read(entry.path), unit.files[entry.path]
        known = existing.files.get(entry.path)
        if content is None:
            plan.write(entry.path, rendered, reason=f"{entry.purpose} (was gone)")
            restored.append(entry.path)
        elif known is None and content != rendered:
            raise ConflictError("exists and was not generated", where=entry.path, fix="move it away")
        elif content != rendered and (known is None or sha256(content) != known.sha256):
            change.warnings.append(f"{entry.path} was edited since it was generated and is kept as it is")
        elif known is None:
            restored.append(entry.path)
    asked = change.request.register
    wanted = existing.register or (asked and workspace.settings.register)
    done = Entries()
    if asked and wanted:
        done = register(change, [*unit.manifest.registry, *unit.manifest.documents])
    described = unit.receipt_files()
    receipt = replace(
        existing,
        register=wanted,
        files={**existing.files, **{path: described[path] for path in restored}},
        entries=(*existing.entries, *(entry for entry in done.entries if entry not in existing.entries)),
        documents=(*existing.documents, *(line for line in done.documents if line not in existing.documents)),
    )
    plan.write(receipt.path, receipt.to_bytes(), reason="receipt")
    check_rendered(change, {path: unit.files[path] for path in restored}, f"the {kind}")
    change.receipt, change.templates = receipt, {kind: template.tree} if plan else {}


def _refuse_other_answers(request: UnitRequest, unit: RenderedUnit, existing: Receipt) -> None:
    both = unit.answers.keys() & existing.answers.keys()
    differing = sorted(name for name in both if unit.answers[name] != existing.answers[name])
    if differing:
        name, limit = differing[0], 80
        old, new = (
            text if len(text) <= limit else f"{text[: limit - 3]}..."
            for text in (repr(existing.answers[name]), repr(unit.answers[name]))
        )
        raise ConflictError(
            f"the {request.kind} {existing.name!r} exists with other answers: {', '.join(differing)} "
            f"({name} is {old}, asked for is {new})",
            where=existing.path,
            fix=f"give them to `areal-new update {request.kind} {existing.name}`, or `areal-new undo` the unit first",
        )
