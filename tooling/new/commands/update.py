"""Brings a unit to the template as it is now, or gives it other answers, without losing edits.

Edits and changes of the template are merged; where both changed the same lines, conflict markers are left (exit
code 5). The questions of the kind are options here too: `areal-new update reward digits --style boxed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.parser import add_changing
from tooling.kit.change.plan import sha256
from tooling.kit.edits.text import conflict_lines
from tooling.kit.receipts import read_receipts
from tooling.kit.template.expressions import evaluate
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_configuration, load_questions, refuse_unasked
from tooling.kit.template.rendering import template_context
from tooling.new.change import Change, UnitRequest, find_unit
from tooling.new.command_line import add_planning, add_testing, read_answers
from tooling.new.merging import Merger, old_template, read_or_none
from tooling.new.proof import standing
from tooling.new.run import run_change
from tooling.new.unit import (
    check_rendered,
    json_values,
    move_entries,
    prepare,
    reference,
    refuse_unknown,
    render_unit,
    template_tree,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.receipts import Receipt
    from tooling.kit.template.kinds import KindSource
    from tooling.new.change import Invocation, Project
    from tooling.new.unit import RenderedUnit


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", nargs="?", help="its name")
    parser.add_argument("--all", action="store_true", help="every unit (of the kind, when one is given), or none")
    parser.add_argument("--answers", metavar="FILE.json", help="an object of new answers; options win ('-': stdin)")
    add_changing(parser)
    add_planning(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Update the unit, or all of them."""
    arguments = invocation.arguments
    kind, name = arguments.kind, arguments.name
    answers, options = read_answers(arguments)
    if arguments.all:
        if name is not None or answers or options:
            raise UsageError("--all takes neither a name nor answers", where="--all", fix="leave one of them out")
        return run_change(invocation, lambda project: plan_update_all(project, kind))
    if name is None:
        raise UsageError("which unit?", where="KIND NAME", fix="name one (see `areal-new list`), or use --all")
    return run_change(invocation, lambda project: plan_update(project, kind, name, answers=answers, options=options))


def plan_update(
    project: Project,
    kind: str,
    name: str,
    *,
    answers: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Change:
    """Plan the merge of the template as it is now, with the old answers and the given ones, into a unit.

    For each file: base is what was generated, ours is the disk, theirs is the template now. Files that a user deleted
    stay deleted; files that left the template go when they are pristine; files that the template renamed move. An
    unchanged template with unchanged answers, from which the kind's page derives what it did, gives an empty plan,
    whose `conflicts` are the files that still hold the markers of an earlier update.

    Raises UsageError when the unit, the kind or the merge base cannot be found, and for answers that no longer fit
    (give new ones); ConflictError when a new file is in the way; MergeConflictError when markers of an earlier update
    are in the way; ChecksFailedError when the result does not pass the gates.
    """
    change = project.change(UnitRequest(kind=kind, name=name, answers=answers or {}, options=options or {}))
    change.fix_kept = "remove or change it by hand"
    _update(project, change)
    return change


def plan_update_all(project: Project, kind: str | None = None) -> Change:
    """Plan the update of every unit, or every unit of a kind; all or none. Raises as `plan_update`, with the unit in
    the message."""
    change = project.change(UnitRequest(kind=kind or "", name=""))
    change.fix_kept = "remove or change it by hand"
    if kind is not None:
        project.kind(kind)  # refuses a misspelt one
    for receipt in read_receipts(project.root):
        if kind is not None and receipt.kind != kind:
            continue
        change.request = UnitRequest(kind=receipt.kind, name=receipt.name)
        try:
            _update(project, change)
        except ToolError as error:
            error.message = f"{receipt.kind} {receipt.name}: {error.message}"
            raise
    change.request, change.receipt = UnitRequest(kind=kind or "", name=""), None
    return change


def _update(project: Project, change: Change) -> None:
    """Add the update of one unit to the change."""
    request = change.request
    receipt = find_unit(project, request.kind, request.name)
    source = project.kind(request.kind)
    change.names = receipt.names
    changed = bool(request.options) or template_tree(project, source) != receipt.template.tree
    if not changed and _same(request.answers, receipt):
        # What the kind's page makes of the old answers now: it is code, which no hash of the template knows.
        scratch = project.change(UnitRequest(kind=receipt.kind, name=receipt.name, answers=receipt.answers))
        scratch.names = receipt.names
        changed = not _same(prepare(project, source, scratch)[0], receipt)
    else:
        changed = True
    if not changed:
        known = {**template_context(receipt.names, project.settings, receipt.kind), **receipt.answers}
        refuse_unasked(load_questions(source.folder), request.answers, known)
        change.receipt = receipt
        change.tests += receipt.tests_of_unit
        found = standing(change.plan, receipt)
        if not found.proven:
            change.warnings.append(f"{receipt.kind} {receipt.name} is {found}{found.advice}")
        for path, pristine in receipt.files.items():
            content = read_or_none(change.plan, path)
            if content is not None and sha256(content) != pristine.sha256 and conflict_lines(content):
                change.conflicts.append(path)
        return
    with old_template(project, receipt, source) as folder:
        merger = Merger(project, change, receipt, folder)
        unit = _render_now(project, source, change, receipt)
        check_rendered(change, unit.files, f"the {receipt.kind} {receipt.name!r} as the template makes it now")
        moved = _renamed_paths(project, source.folder, receipt, unit)
        for entry in unit.manifest.files:
            merger.merge(moved.get(entry.path, entry.path), entry.path, unit.files[entry.path], entry.purpose)
        merger.finish()
    template = reference(project, source)
    before = None if merger.rendered is None else merger.rendered.manifest
    merger.complete(unit, template, move_entries(change, receipt, before, unit.manifest))
    change.templates[receipt.kind] = template.tree


def _same(answers: Mapping[str, Any], receipt: Receipt) -> bool:
    given = json_values(answers)
    return all(name in receipt.answers and receipt.answers[name] == given[name] for name in given)


def _render_now(project: Project, source: KindSource, change: Change, receipt: Receipt) -> RenderedUnit:
    """Render the template with the old answers, the given ones, and what the options stand for."""
    request = change.request
    known = {question.name for question in load_questions(source.folder)}
    change.warnings += [
        f"the template no longer asks for {name!r}; the answer {value!r} was dropped"
        for name, value in receipt.answers.items()
        if name not in known
    ]
    # The page sees old answers too: what it derives from them (not from options) follows the given ones.
    refuse_unknown(source.folder, request.answers)
    old = {name: value for name, value in receipt.answers.items() if name in known}
    change.request = replace(request, answers={**old, **request.answers})
    derived, finish = prepare(project, source, change)
    answers = {**change.request.answers, **derived}
    change.request, change.next_steps = request, []
    return render_unit(
        project, source.folder, receipt.names, answers, kind=receipt.kind, finish=finish, given=request.answers
    )


def _renamed_paths(project: Project, folder: Path, receipt: Receipt, unit: RenderedUnit) -> dict[str, str]:
    """Map the new path of each generated file whose template file was renamed to the old one, by the `renames` of the
    manifest. A file renamed twice is followed.

    Example: {"template/{{ tests }}/{{ snake }}_test.py.jinja": "template/{{ tests }}/test_{{ snake }}.py.jinja"} gives
    {"tests/test_digits.py": "tests/digits_test.py"} for the unit "digits".
    """
    renames = load_manifest(folder).renames
    if not renames:
        return {}
    configuration = load_configuration(folder)
    prefix = f"{configuration.get('_subdirectory') or ''}/".lstrip("/")
    suffix = str(configuration.get("_templates_suffix") or ".jinja")
    settings = replace(project.settings, package=receipt.package, tests=receipt.tests)
    before = {**template_context(receipt.names, settings, receipt.kind), **receipt.answers}
    after = {**template_context(receipt.names, unit.settings, receipt.kind), **unit.answers}
    found: dict[str, str] = {}
    for old in renames:
        new, seen = old, {old}
        while (following := renames.get(new)) is not None and following not in seen:  # a circle ends where it began
            seen.add(following)
            new = following
        old_path, new_path = (
            evaluate(name.removeprefix(prefix).removesuffix(suffix), context, where=f"renames: {name}")
            for name, context in ((old, before), (new, after))
        )
        if old_path in receipt.files and new_path in unit.files and old_path != new_path:
            found[new_path] = old_path
    return found
