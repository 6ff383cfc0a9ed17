"""Reviews a change without writing or running anything: the program `areal-review`."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final, TextIO

from tooling.cli.parser import split
from tooling.cli.run import run_cli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report

PROGRAM: Final = "areal-review"
_MACHINE: Final = ("--json", "--sarif", "--rdjson", "--github", "--markdown", "--as-baseline")
"""Options with which stdout is for a program."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.disable()  # one process, few cycles, very many small objects
    return run_cli(PROGRAM, words, lambda stream: _run(words, stream), machine=_MACHINE)


def _run(words: Sequence[str], stream: TextIO) -> Report:
    from tooling.review.commands import review

    if split(words).help:
        from tooling.cli.report import Report

        page = review.make_parser().format_help()
        return Report(command="help", changing=False, text=page, data={"help": page})
    return review.run(review.parse(words), stream)


if __name__ == "__main__":
    raise SystemExit(main())
