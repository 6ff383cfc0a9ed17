"""Checks every path, symbol, command and option that the pages mention, and the sizes of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import FindingError, UsageError
from tooling.cli.report import Report
from tooling.harness.checks.pages import judge_of, page_findings
from tooling.harness.context import open_context
from tooling.harness.sources import Sources

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.parser import Parser
    from tooling.harness.sources import Finding


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help="only these files (default: all sources and AGENTS.md)"
    )
    parser.add_argument("--no-run", action="store_true", help="start no process: options and commands are not checked")


def run(arguments: argparse.Namespace) -> Report:
    """All findings of all pages, or of those that are named."""
    context = open_context(arguments.repo)
    known = {"AGENTS.md", *(path for path in context.files if path.startswith(("skills/", "agents/")))}
    for page in arguments.pages:
        if page not in known:
            raise UsageError("is not a page of the harness", where=page, fix="name skills/..., agents/... or AGENTS.md")
    wanted = frozenset(arguments.pages)
    judge = judge_of(context.root, context.files, context.policy, run=not arguments.no_run)
    sources = _only(context.sources, wanted)
    found = [*context.problems, *page_findings(context.root, context.files, sources, context.policy, judge)]
    findings = sorted({one for one in found if not wanted or one.path in wanted})
    counted = {kind: judge.judged[kind] for kind in sorted(judge.judged)}
    return Report(
        command="areal-harness check",
        exit_code=FindingError.exit_code if findings else 0,
        changing=False,
        text=_text(findings, counted),
        data={"findings": [one.document() for one in findings], "judged": counted},
    )


def _only(sources: Sources, wanted: frozenset[str]) -> Sources:
    if not wanted:
        return sources
    skills = tuple(skill for skill in sources.skills if skill.page.path in wanted)
    return Sources(skills, tuple(expert for expert in sources.experts if expert.page.path in wanted))


def _text(findings: Sequence[Finding], counted: dict[str, int]) -> str:
    lines = [str(one) for one in findings]
    plain = counted.get("plain", 0)
    judged = ", ".join(f"{number} {kind}s" for kind, number in counted.items() if kind != "plain")
    lines.append(f"{len(findings)} findings; judged: {judged or 'nothing'}; {plain} plain words and formulas were not")
    return "\n".join(lines) + "\n"
