"""Runs the command of a tool, and turns what it printed into the answer of a call, shortened to what a client takes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ToolError, WriteError
from tooling.cli.report import printable
from tooling.mcp.processes import Queue, run
from tooling.mcp.tools.call import make_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from tooling.mcp.processes import Finished
    from tooling.mcp.tools.records import Tool


_NAMED: Final = 20
"""Most cuts that are named; the last entry counts the others."""
_PATH: Final = 100
_TEXT: Final = 4_000
"""Characters of the text."""
_ROWS: Final = 8
"""Of a list."""
_ROW: Final = 240
_TIMED_OUT: Final = 124
_SKIPPED: Final = frozenset({"ok", "command", "exit_code", "error", "code", "where", "fix", "dry_run"})


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of one call."""

    document: dict[str, Any]
    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls tools for one repository."""

    root: Path
    timeout: float | None
    """Seconds for every command; None: each has its own."""
    most: int
    """Characters of an answer."""
    queue: Queue = field(default_factory=Queue)

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], on_line: Callable[[str], Awaitable[None]]
    ) -> ToolAnswer:
        """Run the command of a tool. What is wrong with the arguments, or goes wrong, is an answer too."""
        seconds = tool.seconds if self.timeout is None else self.timeout
        try:
            order = make_call(tool, arguments, self.root)
            async with self.queue.writing() if tool.writes else self.queue.reading():
                finished = await run(order, seconds=seconds, on_line=on_line)
        except ToolError as error:
            return refusal_of(tool, error)
        except OSError as error:
            problem = WriteError(f"the command could not be started: {error.strerror}", where=tool.program)
            return refusal_of(tool, problem)
        return answer_of(tool, finished, most=self.most, seconds=seconds)


def answer_of(tool: Tool, finished: Finished, *, most: int, seconds: float) -> ToolAnswer:
    """Return the answer of a command that has ended. most: characters of the object as JSON."""
    whole: Any = None
    if not finished.problem:
        with contextlib.suppress(ValueError):  # `_failure` says what was printed instead
            whole = json.loads(finished.output)
    if not isinstance(whole, dict) or not isinstance(whole.get("exit_code"), int):
        whole = _failure(tool, finished, seconds)
    failed = whole["exit_code"] != 0 and whole["exit_code"] not in tool.verdicts
    document = shortened(whole, most)
    text = _text(tool, whole, finished.stderr if failed else "", cut=len(document.get("truncated", ())))
    return ToolAnswer(document, text, failed)


def refusal_of(tool: Tool, error: ToolError) -> ToolAnswer:
    """Return the answer of a call that was not carried through."""
    document = _envelope(tool.program, error.exit_code, error.code, error.message, error.where, error.fix)
    return ToolAnswer(document, _text(tool, document, "", cut=0), failed=True)


def shortened(document: dict[str, Any], most: int) -> dict[str, Any]:
    """Return the object itself when it fits; else a copy with `truncated`. Its top level keeps all keys."""
    if len(json.dumps(document)) <= most:
        return document
    limit = 1 << 15
    while True:
        cuts: list[dict[str, Any]] = []
        cut = {key: _cut(value, key, limit, cuts) for key, value in document.items()}
        named = cuts[:_NAMED]
        if len(cuts) > _NAMED:
            named.append({"path": "", "kept": 0, "of": len(cuts) - _NAMED})
        found = cut | {"truncated": named}
        if len(json.dumps(found)) <= most or limit <= 1:
            return found
        limit //= 2


def _cut(value: Any, path: str, limit: int, cuts: list[dict[str, Any]]) -> Any:
    """Shorten a value. An object keeps as many entries as a text characters, a list fewer: its entries are longer."""
    kept = max(1, limit // 16) if isinstance(value, list) else limit
    if isinstance(value, str | list | dict) and len(value) > kept:
        cuts.append({"path": path[:_PATH], "kept": kept, "of": len(value)})
    if isinstance(value, str) and len(value) > kept:
        return f"{value[:kept]}... [{len(value) - kept} more characters]"
    if isinstance(value, list):
        return [_cut(item, f"{path}[{number}]", limit, cuts) for number, item in enumerate(value[:kept])]
    if isinstance(value, dict):
        return {name: _cut(value[name], f"{path}.{name}", limit, cuts) for name in list(value)[:kept]}
    return value


def _failure(tool: Tool, finished: Finished, seconds: float) -> dict[str, Any]:
    """Say why there is no object."""
    program, status = tool.program, finished.status
    if finished.problem == "timeout":
        fix = "ask for less, or let the server be started with a larger --timeout"
        return _envelope(program, _TIMED_OUT, "timeout", f"ended after {seconds:g} s without an answer", tool.name, fix)
    if finished.problem == "output":
        return _envelope(program, 1, "output", "printed more than anybody could read", tool.name, "ask for less")
    said = finished.stderr.strip().splitlines()
    last = f": {said[-1]}" if said else ""
    if status < 0:
        fix = "call it again; when it happens again, run the command by hand"
        return _envelope(program, 128 - status, "killed", f"was ended by signal {-status}{last}", tool.name, fix)
    fix = f"run `{program} {' '.join(tool.words)}` by hand"
    return _envelope(program, status or 1, "no-answer", f"printed no JSON object{last}", tool.name, fix)


def _envelope(command: str, status: int, code: str, message: str, where: str, fix: str) -> dict[str, Any]:
    return {
        "ok": False,
        "command": command,
        "exit_code": status,
        "error": message,
        "code": code,
        "where": where,
        "fix": fix,
        "dry_run": False,
        "plan": [],
        "registered": [],
        "checks": [],
        "next": [],
        "warnings": [],
    }


def _text(tool: Tool, document: dict[str, Any], stderr: str, *, cut: int) -> str:
    """Return the object in short, for clients that show text only."""
    status = document["exit_code"]
    meaning = "" if status == 0 else f": {tool.verdicts[status]}" if status in tool.verdicts else ": failed"
    lines = [f"{document.get('command', tool.program)}: exit code {status}{meaning}"]
    lines += [f"{name}: {document[name]}" for name in ("error", "where", "fix") if document.get(name)]
    if document.get("dry_run"):
        lines.append("dry run: nothing was written")
    if cut:
        lines.append(f"the structured content was cut to fit, in {cut} places or more: see its `truncated`")
    for name, value in document.items():
        if name in _SKIPPED or value in ([], {}, None, ""):
            continue
        if isinstance(value, list):
            lines += [f"{name} ({len(value)}):", *(f"  {_row(item)}" for item in value[:_ROWS])]
            lines += [f"  ... and {len(value) - _ROWS} more"] if len(value) > _ROWS else []
        else:
            lines.append(f"{name}: {_row(value)}")
    if stderr.strip():
        lines += ["standard error, its end:", stderr.strip()[-_TEXT // 2 :]]
    text = printable("\n".join(lines))
    more = "\n... more in the structured content"
    return text if len(text) <= _TEXT else text[: _TEXT - len(more)] + more


def _row(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _ROW else f"{text[:_ROW]}..."
