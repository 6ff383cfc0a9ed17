"""`areal-docs zh-mark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import ToolError
from tooling.cli.report import Report, say
from tooling.documentation.cli.arguments import LAGGING, PROGRAM
from tooling.documentation.cli.context import open_context
from tooling.documentation.compare.structure import structural
from tooling.documentation.compare.words import is_untranslated, untranslated
from tooling.documentation.mark import marked
from tooling.documentation.pairing import in_parallel, side_by_side
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.documentation.cli.context import Context
    from tooling.documentation.pages import Twin


class UnmarkableError(ToolError):
    """A page does not follow its source; `details` says where."""

    exit_code = LAGGING
    code = "unmarkable"

    def __init__(self, problems: list[dict[str, object]]) -> None:
        """problems: path, line, message."""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        first = problems[0]
        fix = "bring the page up to date (`areal-docs zh-plan`), or say where it stands why it differs"
        super().__init__(f"{first['message']}{more}", where=f"{first['path']}:{first['line']}", fix=fix)
        self.details = {"problems": problems}


def run(arguments: argparse.Namespace) -> Report:
    """Mark the pages that are named: all, or none."""
    context = open_context(arguments.repo, arguments.pages, ask_history=False)
    if arguments.dry_run:
        plan = _planned(context)
    else:
        from tooling.kit.change.transaction import apply_plan, transaction

        with transaction(context.repository, wait_seconds=10.0, note=lambda line: say(f"rolled back: {line}")):
            plan = _planned(context)
            apply_plan(context.repository, plan)
    return Report(
        command=f"{PROGRAM} zh-mark",
        dry_run=arguments.dry_run,
        changes=plan.changes,
        show_diff=arguments.diff,
        data={"pages": [twin.translation for twin in context.tree.twins]},
    )


def _planned(context: Context) -> Plan:
    plan, problems = Plan(context.tree.root), list[dict[str, object]]()
    for path in (*map(context.tree.translation_of, context.tree.untranslated), *context.tree.orphans):
        orphan = path in context.tree.orphans
        said = "its source is gone" if orphan else "there is no such page yet"
        problems.append({"path": path, "line": 1, "message": said})
    for twin in context.tree.twins:
        problems += [
            {"path": twin.translation, "line": line, "message": said} for line, said in _problems(context, twin)
        ]
    if problems:
        raise UnmarkableError(problems)
    for twin in context.tree.twins:
        source, _ = context.tree.read(twin.source)
        translation, _ = context.tree.read(twin.translation)
        pairs = in_parallel(source.sections, translation.sections)
        assert pairs is not None
        content = marked(context.tree.text(twin.translation), twin.source, pairs).encode()
        plan.write(twin.translation, content, reason=f"follows {twin.source} as it is now")
    return plan


def _problems(context: Context, twin: Twin) -> Iterator[tuple[int, str]]:
    """Why a page does not say what its source says: line and reason."""
    source, _ = context.tree.read(twin.source)
    translation, _ = context.tree.read(twin.translation)
    pairs = in_parallel(source.sections, translation.sections)
    if pairs is None:
        found = side_by_side(source.sections, translation.sections)
        for pair in found:
            if pair.translation is None and pair.source is not None:
                yield 1, f"has no section for {pair.source.name} (line {pair.source.line} of the source)"
            elif pair.source is None and pair.translation is not None:
                yield pair.translation.line, f"{pair.translation.name} has no section in the source"
            elif pair.source and pair.translation and (pair.moved or pair.source.level != pair.translation.level):
                yield pair.translation.line, f"{pair.translation.name} stands elsewhere than {pair.source.name}"
        return
    for original, translated in pairs:
        if is_untranslated(original, translated):
            yield translated.line, f"{translated.name} is not translated"
            continue
        judge, pages = context.judge, (twin.source, twin.translation)
        for one in structural(original, translated, judge.links, pages):
            yield one.line, f"{one.kind}: {one.message}"
        for one in (*untranslated(original, translated), *judge.glossary.misused(original, translated)):
            yield one.line, f"{one.kind}: {one.message}"
