"""Tool calls in the text of a model: found, read strictly, and checked against what the tool takes.

    I need the product.
    <tool_call>
    {"name": "calculator", "arguments": {"expression": "8*9"}}
    </tool_call>

This is the format of Hermes and Qwen: one JSON object with exactly `name` and `arguments`. Anything else is a
`ToolError`, whose message is written for the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALL_START: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"

_MAX_CALL_CHARACTERS: Final = 20_000
_MAX_CALLS: Final = 16
_FIELDS: Final = {"name", "arguments"}
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
_NOTES: Final = {"default", "description", "examples", "title"}
"""Keywords of a JSON schema that ask for nothing."""


class ToolError(Exception):
    """The model asked for something that cannot be done. The model reads the message, so name the remedy in it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it."""

    name: str
    arguments: Mapping[str, Any]


def read_call(text: str) -> ToolCall | None:
    """Return the one call in a model's text; None when it has none, i.e. is a final answer.

    Raises ToolError for a call that is not closed, for several, and for one that is not in the format.
    """
    if CALL_START not in text and CALL_END not in text:
        return None
    before, _, rest = text.partition(CALL_START)
    body, closed, _ = rest.partition(CALL_END)
    if CALL_END in before:
        raise ToolError(f"{CALL_END} without {CALL_START} before it")
    if not closed:
        raise ToolError(f"the call is not closed by {CALL_END}")
    if text.count(CALL_START) > 1:
        raise ToolError("one call at a time: the text has several")
    if len(body) > _MAX_CALL_CHARACTERS:
        raise ToolError(f"the call has {len(body)} characters, at most {_MAX_CALL_CHARACTERS} are allowed")
    try:
        call = json.loads(body, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is too deep or too long"
        raise ToolError(f"the call is not valid JSON: {reason}") from error
    if not isinstance(call, dict) or set(call) != _FIELDS:
        raise ToolError('a call is an object with exactly "name" and "arguments"')
    if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
        raise ToolError('"name" must be a string and "arguments" an object')
    return ToolCall(call["name"], call["arguments"])


def read_calls(text: str) -> list[ToolCall]:
    """Return all calls in a model's text, in order; none when it is a final answer.

    Raises ToolError as `read_call`, but for several.
    """
    calls, rest = [], text
    while CALL_START in rest or CALL_END in rest:
        end = rest.find(CALL_END)
        # Without an end, the rest is what `read_call` has the words for.
        part, rest = (rest, "") if end < 0 else (rest[: end + len(CALL_END)], rest[end + len(CALL_END) :])
        call = read_call(part)
        assert call is not None, "it has a mark"
        calls.append(call)
        if len(calls) > _MAX_CALLS:
            raise ToolError(f"more than {_MAX_CALLS} calls in one turn")
    return calls


def check_parameters(tool: str, schema: Mapping[str, Any]) -> None:
    """Raise ConfigError for a parameter schema that `check_arguments` would not enforce in full.

    Understood is one level: {"type": "object", "properties": {name: {"type": ..., "enum": [...]}}, "required": [...]};
    unknown arguments are always refused. Deeper structure is the tool's own business.
    """
    unknown = set(schema) - {"type", "properties", "required", "additionalProperties"} - _NOTES
    if unknown or schema.get("type") != "object" or schema.get("additionalProperties", False):
        _unsupported(tool, f"the schema has {', '.join(sorted(unknown)) or 'another type, or allows unknown names'}")
    properties = schema.get("properties", {})
    for name, rule in properties.items():
        unknown = set(rule) - {"type", "enum", "items", "properties"} - _NOTES
        if unknown or str(rule.get("type")) not in _TYPES:
            _unsupported(tool, f"parameter {name!r} has {', '.join(sorted(unknown)) or 'no known type'}")
    missing = [name for name in schema.get("required", ()) if name not in properties]
    if missing:
        _unsupported(tool, f"required {', '.join(missing)} is not among the properties")


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ToolError unless the arguments are what the schema asks for; a string is never taken for a number."""
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            raise ToolError(f"argument {name!r} is missing")
    for name, value in arguments.items():
        if name not in properties:
            raise ToolError(f"unknown argument {name!r}; there are {', '.join(properties) or 'none'}")
        rule = properties[name]
        if not _TYPES[rule["type"]](value):
            raise ToolError(f"argument {name!r} must be of type {rule['type']}")
        if "enum" in rule and value not in rule["enum"]:
            raise ToolError(f"argument {name!r} must be one of {json.dumps(rule['enum'])}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ToolError("the call has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ToolError(f"the call is not valid JSON: {name}")


def _unsupported(tool: str, what: str) -> NoReturn:
    raise ConfigError(
        f"tool {tool!r}: {what}; its parameters must be an object schema with typed properties, of the keywords type, "
        f"enum, properties, required, items and descriptions"
    )
