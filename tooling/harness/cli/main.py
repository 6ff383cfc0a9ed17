"""`areal-harness`: finds the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError
from tooling.cli.run import run_cli
from tooling.harness.cli.arguments import PROGRAM, parse, parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report


_MODULES: Final = {
    "check": "tooling.harness.cli.check",
    "doctor": "tooling.harness.cli.doctor",
    "eval": "tooling.harness.cli.evaluation",
    "list": "tooling.harness.cli.listing",
    "sync": "tooling.harness.cli.sync",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        try:
            parser().parse_args(words)
        except SystemExit as ending:  # argparse ends the process after its page
            return int(ending.code or 0)
        except ToolError:
            parser().print_help()
            return 0
    return run_cli(PROGRAM, words, lambda _: _run(words))


def _run(words: Sequence[str]) -> Report:
    """Only the command that is asked for is loaded."""
    from importlib import import_module

    arguments = parse(list(words))
    report: Report = import_module(_MODULES[arguments.command]).run(arguments)
    return report
