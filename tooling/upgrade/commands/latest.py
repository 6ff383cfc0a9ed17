"""Searches for each watched package the newest version that resolves and audits clean, and the first that does not.

Each version is planned as the upgrade itself would plan it, so that what is called clean is not refused afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.upgrade.commands.common import FINDINGS, UPGRADE, add_sources, context_of, end_progress, sources
from tooling.upgrade.errors import UpstreamError

if TYPE_CHECKING:
    import argparse

    from tooling.cli.errors import ToolError
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.upgrade.operations.latest import Latest


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these (default: all that are watched)")
    add_sources(parser)
    shown = parser.add_argument_group("how it is shown")
    shown.add_argument("--markdown", action="store_true", help="print a table for a pull request, or a job's summary")


def run(arguments: argparse.Namespace) -> Report:
    """Search and report; change nothing."""
    from packaging.utils import canonicalize_name

    from tooling.cli.report import Report, aligned
    from tooling.upgrade.operations.latest import latest
    from tooling.upgrade.report.document import document
    from tooling.upgrade.report.text import escaped

    for word in arguments.packages:
        if "=" in word:
            raise UsageError(f"{word!r} names a version", fix=f"write `{UPGRADE} latest PACKAGE`")
    context = context_of(arguments)
    names = [canonicalize_name(word) for word in arguments.packages]
    found = latest(context, names, offline=arguments.offline is not None)
    end_progress()
    if not found:
        raise UsageError("no watched package is declared here", fix=f"name one: `{UPGRADE} latest PACKAGE`")
    problem: ToolError | None = None
    if all(one.problem for one in found):
        message = f"nothing could be found out: {found[0].problem}"
        kind = UsageError if all(one.looked_at_nothing for one in found) else UpstreamError
        problem = kind(message, where=found[0].distribution, fix="see the rows above, then try again")
    rows = [("package", "now", "newest", "clean up to", "first that does not", "why")]
    rows += [
        (one.distribution, one.current, one.newest, one.clean, one.breaking or "-", one.problem or _why(one))
        for one in found
    ]
    skipped = [f"{one.distribution} {each}" for one in found for each in one.skipped]
    table = aligned(rows)
    if arguments.markdown:
        head, *body = rows
        lines = [head, tuple("---" for _ in head), *(tuple(map(escaped, row)) for row in body)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    titles = [f"{one.distribution}=={one.clean}" for one in found if one.clean not in ("", one.current)]
    return Report(
        command=f"{UPGRADE} latest",
        problem=problem,
        exit_code=None if problem else FINDINGS if any(one.breaking for one in found) else 0,
        changing=False,
        next_steps=() if arguments.markdown else tuple(f"{UPGRADE} {each}" for each in titles),
        text="\n".join(
            [table, *(f"\nnot audited: {line}" if arguments.markdown else f"not audited: {line}" for line in skipped)]
        )
        + "\n",
        data={
            "packages": [
                {
                    "distribution": one.distribution,
                    "current": one.current,
                    "newest": one.newest,
                    "clean": one.clean,
                    "breaking": one.breaking or None,
                    "refused": one.refused or None,
                    "skipped": list(one.skipped),
                    "problem": one.problem or None,
                    **document(one.audits),
                }
                for one in found
            ],
            "sources": sources(context.origins()),
        },
    )


def _why(one: Latest) -> str:
    if one.refused:
        return one.refused
    breaking = [finding for audit in one.audits for finding in audit.findings if finding.severity == "breaking"]
    if not breaking:
        return ""
    more = f" and {len(breaking) - 1} more" if len(breaking) > 1 else ""
    return f"{breaking[0].path}:{breaking[0].line} {breaking[0].message}{more}"
