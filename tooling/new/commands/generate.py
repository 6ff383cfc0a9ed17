"""Generates a unit of a kind: files, registry entries, document lines and receipt, as one change.

What is missing is asked when a person is at a terminal.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.report import printable
from tooling.kit.change.plan import sha256
from tooling.kit.names import parse_name
from tooling.kit.receipts import read_receipt
from tooling.kit.template.expressions import holds
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import parse_answer
from tooling.new.change import Change, UnitRequest
from tooling.new.command_line import flag, read_answers
from tooling.new.run import run_change
from tooling.new.unit import Entries, check_rendered, prepare, reference, refuse_collisions, register, render_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.receipts import Receipt, TemplateReference
    from tooling.kit.template.questions import Question
    from tooling.new.change import Invocation, Project
    from tooling.new.unit import RenderedUnit

MAX_ATTEMPTS = 3
"""How often a person is asked the same question."""


def configure(parser: Parser) -> None:
    """Add the arguments that all kinds share."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="what to call the unit, e.g. gsm8k-hard")
    parser.add_argument("--answers", metavar="FILE.json", help="an object of answers; options win over it ('-': stdin)")
    parser.add_argument(
        "--no-register", dest="register", action="store_false", help="leave registries and documents alone"
    )


def run(invocation: Invocation) -> Report:
    """Generate the unit."""
    kind, arguments = invocation.kind, invocation.arguments
    if kind is None:
        raise UsageError("no kind was given", fix="see `areal-new kinds`")
    answers, options = read_answers(arguments)
    # Questions go to stderr and answers come from stdin: both must be terminals.
    may_ask = not arguments.json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    name = arguments.name
    known = load_manifest(kind.folder).options
    if any(option.name in options for option in known if option.reports):  # findings only: nothing has to be locked
        arguments.dry_run = True
        name = name or f"{kind.name}-report"
    if not name:
        if not may_ask:
            raise UsageError(
                f"no name for the new {kind.name} was given", where="NAME", fix=f"write `areal-new {kind.name} NAME`"
            )
        attempts = (_ask(f"name of the new {kind.name}: ") for _ in range(MAX_ATTEMPTS))
        name = next(filter(None, attempts), None)
        if name is None:
            raise UsageError("no name was given")
    if may_ask and not options:  # options may answer questions themselves
        answers = ask_missing(arguments.questions, answers)
    request = UnitRequest(kind=kind.name, name=name, answers=answers, options=options, register=arguments.register)
    return run_change(invocation, lambda project: plan_unit(project, request))


def ask_missing(questions: Sequence[Question], answers: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the required questions that have no answer yet, and return all answers. Raises UsageError when there is
    none."""
    found = dict(answers)
    defaults = {other.name: other.default for other in questions if not other.required}
    for question in questions:
        if question.computed or not question.required or question.name in found:
            continue
        try:
            applies = holds(question.when, {**defaults, **found}, where=f"{question.name}: when")
        except UsageError:  # as far as answers and plain defaults tell; the template's own check will
            applies = False
        if applies:
            found[question.name] = _ask_question(question)
    return found


def _ask_question(question: Question) -> Any:
    listed = f" [{', '.join(map(str, question.choices))}]" if question.choices else ""
    for _ in range(MAX_ATTEMPTS):
        text = _ask(f"{question.name}{listed} - {question.help}: ")
        if not text:
            continue
        try:
            answer = parse_answer(question, text)
        except UsageError as error:
            sys.stderr.write(f"{printable(str(error))}\n")
            continue
        chosen = answer if isinstance(answer, list) else [answer]
        if not question.choices or all(item in question.choices for item in chosen):
            return answer
        sys.stderr.write(f"{printable(repr(text))} is not a choice\n")
    raise UsageError(f"the question {question.name!r} was not answered", where=flag(question.name))


def _ask(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        raise UsageError("the input ended before all questions were answered")
    return line.strip()


def plan_unit(project: Project, request: UnitRequest) -> Change:
    """Plan a new unit: name, answers, files, gates, registry, docs line and receipt, all before the first write.

    Planning the same unit a second time gives an empty plan. It restores files that are gone and never touches files
    that were edited; other answers are an update, not a second generation. Raises NameRefusedError and UsageError for
    the request, ConflictError when something is in the way or the unit exists with other answers, RegistryShapeError
    for a registry that cannot be edited, ChecksFailedError when the rendered files do not pass the gates.
    """
    source = project.kind(request.kind)
    reserved = load_manifest(source.folder).reserved
    change = project.change(request)
    change.take_back = f"areal-new undo {request.kind} {shlex.quote(request.name)}"
    change.names = parse_name(request.name, reserved=reserved)
    existing = read_receipt(project.root, request.kind, change.names.snake)
    derived, finish = prepare(project, source, change)
    if change.findings is not None:
        return change
    template = reference(project, source)
    given = {**request.answers, **derived}
    same = existing is not None and all(existing.answers.get(name) == value for name, value in given.items())
    if existing is not None and same and _warn_outdated(change, existing, template):
        change.receipt, change.tests, change.units = existing, existing.tests_of_unit, [existing]
        return change  # old answers may not fit a new template
    # Next steps of the page come behind those of the manifest.
    more_steps, change.next_steps = change.next_steps, []
    unit = render_unit(
        project,
        source.folder,
        change.names,
        {**request.answers, **derived},
        kind=request.kind,
        finish=finish,
        given=request.answers,
    )
    change.commit, change.next_steps = unit.manifest.commit, [*unit.manifest.next, *more_steps]
    if existing is None:
        refuse_collisions(project, change.plan, request.kind, unit, reserved=reserved)
        _plan_new(project, change, unit, template)
    else:
        _plan_again(project, change, unit, template, existing)
    assert change.receipt is not None
    change.tests = change.receipt.tests_of_unit
    return change


def _plan_new(project: Project, change: Change, unit: RenderedUnit, template: TemplateReference) -> None:
    kind = change.request.kind
    for entry in unit.manifest.files:
        change.plan.write(entry.path, unit.files[entry.path], reason=entry.purpose)
    check_rendered(change, unit.files, f"the {kind} {unit.names.snake!r}")
    wanted = change.request.register and project.settings.register
    done = register(change, [*unit.manifest.registry, *unit.manifest.documents]) if wanted else Entries()
    receipt = replace(unit.receipt(kind, template, register=wanted), entries=done.entries, documents=done.documents)
    change.plan_receipt(receipt)
    change.templates = {kind: template.tree}


def _plan_again(
    project: Project, change: Change, unit: RenderedUnit, template: TemplateReference, existing: Receipt
) -> None:
    """Restore what is gone; an untouched unit gives an empty plan. Raises ConflictError for other answers."""
    plan, kind, change.receipt = change.plan, change.request.kind, existing
    both = unit.answers.keys() & existing.answers.keys()
    differing = sorted(name for name in both if unit.answers[name] != existing.answers[name])
    if differing:
        name, limit = differing[0], 80
        old, new = (
            text if len(text) <= limit else f"{text[: limit - 3]}..."
            for text in (repr(existing.answers[name]), repr(unit.answers[name]))
        )
        raise ConflictError(
            f"the {kind} {existing.name!r} exists with other answers: {', '.join(differing)} "
            f"({name} is {old}, asked for is {new})",
            where=existing.path,
            fix=f"give them to `areal-new update {kind} {existing.name}`, or `areal-new undo` the unit first",
        )
    if _warn_outdated(change, existing, template):
        change.units.append(existing)
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
    wanted = existing.register or (asked and project.settings.register)
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
        unproven=unit.manifest.unproven if wanted else (),
    )
    change.plan_receipt(receipt)
    check_rendered(change, {path: unit.files[path] for path in restored}, f"the {kind}")
    change.templates = {kind: template.tree} if plan else {}


def _warn_outdated(change: Change, existing: Receipt, template: TemplateReference) -> bool:
    """Say whether a unit was generated from another state of its template, in a warning too."""
    if existing.template.tree == template.tree:
        return False
    update = f"areal-new update {existing.kind} {existing.name}"
    change.warnings.append(f"the template changed since {existing.name!r} was generated; `{update}` merges the changes")
    return True
