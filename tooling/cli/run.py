"""Runs a command line: writes its report, and turns errors into reports and exit codes.

    def main(argv=None):
        words = list(sys.argv[1:] if argv is None else argv)
        return run_cli("areal-tool", words, lambda stream: run(parse(words)))

A program with a table of commands gets this from `tooling.cli.parser.CommandProgram.main`.
"""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from tooling.cli.errors import InterruptedRunError, ToolError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tooling.cli.report import Report

READER_GONE = 141


def run_cli(
    program: str,
    words: Sequence[str],
    run: Callable[[TextIO], Report | None],
    *,
    command: str = "",
    machine: Collection[str] = ("--json",),
    interrupted: tuple[str, str] = ("interrupted; nothing was written", ""),
) -> int:
    """Run a command, write its report, and return the exit code: 141 where nobody reads any more.

    run: may raise ToolError; may write to the stream itself and return None, or a report that is then written as well.
    command: what the report of an error is about; "" for the program. machine: options with which stdout is for a
    program, so that whatever else is printed goes to stderr. interrupted: message and fix after Ctrl-C. The attributes
    `details`, `checks` and `text` of an error become parts of its report; with `--verbose` its traceback is shown.
    """
    from tooling.cli.report import discard, say, write_report

    options = set(before_dashes(words))
    with _stdout(reserve=not options.isdisjoint(machine)) as stream:
        try:
            report = _safely(command or program, run, stream, interrupted, verbose=not options.isdisjoint(_VERBOSE))
            if report is not None:
                write_report(report, stream, as_json="--json" in options)
            stream.flush()
        except BrokenPipeError:  # `areal-new list | head`: the reader has what it wants
            discard(stream)
            return READER_GONE
        except KeyboardInterrupt:
            say("interrupted while the report was printed")
            return InterruptedRunError.exit_code
        except OSError as error:
            discard(stream)
            say(f"error: the report could not be printed: {error.strerror}; what it is about is done")
            return WriteError.exit_code
        return report.status if report is not None else 0


_VERBOSE = ("-v", "--verbose")


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """Return the words up to "--", after which nothing is an option."""
    return words[: words.index("--")] if "--" in words else words


@contextmanager
def _stdout(*, reserve: bool) -> Iterator[TextIO]:
    from tooling.cli.report import reserved_stdout

    if sys.stdout is None:  # closed by the caller
        yield io.StringIO()
    elif reserve:
        with reserved_stdout() as stream:
            yield stream
    else:
        yield sys.stdout


def _safely(
    command: str,
    run: Callable[[TextIO], Report | None],
    stream: TextIO,
    interrupted: tuple[str, str],
    *,
    verbose: bool,
) -> Report | None:
    """Run the command; return a report of what it raised."""
    from tooling.cli.report import Report

    try:
        return run(stream)
    except BrokenPipeError:
        raise
    except ToolError as error:
        problem = error
        if verbose:
            _show_traceback()
    except KeyboardInterrupt:
        problem = InterruptedRunError(interrupted[0], fix=interrupted[1])
    except OSError as error:
        problem = WriteError(error.strerror or str(error), where=str(error.filename or ""))
    except Exception as error:  # noqa: BLE001 - the outermost frame: a bug must not look like a verdict
        _show_traceback()
        message = f"internal error: {type(error).__name__}: {error}"
        problem = ToolError(message, fix="this is a bug; report it with the traceback on stderr")
    return Report(
        command=command,
        problem=problem,
        changing=False,
        checks=problem.checks,
        text=problem.text,
        data=problem.details,
    )


def _show_traceback() -> None:
    import traceback

    from tooling.cli.report import say

    say(traceback.format_exc())
