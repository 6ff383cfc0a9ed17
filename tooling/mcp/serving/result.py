"""What a call hands back: the command's JSON object as it is, a few lines of text for people, and whether it failed.

    answer = answer_of(call, finished, most=200_000)

An object that is too large is cut, and says where and how much. A command that gave no object (it crashed, was killed,
took too long) becomes an object of the same form.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.report import printable
from tooling.mcp.serving.shortening import shortened

if TYPE_CHECKING:
    from tooling.cli.errors import ToolError
    from tooling.mcp.running.process import Finished
    from tooling.mcp.tools.records import Tool

_TEXT: Final = 4_000
"""Characters of the text."""
_ROWS: Final = 8
"""Of a list."""
_ROW: Final = 240
_TIMED_OUT: Final = 124
_SKIPPED: Final = frozenset({"ok", "command", "exit_code", "error", "code", "where", "fix", "dry_run"})


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one call."""

    document: dict[str, Any]
    text: str
    failed: bool


def answer_of(tool: Tool, finished: Finished, *, most: int, seconds: float) -> Answer:
    """The answer of a command that has ended. `most`: characters of the object as JSON."""
    whole = _document(finished) or _failure(tool, finished, seconds)
    failed = whole["exit_code"] != 0 and whole["exit_code"] not in tool.verdicts
    document = shortened(whole, most)
    text = _text(tool, whole, finished.stderr if failed else "", cut=len(document.get("truncated", ())))
    return Answer(document, text, failed)


def refusal_of(tool: Tool, error: ToolError) -> Answer:
    """The answer of a call that was not carried out."""
    document = _envelope(tool.program, error.exit_code, error.code, error.message, error.where, error.fix)
    return Answer(document, _text(tool, document, "", cut=0), failed=True)


def _document(finished: Finished) -> dict[str, Any] | None:
    if finished.problem:
        return None
    try:
        document = json.loads(finished.output)
    except ValueError:
        return None
    return document if isinstance(document, dict) and isinstance(document.get("exit_code"), int) else None


def _failure(tool: Tool, finished: Finished, seconds: float) -> dict[str, Any]:
    """In words, why there is no object."""
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
    """The object in short, for clients that show text only."""
    status = document["exit_code"]
    meaning = "" if status == 0 else f": {tool.verdicts[status]}" if status in tool.verdicts else ": failed"
    lines = [f"{document.get('command', tool.program)}: exit code {status}{meaning}"]
    lines += [f"{name}: {document[name]}" for name in ("error", "where", "fix") if document.get(name)]
    if document.get("dry_run"):
        lines.append("dry run: nothing was written")
    if cut:
        lines.append(f"the structured content was cut to fit, in {cut} places or more: see its `truncated`")
    for name, value in document.items():
        if name not in _SKIPPED and value not in ([], {}, None, ""):
            lines += _shown(name, value)
    if stderr.strip():
        lines += ["standard error, its end:", stderr.strip()[-_TEXT // 2 :]]
    text = printable("\n".join(lines))
    more = "\n... more in the structured content"
    return text if len(text) <= _TEXT else text[: _TEXT - len(more)] + more


def _shown(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"{name}: {_row(value)}"]
    more = [f"  ... and {len(value) - _ROWS} more"] if len(value) > _ROWS else []
    return [f"{name} ({len(value)}):", *(f"  {_row(item)}" for item in value[:_ROWS]), *more]


def _row(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _ROW else f"{text[:_ROW]}..."
