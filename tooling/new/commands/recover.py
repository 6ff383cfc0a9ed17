"""Rolls back a run that was interrupted (killed, power lost) while it wrote.

The next command that writes does this by itself; `recover` does nothing else. A file that somebody edited since the
interruption is copied to a safe place first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.new.cli.arguments import DEFAULT_WAIT, seconds

if TYPE_CHECKING:
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation


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
    from tooling.kit.change.transaction import preview_recovery, transaction

    if invocation.arguments.dry_run:
        lines = preview_recovery(invocation.repository)
        return _report("would roll back:", lines, dry_run=True)
    rolled_back: list[str] = []
    with transaction(invocation.repository, wait_seconds=invocation.arguments.wait, note=rolled_back.append):
        pass  # entering it is what rolls back
    return _report("rolled back:", rolled_back, dry_run=False)


def _report(title: str, lines: list[str], *, dry_run: bool) -> Report:
    text = "\n".join([title, *(f"  {line}" for line in lines)]) if lines else "nothing to recover"
    return Report(command="recover", changing=False, dry_run=dry_run, text=text, data={"recovered": lines})
