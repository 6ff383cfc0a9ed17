"""Turns the arguments of a call into the words of a command line, held to the JSON schema that the tool's row gives.

No shell ever sees the words, and no parser can take a value for an option: values come behind `--` or in
`--option=value`. Schemas have no `oneOf` at the top: clients refuse it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.mcp.tools.records import FORMS, ITEMS, TEXT_LENGTH, WORD_LENGTH, Check, Parameter, Passing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from jsonschema import ValidationError

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


_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Call:
    """A command to run."""

    tool: Tool
    words: tuple[str, ...]
    """Behind the program's name."""
    input: str
    """Its standard input."""


def make_call(tool: Tool, arguments: Mapping[str, Any], root: Path) -> Call:
    """The command line of a call in a repository. Raises UsageError for arguments that the tool does not take."""
    _validate(tool, arguments)
    given = [(each, arguments[each.name]) for each in tool.parameters if each.name in arguments]
    for parameter, value in given:
        for text in value if isinstance(value, list) else [value]:
            _check(parameter, text, root)
    by = {passing: [(p, v) for p, v in given if p.passing is passing] for passing in Passing}
    commands = [value for _, value in by[Passing.COMMAND]]
    options = [word for parameter, value in given for word in _options(parameter, value)]
    words = [item for _, value in by[Passing.WORD] for item in (value if isinstance(value, list) else [value])]
    _refuse_gap(tool, [parameter for parameter, _ in by[Passing.WORD]])
    line = [*commands, *tool.words, "--json", f"--repo={os.fspath(root)}", *options, *(["--", *words] if words else [])]
    return Call(tool, tuple(line), "".join(_input(parameter, value) for parameter, value in by[Passing.INPUT]))


def _input(parameter: Parameter, value: Any) -> str:
    text = json.dumps(value)
    if len(text) > TEXT_LENGTH:
        raise UsageError(f"has {len(text)} characters as JSON", where=parameter.name, fix=f"at most {TEXT_LENGTH}")
    return text


def _options(parameter: Parameter, value: Any) -> Iterator[str]:
    if parameter.passing is Passing.SWITCH:
        if value:
            yield parameter.option
    elif parameter.passing is Passing.INPUT:
        yield f"{parameter.option}=-"
    elif parameter.passing is Passing.OPTION:
        for item in value if isinstance(value, list) else [value]:
            yield f"{parameter.option}={item}"


def _validate(tool: Tool, arguments: Mapping[str, Any]) -> None:
    known = [parameter.name for parameter in tool.parameters]
    for name in arguments:
        if name not in known:
            fix = did_you_mean(name, known) or (f"it takes {', '.join(known)}" if known else "it takes none")
            raise UsageError(f"{tool.name} takes no argument {_short(name)}", where=name[:_SHOWN], fix=fix)
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    missing = next((each for each in tool.needed if each.name not in arguments), None)
    if missing is not None:
        raise UsageError(f"{tool.name} needs {missing.name}", where=missing.name, fix=missing.help)
    error = best_match(Draft202012Validator(input_schema(tool)).iter_errors(dict(arguments)))
    if error is not None:
        raise _refused(tool, error)


def _refused(tool: Tool, error: ValidationError) -> UsageError:
    where = ".".join(str(part) for part in error.absolute_path) or "arguments"
    parameter = next((each for each in tool.parameters if error.absolute_path and each.name == error.path[0]), None)
    wanted = error.validator_value
    fixes = {
        "enum": f"one of {', '.join(parameter.choices) if parameter else ''}",
        "type": f"give a value of type {wanted}",
        "maxLength": f"give at most {wanted} characters",
        "maxItems": f"give at most {wanted} items",
        "minItems": "give at least one item",
        "pattern": f"write {FORMS.get(str(wanted), 'what this is')}: {parameter.help if parameter else ''}",
    }
    fix = fixes.get(str(error.validator), f"see the input schema of {tool.name}")
    return UsageError(f"{_short(error.instance)} cannot be used", where=where, fix=fix)


def _check(parameter: Parameter, value: Any, root: Path) -> None:
    if value == "--":  # argparse takes it for the end of options even in --option=--
        raise UsageError("'--' cannot be used", where=parameter.name, fix=parameter.help)
    if parameter.check is Check.NONE:
        return
    try:
        place = (root / value).resolve()
        is_file = place.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds what no path can
        raise UsageError(f"{_short(value)} cannot be used: {error}", where=parameter.name) from error
    if parameter.check is Check.INSIDE and not place.is_relative_to(root):
        fix = f"name something inside of {root}"
        raise UsageError(f"{_short(value)} lies outside of the repository", where=parameter.name, fix=fix)
    if parameter.check is Check.REVISION and (is_file or os.path.isabs(value)):
        fix = "name a commit or BASE..HEAD; a branch that is called like a file is refs/heads/NAME"
        raise UsageError(f"{_short(value)} is a file", where=parameter.name, fix=fix)


def _refuse_gap(tool: Tool, given: list[Parameter]) -> None:
    """Words are told apart by their place: of an optional one, those before it have to be there."""
    wanted = [each for each in tool.parameters if each.passing is Passing.WORD]
    for expected, present in zip(wanted, given, strict=False):
        if expected is not present:
            raise UsageError(f"{present.name} needs {expected.name}", where=present.name, fix=expected.help)


def _short(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}... ({len(shown)} characters)")
