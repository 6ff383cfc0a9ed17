"""Records in each page which sections of its source it follows: "this translation says what the source says now".

Refused where headings do not match, text is not translated, or structure differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import FindingError
from tooling.cli.parser import add_changing
from tooling.cli.report import Report, say
from tooling.documentation.compare import is_untranslated, structural, untranslated
from tooling.documentation.pages import marked
from tooling.documentation.pairing import in_parallel, side_by_side
from tooling.documentation.verdicts import open_judge
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.cli.parser import Parser
    from tooling.documentation.pages import Twin
    from tooling.documentation.verdicts import TranslationJudge


class UnmarkableError(FindingError):
    """A page does not follow its source; `details` says where."""

    code = "unmarkable"

    def __init__(self, problems: list[dict[str, object]]) -> None:
        """problems: path, line, message."""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        first = problems[0]
        fix = "bring the page up to date (`areal-docs zh-plan`), or say where it stands why it differs"
        super().__init__(f"{first['message']}{more}", where=f"{first['path']}:{first['line']}", fix=fix)
        self.details = {"problems": problems}


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("pages", nargs="+", metavar="PAGE", help="a page, or its translation")
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Mark the pages that are named: all, or none."""
    judge = open_judge(arguments.repo, arguments.pages, ask_history=False)
    if arguments.dry_run:
        plan = _planned(judge)
    else:
        from tooling.kit.change.transaction import apply_plan, transaction

        with transaction(judge.repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
            plan = _planned(judge)
            apply_plan(judge.repository, plan)
    return Report(
        command="areal-docs zh-mark",
        dry_run=arguments.dry_run,
        changes=plan.changes,
        show_diff=arguments.diff,
        data={"pages": [twin.translation for twin in judge.tree.twins]},
    )


def _planned(judge: TranslationJudge) -> Plan:
    plan, problems = Plan(judge.tree.root), list[dict[str, object]]()
    for path in (*map(judge.tree.translation_of, judge.tree.untranslated), *judge.tree.orphans):
        orphan = path in judge.tree.orphans
        said = "its source is gone" if orphan else "there is no such page yet"
        problems.append({"path": path, "line": 1, "message": said})
    for twin in judge.tree.twins:
        problems += [{"path": twin.translation, "line": line, "message": said} for line, said in _problems(judge, twin)]
    if problems:
        raise UnmarkableError(problems)
    for twin in judge.tree.twins:
        source, _ = judge.tree.read(twin.source)
        translation, _ = judge.tree.read(twin.translation)
        pairs = in_parallel(source.sections, translation.sections)
        assert pairs is not None
        content = marked(judge.tree.text(twin.translation), twin.source, pairs).encode()
        plan.write(twin.translation, content, reason=f"follows {twin.source} as it is now")
    return plan


def _problems(judge: TranslationJudge, twin: Twin) -> Iterator[tuple[int, str]]:
    """Why a page does not say what its source says: line and reason."""
    source, _ = judge.tree.read(twin.source)
    translation, _ = judge.tree.read(twin.translation)
    pairs = in_parallel(source.sections, translation.sections)
    if pairs is None:
        found = side_by_side(source.sections, translation.sections)
        for pair in found:
            if pair.translation is None and pair.source is not None:
                yield 1, f"has no section for {pair.source.name} (line {pair.source.line} of the source)"
            elif pair.source is None and pair.translation is not None:
                yield pair.translation.line, f"{pair.translation.name} has no section in the source"
            elif pair.source and pair.translation and (pair.moved or pair.source.level != pair.translation.level):
                yield pair.translation.line, f"{pair.translation.name} is in another place than {pair.source.name}"
        return
    for original, translated in pairs:
        if is_untranslated(original, translated):
            yield translated.line, f"{translated.name} is not translated"
            continue
        pages = (twin.source, twin.translation)
        for one in structural(original, translated, judge.links, pages):
            yield one.line, f"{one.kind}: {one.message}"
        for one in (*untranslated(original, translated), *judge.glossary.misused(original, translated)):
            yield one.line, f"{one.kind}: {one.message}"
