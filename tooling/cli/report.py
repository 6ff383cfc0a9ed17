"""Holds what a command returns, and writes it to stdout: short lines for people, or one JSON object with `--json`.

    report = Report(command="reward", changes=plan.changes, checks=checks)
    with reserved_stdout() as stream:            # whatever else writes to stdout goes to stderr meanwhile
        write_report(report, stream, as_json=True)

Text that came from elsewhere (paths of a plan file, output of tests) never reaches a terminal with its control
characters. Independent of any command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.cli.diff import FileChange
    from tooling.cli.errors import ToolError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal or turn the direction of text, line feed and tab excepted; and halves of surrogate
pairs, which no stream can write."""


class CheckRow(Protocol):
    """What a report needs of a check or test that ran (`tooling.kit.kind.CheckResult`)."""

    @property
    def name(self) -> str:
        """Of the check."""

    @property
    def ok(self) -> bool:
        """Whether it passed."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def detail(self) -> str:
        """What failed; "" when it passed."""


@dataclass(frozen=True, slots=True)
class Registration:
    """An entry of a registry, or a line of a document, that was made or removed."""

    file: str
    table: str
    """Name of the table; of a document, its section."""
    key: str
    value: str
    line: int
    """1-based."""
    action: str = "add"
    """"add" or "remove"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcome of a command. Everything but `first`, `text` and `show_diff` is part of the JSON object."""

    command: str
    problem: ToolError | None = None
    """Why the command did not fully succeed although there is something to report, e.g. edited files were kept."""
    exit_code: int | None = None
    """None: that of `problem`, or 0."""
    dry_run: bool = False
    changes: tuple[FileChange, ...] = ()
    show_diff: bool = False
    registered: tuple[Registration, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    next_steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changing: bool = True
    """Whether the command is one that changes files, so that an empty plan is worth a line."""
    first: tuple[str, ...] = ()
    """For people, before the plan: what changes how all that follows is to be read. `data` has it for programs."""
    text: str = ""
    """For people, after the plan: what the fields above cannot say."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For programs: further fields of the JSON object."""

    @property
    def status(self) -> int:
        """The exit code of the process."""
        if self.exit_code is not None:
            return self.exit_code
        return self.problem.exit_code if self.problem else 0


def document(report: Report) -> dict[str, Any]:
    """Return the JSON object of a report; `tooling/new/schemas/output.json` is its schema."""
    head: dict[str, Any] = {"ok": report.status == 0, "command": report.command, "exit_code": report.status}
    if report.problem is not None:
        problem = report.problem
        head |= {"error": problem.message, "code": problem.code, "where": problem.where, "fix": problem.fix}
    plan = [{"path": change.path, "action": change.action, "reason": change.reason} for change in report.changes]
    if report.show_diff:
        from tooling.cli.diff import unified_diff

        for row, change in zip(plan, report.changes, strict=True):
            row["diff"] = unified_diff(change)
    return head | {
        "dry_run": report.dry_run,
        "plan": plan,
        "registered": [asdict(entry) for entry in report.registered],
        "checks": [
            {"name": check.name, "ok": check.ok, "seconds": check.seconds, "detail": check.detail}
            for check in report.checks
        ],
        "next": list(report.next_steps),
        "warnings": list(report.warnings),
        **report.data,
    }


def write_report(report: Report, stream: TextIO, *, as_json: bool) -> None:
    """Write the outcome to `stream`; warnings and the problem of a report for people go to stderr."""
    if as_json:
        stream.write(json.dumps(document(report), default=str) + "\n")
        return
    for part in _parts(report, stream):
        stream.write(part)
    stream.flush()
    for warning in report.warnings:
        say(f"warning: {warning}")
    if report.problem is not None:
        say(f"error: {report.problem}")


def say(text: str) -> None:
    """Write one message for people to stderr. A closed stderr is not an error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Return the text with its control characters spelt out: "\\x1b"."""

    def spelt_out(match: re.Match[str]) -> str:
        number = ord(match[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _CONTROL.sub(spelt_out, text)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Return columns of equal width, one line per row; "" without rows."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on a terminal that something long is going on; the line disappears when it is over."""
    shown = sys.stderr.isatty()
    if shown:
        sys.stderr.write(f"{printable(what)} ...")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yield the real stdout; whatever else writes to stdout meanwhile, child processes included, reaches stderr."""
    replaced, real = sys.stdout, sys.__stdout__
    if real is None or replaced is not real:  # by the caller, a test for example: there is no descriptor to move
        with contextlib.redirect_stdout(sys.stderr):
            yield replaced
        return
    real.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield stream
            stream.flush()
        finally:
            os.dup2(stream.fileno(), 1)


def discard(stream: TextIO) -> None:
    """Drop what is still buffered for a reader that has gone, so that Python does not fail again when it exits."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing is left to be written at exit
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)


def _parts(report: Report, stream: TextIO) -> Iterator[str]:
    """Yield what people read, in pieces that end with a line feed."""
    marks = {True: "✓", False: "✗"}
    try:
        "✓✗".encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        marks = {True: "ok    ", False: "FAILED"}
    yield from (f"{printable(line)}\n" for line in report.first)
    rows: list[tuple[str, str, str]] = [(change.action, change.path, change.reason) for change in report.changes]
    rows += [
        ("register" if entry.action == "add" else "remove", f"{entry.file}:{entry.line}", f"{entry.table} {entry.key}")
        for entry in report.registered
    ]
    width = max((len(path) for _, path, _ in rows), default=0)
    for action, path, reason in rows:
        yield printable(f"{action:<8}  {path:<{width}}  {reason}".rstrip()) + "\n"
    if report.changing and not report.changes and report.problem is None:
        yield "nothing to do\n"
    for check in report.checks:
        yield f"{marks[check.ok]} {check.name:<14} {check.seconds:6.2f} s\n"
        if not check.ok and check.detail:
            yield "".join(f"    {printable(line)}\n" for line in check.detail.splitlines())
    if report.show_diff:
        yield from (_shown_diff(change, stream) for change in report.changes)
    if report.dry_run:
        yield "dry run: nothing was written\n"
    if report.text:
        yield printable(report.text.rstrip("\n")) + "\n"
    if report.next_steps:
        yield "next:\n" + "".join(f"  {printable(step)}\n" for step in report.next_steps)


def _shown_diff(change: FileChange, stream: TextIO) -> str:
    """Return the diff of one file: exact where a program reads it, coloured and harmless on a terminal."""
    from tooling.cli.diff import unified_diff

    text = unified_diff(change)
    if not stream.isatty() or "NO_COLOR" in os.environ:
        return text if not stream.isatty() else printable(text)
    heads = {"+++": "1", "---": "1", "@@": "36", "+": "32", "-": "31", "diff": "1"}
    lines = []
    for line in printable(text).removesuffix("\n").split("\n"):
        code = next((code for head, code in heads.items() if line.startswith(head)), None)
        lines.append(f"\x1b[{code}m{line}\x1b[0m\n" if code else f"{line}\n")
    return "".join(lines)
