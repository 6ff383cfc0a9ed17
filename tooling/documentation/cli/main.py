"""`areal-docs`: finds the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tooling.cli.run import run_cli
from tooling.documentation.cli.arguments import PROGRAM, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report

_MODULES: Final = {
    "zh-check": "tooling.documentation.cli.check",
    "zh-mark": "tooling.documentation.cli.mark",
    "zh-plan": "tooling.documentation.cli.plan",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(PROGRAM, words, lambda _: _run(words))


def _run(words: Sequence[str]) -> Report:
    """Only the command that is asked for is loaded."""
    import importlib

    arguments = parse(words)
    report: Report = importlib.import_module(_MODULES[arguments.command]).run(arguments)
    return report
