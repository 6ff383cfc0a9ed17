"""Entry point of `areal-harness`: runs a command, turns errors into messages and exit codes."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Final, TextIO

from tooling.harness.cli.arguments import PROGRAM, parse, parser
from tooling.kit.errors import ToolError, WriteError
from tooling.kit.output import Report, discard, reserved_stdout, say, write_report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


_MODULES: Final = {
    "check": "tooling.harness.cli.check",
    "doctor": "tooling.harness.cli.doctor",
    "eval": "tooling.harness.cli.evaluation",
    "list": "tooling.harness.cli.listing",
    "sync": "tooling.harness.cli.sync",
}


class _InterruptedError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"


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
    if "--json" in words:
        with reserved_stdout() as stream:
            return _report(words, stream, as_json=True)
    return _report(words, sys.stdout, as_json=False)


def _report(words: list[str], stream: TextIO, *, as_json: bool) -> int:
    report = _attempt(words)
    try:
        write_report(report, stream, as_json=as_json)
        stream.flush()
    except BrokenPipeError:
        discard(stream)
    return report.status


def _attempt(words: list[str]) -> Report:
    try:
        return _run(parse(words))
    except ToolError as error:
        data = dict(getattr(error, "details", {}) or {})
        return Report(command=PROGRAM, problem=error, changing=False, data=data)
    except KeyboardInterrupt:
        return Report(command=PROGRAM, problem=_InterruptedError("interrupted; nothing was written"), changing=False)
    except OSError as error:
        refused = WriteError(error.strerror or str(error), where=str(error.filename or ""))
        return Report(command=PROGRAM, problem=refused, changing=False)
    except Exception as error:  # noqa: BLE001 - the outermost frame: a bug must not look like a finding
        say(traceback.format_exc())
        problem = ToolError(f"{type(error).__name__}: {error}", fix=f"this is a bug of {PROGRAM}; please report it")
        return Report(command=PROGRAM, problem=problem, changing=False)


def _run(arguments: argparse.Namespace) -> Report:
    from importlib import import_module

    # Only the command that is asked for is loaded.
    command: Callable[[argparse.Namespace], Report] = import_module(_MODULES[arguments.command]).run
    return command(arguments)
