"""Entry point of `areal-new`: finds the command or kind, runs it, turns errors into messages and exit codes.

Start-up is light: this page and the list of kinds need nothing but the standard library and a look at folders; what a
command needs is imported when it runs (tests/tooling/new/test_start_up.py keeps the list of what may be loaded).
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

from tooling.cli.errors import ToolError
from tooling.new.cli.arguments import PROGRAM, before_dashes, no_command, split
from tooling.new.cli.command_table import COMMANDS
from tooling.new.cli.lookup import find_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.cli.report import Report
    from tooling.kit.template.kinds import KindSource
    from tooling.new.cli.arguments import Call

EXIT_CODES: Final[dict[int, str]] = {
    0: "done, or nothing to do",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments, answers, settings or name",
    3: "conflict: exists already, or changed since the plan was made",
    4: "a generated file was edited since, and was kept",
    5: "a merge left conflict markers",
    6: "a registry was not recognised; the message holds the line to paste",
    7: "generated code failed its checks or tests",
    8: "what was analysed needs a feature that cannot be generated; the report names it",
    75: "another process is changing the repository",
    130: "interrupted (Ctrl-C); everything was rolled back",
}
_DESCRIPTION: Final = """\
Generates a unit (a reward, a dataset, a workflow, ...) with its test, registers it, and proves it; explains, updates,
renames and undoes it later. A run changes everything it says, or nothing."""


class _InterruptedError(ToolError):
    """Ctrl-C."""

    exit_code: ClassVar[int] = 130
    code: ClassVar[str] = "interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. `argv` defaults to the arguments of the process."""
    if argv is None:
        gc.disable()  # the process lives for a second and makes few cycles; imports alone would trigger dozens of scans
    words = list(sys.argv[1:] if argv is None else argv)
    call = split(words)
    as_json = "--json" in before_dashes(words)
    if call.help and not as_json and call.word is None:
        return _print_top_help(call)  # without loading what reports need
    from tooling.cli.report import reserved_stdout

    if as_json:
        with reserved_stdout() as stream:
            return _run(call, stream, as_json=True)
    return _run(call, sys.stdout, as_json=False)


def top_help(kinds: Mapping[str, KindSource]) -> str:
    """The page of `areal-new --help`."""
    summaries = {name: source.summary for name, source in kinds.items()}
    parts = [
        f"usage: {PROGRAM} KIND NAME [options]\n       {PROGRAM} COMMAND [arguments]",
        _DESCRIPTION,
        _listed("kinds", summaries),
        _listed("commands", {name: command.summary for name, command in COMMANDS.items()}),
        _listed("options", {"-h, --help": "show this page, or that of a kind or command", "-V, --version": "version"}),
        f"`{PROGRAM} KIND --help` lists the questions of a kind as options.",
        _listed("exit codes", {str(code): meaning for code, meaning in EXIT_CODES.items()}),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(title: str, rows: Mapping[str, str]) -> str:
    width = max((len(name) for name in rows), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows.items()] or ["  (none)"]
    return "\n".join([f"{title}:", *lines])


def _print_top_help(call: Call) -> int:
    try:
        page, status = top_help(find_kinds(call.repo)), 0
    except ToolError as error:  # e.g. a damaged pyproject.toml: the rest of the page still helps
        sys.stderr.write(f"error: {error}\n")
        page, status = top_help({}), error.exit_code
    try:
        sys.stdout.write(page)
        sys.stdout.flush()
    except BrokenPipeError:
        from tooling.cli.report import discard

        discard(sys.stdout)
    return status


def _run(call: Call, stream: TextIO, *, as_json: bool) -> int:
    """Run a call and write its report; errors become reports too."""
    from tooling.cli.report import discard, write_report

    report = _attempt(call, as_json=as_json)
    try:
        write_report(report, stream, as_json=as_json)
        stream.flush()
    except BrokenPipeError:
        discard(stream)  # `areal-new list | head`: the reader has what it wants
    return report.status


def _attempt(call: Call, *, as_json: bool) -> Report:
    from tooling.cli.report import Report

    command = call.word or ("version" if call.version else "help" if call.help else "")
    try:
        return _answer(call, as_json=as_json)
    except ToolError as error:
        if {"-v", "--verbose"} & set(call.rest):
            _show_traceback()
        return Report(
            command=command,
            problem=error,
            changing=False,
            checks=tuple(getattr(error, "checks", ())),
            text=getattr(error, "text", ""),
            data=getattr(error, "details", {}),
        )
    except KeyboardInterrupt:
        return Report(command=command, problem=_InterruptedError("interrupted", fix="nothing was left half done"))
    except Exception as error:  # noqa: BLE001 - the outermost frame: report with traceback instead of dying silently
        _show_traceback()
        problem = ToolError(f"{type(error).__name__}: {error}", fix=f"this is a bug in {PROGRAM}; please report it")
        return Report(command=command, problem=problem)


def _answer(call: Call, *, as_json: bool) -> Report:
    from tooling.cli.report import Report
    from tooling.new.cli.parsing import call_parser, invoke

    if call.version:
        from tooling.cli.toml import version

        number = version()
        return Report(command="version", changing=False, text=f"{PROGRAM} {number}", data={"version": number})
    if call.help:
        page = top_help(find_kinds(call.repo)) if call.word is None else call_parser(call).format_help()
        return Report(command="help", changing=False, text=page, data={"help": page})
    if call.word is None:
        raise no_command(call)
    return invoke(call, as_json=as_json)


def _show_traceback() -> None:
    import traceback

    traceback.print_exc(file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
