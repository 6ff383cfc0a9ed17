"""Moves dependencies to new versions and finds each place of the code that these break, without importing them.

Every place that names the version is edited, the lock resolved, each use audited against the new version's source, the
checklists and a summary written: all of it, or nothing. A run that ends with another code than 0 or 10 leaves no file.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.git import nearest_root
from tooling.upgrade.commands.common import (
    UPGRADE,
    add_formats,
    add_requests,
    add_sources,
    check_summary,
    context_of,
    half_written,
    options_of,
    upgrade_report,
    write_plan,
    writing,
)

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.operations.upgrading import Upgrade, UpgradeOptions

SUMMARY: Final = "upgrade-summary.md"


def configure(parser: Parser) -> None:
    """Add the arguments."""
    from tooling.cli.parser import add_changing

    add_requests(parser)
    what = parser.add_argument_group("what is done")
    what.add_argument("--fix", action="store_true", help="write the changes that are certain, proven by a second audit")
    what.add_argument("--no-lock", dest="lock", action="store_false", help="do not resolve")
    what.add_argument(
        "--summary",
        metavar="FILE",
        default=SUMMARY,
        help="Markdown report beside the changes, inside the repository (default: %(default)s)",
    )
    what.add_argument("--no-summary", dest="summary", action="store_const", const="", help="write no report")
    add_sources(parser)
    add_formats(parser)
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Plan the upgrade, and write it unless it is a dry run."""
    options = options_of(arguments, lock=arguments.lock, fix=arguments.fix)
    with nullcontext() if arguments.dry_run else writing(nearest_root(arguments.repo), arguments) as repository:
        context = context_of(arguments)  # read when nobody writes any more
        upgrade = _planned(context, options, arguments.summary)
        if repository is not None:
            write_plan(repository, upgrade.plan)
        else:
            upgrade.warnings += half_written(context.root)
    return upgrade_report(upgrade, arguments, UPGRADE, changing=True)


def _planned(context: UpgradeContext, options: UpgradeOptions, summary_path: str) -> Upgrade:
    """Plan the upgrade; when that fails, return one that writes nothing, with the problem."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.upgrading import Upgrade, plan_upgrade, summary

    check_summary(context.root, summary_path)
    upgrade = Upgrade(options, Plan(context.root))
    try:
        plan_upgrade(context, upgrade)
    except UsageError:
        raise
    except ToolError as error:
        upgrade.problem = error
    upgrade.sources = context.origins()
    if upgrade.problem is not None:
        upgrade.plan = Plan(context.root)  # all or nothing
    if summary_path and upgrade.plan:
        upgrade.plan.write(summary_path, summary(upgrade).encode(), reason="the report of this upgrade")
    return upgrade
