"""`areal-pr`: finds the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tooling.cli.run import run_cli
from tooling.pull_request.cli.arguments import PROGRAM, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    interrupted = "interrupted", "run it again: it goes on, or takes back what was begun"
    return run_cli(PROGRAM, words, lambda _: _run(words), interrupted=interrupted)


def _run(words: Sequence[str]) -> Report:
    """Each command is loaded only when it is asked for."""
    import importlib

    arguments = parse(words)
    report: Report = importlib.import_module(f"tooling.pull_request.cli.{arguments.command}").run(arguments)
    return report
