"""Renames a generated unit: files, symbols, registry entry, test, document line and receipt. Edits are kept.

Other places that name it are listed; --references changes those where the name is certain to be meant.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.git import Git
from tooling.cli.parser import add_changing
from tooling.kit.names import parse_name
from tooling.kit.receipts import RECEIPTS, read_receipt
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_questions
from tooling.kit.template.rendering import complete_answers
from tooling.new.change import Change, UnitRequest, find_unit
from tooling.new.command_line import add_planning, add_testing
from tooling.new.merging import Labels, Merger, Rewriting, old_template, read_or_none
from tooling.new.run import run_change
from tooling.new.unit import check_rendered, entry_state, move_entries, refuse_collisions, render_unit, template_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import ResolvedManifest
    from tooling.kit.receipts import Receipt
    from tooling.kit.template.kinds import ProjectSettings
    from tooling.new.change import Invocation, Project
    from tooling.new.unit import RenderedUnit

REWRITABLE = (".md", ".py", ".pyi", ".toml", ".yaml", ".yml")
_LONGEST_TEXT = 160
"""Characters of a line that a report shows."""


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help="kind of the unit, e.g. reward")
    parser.add_argument("old", metavar="OLD", help="its name")
    parser.add_argument("new", metavar="NEW", help="its new name")
    parser.add_argument(
        "--references", action="store_true", help="also change Python, YAML, TOML and Markdown files that name it"
    )
    add_changing(parser)
    add_planning(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Rename the unit."""
    given = invocation.arguments
    return run_change(
        invocation,
        lambda project: plan_rename(project, given.kind, given.old, given.new, references=given.references),
    )


def plan_rename(project: Project, kind: str, old: str, new: str, *, references: bool = False) -> Change:
    """Plan another name for a unit; the change's `references` are the lines elsewhere that still name it.

    The template a unit came from is rendered with the old name (base) and with the new one (theirs); each file is
    merged into its new place, so edits survive. Raises NameRefusedError and ConflictError for the new name, UsageError
    when the unit or the template it came from cannot be found, ChecksFailedError when the result does not pass the
    gates.
    """
    receipt = find_unit(project, kind, old)
    change = project.change(UnitRequest(kind=kind, name=new))
    change.fix_kept, change.take_back = "change it by hand", f"areal-new rename {kind} {new} {old}"
    try:
        source = project.kind(kind)
    except UsageError:
        source = None  # the kind is gone; git may still hold the template
    with old_template(project, receipt, source) as folder:
        if folder is None:
            raise UsageError(
                f"the template that {receipt.name!r} came from (tree {receipt.template.tree[:12]}) is not in this "
                "repository",
                where=receipt.path,
                fix=f"run `areal-new update {kind} {receipt.name}` first, or `git fetch` the commit that holds it",
            )
        reserved = load_manifest(folder).reserved
        names = change.names = parse_name(new, reserved=reserved)
        if names.snake == receipt.name:
            raise UsageError(f"the {kind} is called {receipt.name!r} already", where=new, fix="give another name")
        if read_receipt(project.root, kind, names.snake) is not None:
            raise ConflictError(f"there is a {kind} {names.snake!r} already", where=new, fix="give another name")
        merger = Merger(project, change, receipt, folder, labels=Labels("yours", receipt.name, names.snake))
        settings = replace(project.settings, package=receipt.package, tests=receipt.tests)
        answers = _answers(folder, receipt, settings)
        unit = render_unit(project, folder, names, answers, kind=kind, settings=settings)
        refuse_collisions(project, change.plan, kind, unit, reserved=reserved, own=receipt)
        if merger.rendered is None:
            why = "; ".join(change.warnings)
            raise UsageError("the old template cannot be rendered", where=receipt.path, fix=why)
        before, after = merger.rendered.manifest, unit.manifest
        if len(before.files) != len(after.files):
            raise UsageError(
                "the template makes other files for the new name", where=receipt.path, fix="generate the unit anew"
            )
        moved = {was.path: now.path for was, now in zip(before.files, after.files, strict=True)}
        check_rendered(change, unit.files, f"the {kind} {names.snake!r}")
        merger.rewriting = _rewriting(receipt, unit, moved)
        for was, now in zip(before.files, after.files, strict=True):
            merger.merge(was.path, now.path, unit.files[now.path], now.purpose)
        merger.finish()
        wanted = _wanted(change.plan, receipt, before, after)
        merger.complete(unit, receipt.template, move_entries(change, receipt, None, wanted))
    _follow_references(project, change, merger.rewriting, {*moved, *moved.values()}, rewrite=references)
    if change.references:
        advice = "correct them by hand" if references else "`--references` rewrites symbols, modules and paths"
        change.next_steps.append(f"{len(change.references)} lines elsewhere still name {receipt.name!r}: {advice}")
    if source is not None and template_tree(project, source) == receipt.template.tree:
        change.templates[kind] = receipt.template.tree
    return change


def _answers(folder: Path, receipt: Receipt, settings: ProjectSettings) -> dict[str, Any]:
    """Return the old answers without those that were the default under the old name, so that they follow the new."""
    kept = dict(receipt.answers)
    for question in load_questions(folder):
        if question.required or question.name not in kept:
            continue
        others = {name: value for name, value in receipt.answers.items() if name != question.name}
        try:
            default = complete_answers(folder, others, receipt.names, settings, kind=receipt.kind)
        except UsageError:
            continue
        if default.get(question.name) == receipt.answers[question.name]:
            del kept[question.name]
    return kept


def _rewriting(receipt: Receipt, unit: RenderedUnit, paths: Mapping[str, str]) -> Rewriting:
    """Return what changes its name with a unit: symbols (in the receipt's order), files and modules."""
    words = {old: new for old, new in zip(receipt.symbols, unit.manifest.symbols, strict=False) if old != new}
    for pair in paths.items():
        if pair[0] == pair[1]:
            continue
        words[pair[0]] = pair[1]
        if all(path.endswith(".py") for path in pair):  # "areal/reward/digits.py" is also "areal.reward.digits"
            old, new = (path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in pair)
            words[old] = new
    return Rewriting(words, receipt.names.key)


def _wanted(plan: Plan, receipt: Receipt, old: ResolvedManifest, new: ResolvedManifest) -> ResolvedManifest:
    """Return the new manifest without entries and lines that somebody took out under the old name."""
    if (len(old.registry), len(old.documents)) != (len(new.registry), len(new.documents)):
        return new
    entries = zip(old.registry, new.registry, strict=True)
    lines = zip(old.documents, new.documents, strict=True)
    return replace(
        new,
        registry=tuple(n for o, n in entries if o in receipt.entries or entry_state(plan, o) != "absent"),
        documents=tuple(n for o, n in lines if o in receipt.documents or entry_state(plan, o) != "absent"),
    )


def _follow_references(
    project: Project, change: Change, rewriting: Rewriting, own: Collection[str], *, rewrite: bool
) -> None:
    """List the lines of other files that still name the unit; with `rewrite`, change first what can be changed.
    Receipts belong to their units, templates are not references."""
    patterns = [part for word in sorted({*rewriting.words, rewriting.key}) for part in ("-e", word)]
    command = ["grep", "--untracked", "-l", "-z", "-I", "--fixed-strings", *patterns, "--", "."]
    templates = tuple(f"{folder}/" for folder in project.settings.templates)
    found: list[str] = []
    for path in sorted(Git(project.root).listed(*command, allowed=(0, 1))):
        content = read_or_none(change.plan, path)  # a link or a folder is not text of ours
        if content is None or path in own or path.startswith(f"{RECEIPTS}/"):
            continue
        if rewrite and PurePosixPath(path).suffix in REWRITABLE and not path.startswith(templates):
            rewritten = rewriting.apply_bytes(content)
            if rewritten != content:
                change.plan.write(path, rewritten, reason="names the renamed unit")
                content = rewritten
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
            if rewriting.is_mentioned(line):
                found.append(f"{path}:{number}: {line.strip()[:_LONGEST_TEXT]}")
    change.references = tuple(found)
