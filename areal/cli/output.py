"""Hold what a command returns, and print it: text for people, or one JSON object with `--json`."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReport:
    """Outcome of a command. All but `text` is part of the JSON object, whose shape the harness's programs share."""

    text: str
    """For people; printed to stdout without `--json`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For programs: further fields of the JSON object."""
    exit_code: int = 0
    next_steps: tuple[str, ...] = ()
    """What to do now; printed below the text."""
    warnings: tuple[str, ...] = ()
    """Printed to stderr."""
    silent: bool = False
    """Print nothing, not even with `--json`: another process of the same run says it all."""


def print_report(command: str, report: CommandReport, stream: IO[str], *, as_json: bool) -> None:
    """Write the outcome to `stream`."""
    if report.silent:
        return
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        head = {"ok": report.exit_code == 0, "command": command, "exit_code": report.exit_code}
        _print_json({**head, "next": report.next_steps, "warnings": report.warnings, **report.data}, stream)
        return
    if report.text:
        print(_encodable(report.text, stream), file=stream)
    for step in report.next_steps:
        print(_encodable(f"\n{step}", stream), file=stream)


def print_error(command: str, error: BaseException, exit_code: int, stream: IO[str], *, as_json: bool) -> None:
    """Report an error: `error: ...` and, where the message does not say it, `fix: ...` on stderr; with `as_json` a JSON
    object on `stream` as well.
    """
    from areal.api.errors import ArealError, ConfigError

    message = str(error) or type(error).__name__
    print(_encodable(f"error: {message}", sys.stderr), file=sys.stderr)
    said = isinstance(error, ConfigError) and bool(error.problems)  # each problem with its own fix
    if isinstance(error, ArealError) and error.fix and error.fix not in message and not said:
        print(_encodable(f"fix: {error.fix}", sys.stderr), file=sys.stderr)
    if as_json:
        document: dict[str, Any] = {
            "ok": False,
            "command": command,
            "exit_code": exit_code,
            "error": message,
            "code": "interrupted" if isinstance(error, KeyboardInterrupt) else "internal",
            "where": "",
            "fix": "",
            "next": (),
            "warnings": (),
        }
        if isinstance(error, ArealError):
            document |= {"code": error.code, "where": error.where, "fix": error.fix}
            if error.problems:
                document["problems"] = error.problems
        _print_json(document, stream)


@contextlib.contextmanager
def reserved_stdout() -> Iterator[IO[str]]:
    """Yield the real stdout and send everything else that writes to stdout, child processes included, to stderr."""
    real = sys.stdout
    if real is None:  # closed by the caller
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(sys.stderr):
            yield nowhere
        return
    if real is not sys.__stdout__:
        # Replaced by a caller (a test, a notebook): there is no descriptor to move.
        with contextlib.redirect_stdout(sys.stderr):
            yield real
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield stream
        finally:
            stream.flush()
            os.dup2(stream.fileno(), 1)


def discard(stream: IO[str]) -> None:
    """Let what is still buffered for a reader that has gone disappear, instead of failing again when Python exits."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing is left to be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def format_summary(summary: Mapping[str, Any]) -> str:
    """Aligned `key  value` lines; nested mappings are indented."""
    return "\n".join(_lines(summary, ""))


def _lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    width = max((len(str(key)) for key in mapping), default=0)
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield f"{indent}{key}"
            yield from _lines(value, f"{indent}  ")
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield f"{indent}{key:<{width}}  {shown}"


def _print_json(value: Mapping[str, Any], stream: IO[str]) -> None:
    import json

    strict = _strict(value)
    text = json.dumps(strict, ensure_ascii=False, allow_nan=False, default=str)
    if _encodable(text, stream) != text:  # names of files that are no UTF-8, or a terminal that is not
        text = json.dumps(strict, allow_nan=False, default=str)
    print(text, file=stream)


def _encodable(text: str, stream: IO[str]) -> str:
    """Return the text with escapes for what the stream cannot write."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _strict(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinities) by null."""
    if isinstance(value, dict):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
