"""Hold what a command returns, and print it: text for people, or one JSON object with `--json`."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Report(NamedTuple):
    """Outcome of a command that did not raise."""

    text: str
    """For people; printed to stdout without `--json`."""
    data: Mapping[str, Any] = MappingProxyType({})
    """For programs; printed to stdout with `--json`, together with {"ok": ..., "command": ...}."""
    exit_code: int = 0
    next_step: str = ""
    """What to do now, for people; printed below the text."""
    silent: bool = False
    """Print nothing, not even with `--json`: another process of the same run says it all."""


def print_report(command: str, report: Report, stream: IO[str], *, as_json: bool) -> None:
    """Write the outcome to `stream`."""
    if report.silent:
        return
    if as_json:
        _print_json({"ok": report.exit_code == 0, "command": command, **report.data}, stream)
        return
    if report.text:
        print(report.text, file=stream)
    if report.next_step:
        print(f"\n{report.next_step}", file=stream)


def print_error(error: BaseException, exit_code: int, stream: IO[str], *, as_json: bool) -> None:
    """Report an error: `error: ...` on stderr, or a JSON object on `stream` as well."""
    message = str(error) or type(error).__name__
    print(f"error: {message}", file=sys.stderr)
    if as_json:
        content = {"type": type(error).__name__, "message": message, "exit_code": exit_code}
        _print_json({"ok": False, "error": content}, stream)


@contextlib.contextmanager
def reserved_stdout() -> Iterator[IO[str]]:
    """Yield the real stdout and send everything else that writes to stdout, child processes included, to stderr."""
    real = sys.stdout
    if real is None or real is not sys.__stdout__:
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

    print(json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, default=str), file=stream)


def _strict(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinities) by null."""
    if isinstance(value, dict):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
