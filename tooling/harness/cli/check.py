"""`areal-harness check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.report import Report
from tooling.harness.checks.pages import judge_of, page_findings
from tooling.harness.cli.arguments import PROGRAM
from tooling.harness.cli.context import open_context
from tooling.harness.sources.records import Sources

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.harness.cli.context import Context
    from tooling.harness.findings import Finding

FINDINGS = 10


def run(arguments: argparse.Namespace) -> Report:
    """All findings of all pages, or of those that are named."""
    context = open_context(arguments.repo)
    wanted = _wanted(context, arguments.pages)
    judge = judge_of(context.root, context.files, context.policy, run=not arguments.no_run)
    sources = _only(context.sources, wanted)
    found = [*context.problems, *page_findings(context.root, context.files, sources, context.policy, judge)]
    findings = sorted({one for one in found if not wanted or one.path in wanted})
    counted = {kind: judge.judged[kind] for kind in sorted(judge.judged)}
    return Report(
        command=f"{PROGRAM} check",
        exit_code=FINDINGS if findings else 0,
        changing=False,
        text=_text(findings, counted),
        data={"findings": [one.document() for one in findings], "judged": counted},
    )


def _wanted(context: Context, pages: Sequence[str]) -> frozenset[str]:
    known = {"AGENTS.md", *(path for path in context.files if path.startswith(("skills/", "agents/")))}
    for page in pages:
        if page not in known:
            raise UsageError("is no page of the harness", where=page, fix="name skills/..., agents/... or AGENTS.md")
    return frozenset(pages)


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
