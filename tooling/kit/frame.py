"""The outermost frame of a command line: runs it, writes its report, turns errors into reports and exit codes.

    def main(argv=None):
        words = list(sys.argv[1:] if argv is None else argv)
        return framed("areal-commit", words, lambda stream: run(parse(words)))

Parses nothing and knows no command. `areal-new` has a frame of its own: its page of help loads nothing of this.
"""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from tooling.kit.errors import ToolError, WriteError
from tooling.kit.output import Report, discard, reserved_stdout, say, write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


class InterruptedRunError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"


def framed(
    program: str,
    words: Collection[str],
    run: Callable[[TextIO], Report | None],
    *,
    machine: Collection[str] = ("--json",),
    interrupted: tuple[str, str] = ("interrupted; nothing was written", ""),
) -> int:
    """Run a command and write its report; returns the exit code: 141 where nobody reads any more.

    run: may raise ToolError, or SystemExit for a page of help; may write to the stream itself and return None, or a
    report that is then written as well. machine: options with which stdout is for a program, so that whatever else is
    printed goes to stderr. interrupted: message and fix after Ctrl-C. The `details` of an error become fields of the
    JSON object.
    """
    with _stdout(reserve=any(option in words for option in machine)) as stream:
        try:
            report = _safely(program, run, stream, interrupted)
            if report is not None:
                write_report(report, stream, as_json="--json" in words)
            stream.flush()
        except SystemExit as ending:  # argparse ends the process after its page
            return int(ending.code or 0)
        except BrokenPipeError:
            discard(stream)
            return 141
        except KeyboardInterrupt:
            say("interrupted while the report was printed")
            return InterruptedRunError.exit_code
        except OSError as error:
            discard(stream)
            say(f"error: the report could not be printed: {error.strerror}; what it is about is done")
            return WriteError.exit_code
        return report.status if report is not None else 0


@contextmanager
def _stdout(*, reserve: bool) -> Iterator[TextIO]:
    if sys.stdout is None:  # closed by the caller
        yield io.StringIO()
    elif reserve:
        with reserved_stdout() as stream:
            yield stream
    else:
        yield sys.stdout


def _safely(
    program: str, run: Callable[[TextIO], Report | None], stream: TextIO, interrupted: tuple[str, str]
) -> Report | None:
    try:
        return run(stream)
    except BrokenPipeError:
        raise
    except ToolError as error:
        problem = error
    except KeyboardInterrupt:
        problem = InterruptedRunError(interrupted[0], fix=interrupted[1])
    except OSError as error:
        problem = WriteError(error.strerror or str(error), where=str(error.filename or ""))
    except Exception:  # noqa: BLE001 - the outermost frame: a bug must not look like a verdict
        import traceback

        say(traceback.format_exc())
        problem = ToolError("internal error", fix="report it with the text above")
    return Report(command=program, problem=problem, changing=False, data=dict(getattr(problem, "details", None) or {}))
