"""Says which places of the code a new version of a dependency breaks, before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.commands.common import (
    UPGRADE,
    add_formats,
    add_requests,
    add_sources,
    context_of,
    half_written,
    options_of,
    upgrade_report,
)

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser
    from tooling.cli.report import Report


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add_requests(parser)
    add_sources(parser)
    add_formats(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Audit; write nothing."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.upgrading import Upgrade, plan_upgrade

    options = options_of(arguments, bump=False)
    context = context_of(arguments)
    upgrade = Upgrade(options, Plan(context.root))
    plan_upgrade(context, upgrade)
    upgrade.sources = context.origins()
    upgrade.warnings += half_written(context.root)
    return upgrade_report(upgrade, arguments, f"{UPGRADE} impact", changing=False)
