"""The JSON schemas of a tool, derived from its row. No `oneOf` at the top: clients refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.mcp.tools.records import ITEMS, WORD_LENGTH, Passing

if TYPE_CHECKING:
    from tooling.mcp.tools.records import Parameter, Tool

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
ENVELOPE: Final[dict[str, dict[str, Any]]] = {
    "ok": {"type": "boolean", "description": "exit_code is 0"},
    "command": _TEXT,
    "exit_code": {"type": "integer"},
    "error": {"type": "string", "description": "what happened"},
    "code": {"type": "string", "description": "the kind of error"},
    "where": {"type": "string", "description": "path, path:line, option or argument"},
    "fix": {"type": "string", "description": "what to do next"},
    "dry_run": {"type": "boolean"},
    "plan": {**_OBJECTS, "description": "files with action, path and reason"},
    "registered": _OBJECTS,
    "checks": _OBJECTS,
    "next": {**_TEXTS, "description": "what to do next"},
    "warnings": _TEXTS,
    "truncated": {**_OBJECTS, "description": "what was cut to fit, each with path, kept and total"},
}
"""What the JSON object of every command has; `truncated` is the server's own."""
ALWAYS: Final = ("ok", "command", "exit_code", "dry_run", "plan", "registered", "checks", "next", "warnings")


def input_schema(tool: Tool) -> dict[str, Any]:
    """What the arguments have to be."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: _parameter(each) for each in tool.parameters},
        "additionalProperties": False,
    }
    if tool.needed:
        schema["required"] = [each.name for each in tool.needed]
    return schema


def output_schema(tool: Tool) -> dict[str, Any]:
    """What the JSON object of the command is. Only what an error has too is required."""
    fields = {name: {"type": kinds.split("|") if "|" in kinds else kinds} for name, kinds in tool.fields.items()}
    return {"type": "object", "properties": ENVELOPE | fields, "required": list(ALWAYS)}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type, "description": parameter.help}
    text = _text(parameter)
    if parameter.type == "array":
        schema |= {"items": {"type": "string", **text}, "maxItems": ITEMS}
        if parameter.required:
            schema["minItems"] = 1
    elif parameter.type == "string":
        schema |= text
    if parameter.default is not None:
        schema["default"] = parameter.default
    return schema


def _text(parameter: Parameter) -> dict[str, Any]:
    if parameter.choices:
        return {"enum": list(parameter.choices)}
    schema: dict[str, Any] = {"maxLength": min(parameter.length, WORD_LENGTH * ITEMS)}
    if parameter.passing is Passing.WORD or parameter.pattern:
        schema["pattern"] = parameter.pattern
    return schema
