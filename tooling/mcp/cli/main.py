"""Entry point of `areal-mcp`: serves, or prints and ends; turns errors into messages and exit codes."""

from __future__ import annotations

import signal
import sys
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tooling.kit.errors import ToolError, UsageError, WriteError
from tooling.mcp.cli.arguments import PROGRAM, parse, parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.kit.output import Report


class InterruptedRunError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        parser().print_help()
        return 0
    report = _attempt(words)
    if report is None:
        return 0
    from tooling.kit.output import discard, write_report

    try:
        write_report(report, sys.stdout, as_json="--json" in words)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    return report.status


def _attempt(words: list[str]) -> Report | None:
    """None: it was a server."""
    try:
        arguments = parse(words)
        return _run(arguments)
    except ToolError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed(InterruptedRunError("interrupted"))
    except OSError as error:
        return _failed(WriteError(error.strerror or str(error), where=str(error.filename or "")))
    except Exception as error:  # noqa: BLE001 - the outermost frame: a bug must not look like an answer
        traceback.print_exc(file=sys.stderr)
        problem = ToolError(f"{type(error).__name__}: {error}", fix=f"this is a bug of {PROGRAM}; please report it")
        return _failed(problem)


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
    from tooling.kit.repository import find_repository
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


def _failed(error: ToolError) -> Report:
    from tooling.kit.output import Report

    return Report(command=PROGRAM, problem=error, changing=False)
