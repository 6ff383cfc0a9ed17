"""`areal-pr`: finds the command, writes its report, turns errors into exits."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, TextIO

from tooling.kit.errors import ToolError, WriteError
from tooling.kit.output import Report, discard, reserved_stdout, say, write_report
from tooling.pull_request.cli.arguments import PROGRAM, parse
from tooling.pull_request.history.replay import RebaseConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


class InterruptedRunError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    with _stdout(as_json) as stream:
        try:
            report = _safely(words)
            write_report(report, stream, as_json=as_json)
            stream.flush()
        except BrokenPipeError:
            discard(stream)
            return 141
        except SystemExit:  # --help
            return 0
        except KeyboardInterrupt:
            say("interrupted while the report was printed")
            return InterruptedRunError.exit_code
        return report.status


def _stdout(reserve: bool) -> AbstractContextManager[TextIO]:
    return reserved_stdout() if reserve else nullcontext(sys.stdout)


def _safely(words: Sequence[str]) -> Report:
    try:
        return _run(words)
    except BrokenPipeError:
        raise
    except ToolError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed(InterruptedRunError("interrupted", fix="run it again: it goes on, or takes back what was begun"))
    except OSError as error:
        return _failed(WriteError(error.strerror or str(error), where=str(error.filename or "")))
    except Exception:  # noqa: BLE001 - the outermost frame: a bug must not look like a verdict
        import traceback

        say(traceback.format_exc())
        return _failed(ToolError("internal error", fix="report it with the text above"))


def _run(words: Sequence[str]) -> Report:
    """Each command is loaded only when it is asked for."""
    import importlib

    arguments = parse(words)
    command = importlib.import_module(f"tooling.pull_request.cli.{arguments.command}")
    report = command.run(arguments)
    assert isinstance(report, Report)
    return report


def _failed(error: ToolError) -> Report:
    data = {"files": list(error.files)} if isinstance(error, RebaseConflictError) else {}
    return Report(command=PROGRAM, problem=error, changing=False, data=data)
