"""Lists what can be generated: kinds of the project, built-in ones, and those of installed packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report, aligned
from tooling.new.command_line import find_root

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.new.change import Invocation


def configure(parser: Parser) -> None:
    """Add nothing: the command has no arguments of its own."""


def run(invocation: Invocation) -> Report:
    """List the kinds."""
    from tooling.kit.template.kinds import discover

    kinds = discover(find_root(invocation.repo), packages=True)
    rows = [(kind.name, kind.summary, f"({kind.origin})") for kind in kinds.values()]
    data = [{"name": kind.name, "summary": kind.summary, "origin": kind.origin} for kind in kinds.values()]
    return Report(command="kinds", changing=False, text=aligned(rows) or "no kinds", data={"kinds": data})
