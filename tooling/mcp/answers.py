"""Runs the command of a tool, and turns what it printed into the answer of a call, shortened to what a client takes.

The limit is on text and structured content together, as clients count them. The tool `more` returns the pages of what
is cut (`tooling.mcp.paging`).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ToolError, WriteError
from tooling.cli.report import printable
from tooling.mcp.paging import DEEPEST, Shelf, size
from tooling.mcp.processes import Queue, run
from tooling.mcp.tools.call import make_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from tooling.mcp.processes import Finished
    from tooling.mcp.tools.records import Tool


_NAMED: Final = 8
"""Most cuts that are named; the last entry counts the others."""
_PATH: Final = 100
_TEXT: Final = 4_000
"""Most characters of the text; of a short answer, a quarter of it."""
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
    shelf: Shelf
    """What was cut; its pages are as long as an answer may be."""
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
            return self._refusal(tool, error)
        except OSError as error:
            fix = "free memory and processes on this machine, and call it again"
            problem = WriteError(f"the command could not be started: {error.strerror}", where=tool.program, fix=fix)
            return self._refusal(tool, problem)
        return answer_of(tool, finished, shelf=self.shelf, seconds=seconds)

    def _refusal(self, tool: Tool, error: ToolError) -> ToolAnswer:
        """Return the answer of a call that was not carried through."""
        document = _envelope(tool.program, error.exit_code, error.code, error.message, error.where, error.fix)
        return _fitted(tool, document, self.shelf, failed=True)


def answer_of(tool: Tool, finished: Finished, *, shelf: Shelf, seconds: float) -> ToolAnswer:
    """Return the answer of a command that has ended; what does not fit is kept on the shelf."""
    whole: Any = None
    if not finished.problem:
        with contextlib.suppress(ValueError):  # `_failure` says what was printed instead
            whole = json.loads(finished.output)
    if not isinstance(whole, dict) or not isinstance(whole.get("exit_code"), int):
        whole = _failure(tool, finished, seconds)
    failed = whole["exit_code"] != 0 and whole["exit_code"] not in tool.verdicts
    return _fitted(tool, whole, shelf, failed=failed, stderr=finished.stderr if failed else "")


def _fitted(tool: Tool, whole: dict[str, Any], shelf: Shelf, *, failed: bool, stderr: str = "") -> ToolAnswer:
    """Return an answer that a client takes: the object and a text, or what is left of both when they are too long."""
    longest = min(_TEXT, shelf.most // 4)
    text = _text(tool, whole, stderr, longest)
    if len(text) + size(whole) <= shelf.most:
        return ToolAnswer(whole, text, failed)
    more = shelf.keep(tool.name, whole)
    text = _text(tool, whole, stderr, longest, more)
    return ToolAnswer(shortened(whole, shelf.most - len(text), more), text, failed)


def shortened(document: dict[str, Any], most: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy that fits, with `truncated` and `more`. Its top level keeps all keys."""
    limit = 1 << 15
    while True:
        cuts: list[dict[str, Any]] = []
        cut = {key: _cut(value, key, limit, cuts) for key, value in document.items()}
        named = cuts[:_NAMED]
        if len(cuts) > _NAMED:
            named.append({"path": "", "kept": 0, "of": len(cuts) - _NAMED})
        found = cut | {"truncated": named, "more": dict(more)}
        if size(found) <= most:
            return found
        if limit <= 1:  # names are so long that one entry of each is too much
            bare = {key: type(value)() if isinstance(value, str | list | dict) else value for key, value in cut.items()}
            return bare | {"truncated": [{"path": "", "kept": 0, "of": len(cuts)}], "more": dict(more)}
        limit //= 2


def _cut(value: Any, path: str, limit: int, cuts: list[dict[str, Any]], depth: int = 1) -> Any:
    """Shorten a value. An object keeps as many entries as a text characters, a list fewer: its entries are longer."""
    kept = max(1, limit // 16) if isinstance(value, list) else limit
    if depth > DEEPEST and isinstance(value, list | dict):
        kept = 0
    if isinstance(value, str | list | dict) and len(value) > kept:
        cuts.append({"path": path[:_PATH], "kept": kept, "of": len(value)})
    if isinstance(value, str) and len(value) > kept:
        return f"{value[:kept]}... [{len(value) - kept} more characters]"
    if isinstance(value, list):
        return [_cut(item, f"{path}[{number}]", limit, cuts, depth + 1) for number, item in enumerate(value[:kept])]
    if isinstance(value, dict):
        return {name: _cut(value[name], f"{path}.{name}", limit, cuts, depth + 1) for name in list(value)[:kept]}
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


def _text(tool: Tool, document: dict[str, Any], stderr: str, most: int, more: Mapping[str, Any] | None = None) -> str:
    """Return the object in short, for clients that show text only. more: what to ask for, where the object was cut."""
    status = document["exit_code"]
    meaning = "" if status == 0 else f": {tool.verdicts[status]}" if status in tool.verdicts else ": failed"
    lines = [f"{document.get('command', tool.program)}: exit code {status}{meaning}"]
    lines += [f"{name}: {document[name]}" for name in ("error", "where", "fix") if document.get(name)]
    if document.get("dry_run"):
        lines.append("dry run: nothing was written")
    if more is not None:
        pages = f"`more` with answer={more['answer']} and page=1 to {more['pages']}"
        lines.append(f"the structured content was cut to fit; {pages} has the whole")
    for name, value in document.items():
        if name in _SKIPPED or value in ([], {}, None, ""):
            continue
        if isinstance(value, list):
            lines += [f"{name} ({len(value)}):", *(f"  {_row(item)}" for item in value[:_ROWS])]
            lines += [f"  ... and {len(value) - _ROWS} more"] if len(value) > _ROWS else []
        else:
            lines.append(f"{name}: {_row(value)}")
    if stderr.strip():
        lines += ["standard error, its end:", stderr.strip()[-most // 2 :]]
    text = printable("\n".join(lines))
    end = "\n... the rest is in the structured content"
    return text if len(text) <= most else text[: most - len(end)] + end


def _row(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _ROW else f"{text[:_ROW]}..."
