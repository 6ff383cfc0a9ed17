"""`areal-commit`: finds the command."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from tooling.cli.run import run_cli
from tooling.commit.cli.arguments import PROGRAM, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # one short process
    return run_cli(PROGRAM, words, lambda _: _run(words))


def _run(words: Sequence[str]) -> Report:
    """Each command is loaded only when it is asked for: `check` runs at every commit."""
    import importlib

    arguments = parse(words)
    report: Report = importlib.import_module(f"tooling.commit.cli.{arguments.command}").run(arguments)
    return report
