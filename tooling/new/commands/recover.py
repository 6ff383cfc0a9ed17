"""Rolls back a run that was interrupted (killed, power lost) while it wrote.

The next command that writes does this by itself; `recover` does nothing else. A file that somebody edited since the
interruption is copied to a safe place first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.kit.output import Report
from tooling.new.cli.arguments import DEFAULT_WAIT, seconds

if TYPE_CHECKING:
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_WAIT,
        help="how long to wait for another process that changes this repository (default: %(default)g)",
    )


def run(invocation: Invocation) -> Report:
    """Roll back what is pending."""
    from tooling.kit.change.transaction import transaction

    rolled_back: list[str] = []
    with transaction(invocation.repository, wait_seconds=invocation.arguments.wait, note=rolled_back.append):
        pass  # entering it is what rolls back
    text = "\n".join(["rolled back:", *(f"  {line}" for line in rolled_back)]) if rolled_back else "nothing to recover"
    return Report(command="recover", changing=False, text=text, data={"recovered": rolled_back})
