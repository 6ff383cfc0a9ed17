"""`areal-docs`: finds the command, writes its report, turns errors into exits."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from tooling.documentation.cli.arguments import PROGRAM, parse
from tooling.kit.errors import ToolError, WriteError
from tooling.kit.output import Report, discard, reserved_stdout, say, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODULES: Final = {
    "zh-check": "tooling.documentation.cli.check",
    "zh-mark": "tooling.documentation.cli.mark",
    "zh-plan": "tooling.documentation.cli.plan",
}


class InterruptedRunError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    with reserved_stdout() if as_json else nullcontext(sys.stdout) as stream:
        try:
            report = _safely(words)
            write_report(report, stream, as_json=as_json)
            stream.flush()
        except BrokenPipeError:
            discard(stream)
            return 141
        except SystemExit as ending:  # --help
            return int(ending.code or 0)
        return report.status


def _safely(words: Sequence[str]) -> Report:
    try:
        return _run(words)
    except BrokenPipeError:
        raise
    except ToolError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed(InterruptedRunError("interrupted; nothing was written"))
    except OSError as error:
        return _failed(WriteError(error.strerror or str(error), where=str(error.filename or "")))
    except Exception:  # noqa: BLE001 - the outermost frame: a bug must not look like a verdict
        import traceback

        say(traceback.format_exc())
        return _failed(ToolError("internal error", fix="report it with the text above"))


def _run(words: Sequence[str]) -> Report:
    """Only the command that is asked for is loaded."""
    import importlib

    arguments = parse(words)
    report = importlib.import_module(_MODULES[arguments.command]).run(arguments)
    assert isinstance(report, Report)
    return report


def _failed(error: ToolError) -> Report:
    return Report(command=PROGRAM, problem=error, changing=False, data=dict(getattr(error, "details", None) or {}))
