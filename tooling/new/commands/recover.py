"""Rolls back a run that was interrupted (killed, power lost) while it wrote.

The next command that writes does this by itself; `recover` does nothing else. A file that somebody edited since the
interruption is copied to a safe place first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.parser import DEFAULT_WAIT, seconds
from tooling.cli.report import Report

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.new.change import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be rolled back; write nothing, take no lock"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_WAIT,
        help="how long to wait for another process that changes this repository (default: %(default)g)",
    )


def run(invocation: Invocation) -> Report:
    """Roll back what is pending."""
    from tooling.cli.git import find_repository
    from tooling.kit.change.transaction import preview_recovery, transaction

    repository, dry_run = find_repository(invocation.arguments.repo), invocation.arguments.dry_run
    lines: list[str] = []
    if dry_run:
        lines = preview_recovery(repository)
    else:
        with transaction(repository, wait_seconds=invocation.arguments.wait, note=lines.append):
            pass  # entering it is what rolls back
    title = "would roll back:" if dry_run else "rolled back:"
    text = "\n".join([title, *(f"  {line}" for line in lines)]) if lines else "nothing to recover"
    return Report(command="recover", changing=False, dry_run=dry_run, text=text, data={"recovered": lines})
