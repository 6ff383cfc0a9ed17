"""Entry point of `areal-mcp`: serves, or prints and ends."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.mcp.cli.arguments import PROGRAM, parse, parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        parser().print_help()
        return 0
    from tooling.cli.run import run_cli

    # A server speaks through standard output by itself, and hands back no report.
    return run_cli(PROGRAM, words, lambda _: _run(parse(words)), machine=(), interrupted=("interrupted", ""))


def _run(arguments: argparse.Namespace) -> Report | None:
    if arguments.client:
        from tooling.mcp.cli.config import run as configure

        return configure(arguments)
    if arguments.list:
        from tooling.mcp.cli.listing import run as listed

        return listed(arguments)
    if not arguments.self_test and (sys.stdin is None or sys.stdin.isatty()):
        fix = f"`{PROGRAM} config CLIENT` prints how an agent program starts it; see --help"
        raise UsageError("speaks with a program, not with a person", where="standard input", fix=fix)
    if find_spec("mcp") is None:
        raise UsageError("the SDK of the protocol is not installed", where="mcp", fix="pip install 'areal[mcp]'")
    if arguments.self_test:
        from tooling.mcp.cli.self_test import run as tested

        return tested(arguments)
    _serve(arguments)
    return None


def _serve(arguments: argparse.Namespace) -> None:
    from tooling.cli.git import find_repository
    from tooling.mcp.serving.server import Settings, serve

    root = find_repository(arguments.repo).root.resolve()
    # The thread that reads standard input cannot be interrupted, so Ctrl-C ends the process as such; commands that run
    # lose their lifeline, roll back and end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(
        Settings(
            root=root,
            writes=arguments.allow_writes,
            only=arguments.only,
            timeout=arguments.timeout,
            most=arguments.max_output,
        )
    )
