"""Checks every path, symbol, command and option that the pages mention, and the sizes of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import FindingError, UsageError
from tooling.cli.report import Report
from tooling.harness.checks.pages import judge_of, page_findings
from tooling.harness.context import open_context
from tooling.harness.ownership.block import block_findings, with_blocks
from tooling.harness.ownership.owners import owner_findings
from tooling.harness.sources import Sources

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help="only these files (default: all sources and AGENTS.md)"
    )
    parser.add_argument("--no-run", action="store_true", help="start no process: options and commands are not checked")


def run(arguments: argparse.Namespace) -> Report:
    """Report all findings of all pages, or of those that are named."""
    context = open_context(arguments.repo)
    known = {"AGENTS.md", *(path for path in context.files if path.startswith(("skills/", "agents/")))}
    for page in arguments.pages:
        if page not in known:
            raise UsageError("is not a page of the harness", where=page, fix="name skills/..., agents/... or AGENTS.md")
    wanted, sources = frozenset(arguments.pages), context.sources
    if wanted:
        skills = tuple(skill for skill in sources.skills if skill.page.path in wanted)
        sources = Sources(skills, tuple(expert for expert in sources.experts if expert.page.path in wanted))
    with judge_of(context.root, context.files, context.policy, run=not arguments.no_run) as judge:
        found = [*context.problems, *page_findings(context.root, context.files, sources, context.policy, judge)]
        found += owner_findings(context.files, context.sources.experts, context.policy.owned)
        found += block_findings(context.sources, with_blocks(context.root, context.files, context.sources))
    findings = sorted({one for one in found if not wanted or one.path in wanted})
    counted = {kind: judge.judged[kind] for kind in sorted(judge.judged)}
    judged = ", ".join(f"{number} {kind}s" for kind, number in counted.items() if kind != "plain")
    plain = f"{counted.get('plain', 0)} plain words and formulas were not"
    summary = f"{len(findings)} findings; judged: {judged or 'nothing'}; {plain}"
    return Report(
        command="areal-harness check",
        exit_code=FindingError.exit_code if findings else 0,
        changing=False,
        text="".join(f"{line}\n" for line in (*map(str, findings), summary)),
        data={"findings": [one.document() for one in findings], "judged": counted},
    )
