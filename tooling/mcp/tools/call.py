"""Turns the arguments of a call into the words of a command line, held to the JSON schema that the tool's row gives.

No shell ever sees the words, and no parser can take a value for an option: values come behind `--` or in
`--option=value`. Schemas have no `oneOf` at the top: clients refuse it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.mcp.tools.arguments import arguments_of
from tooling.mcp.tools.records import FORMS, ITEMS, TEXT_LENGTH, WORD_LENGTH, Guard, Passing, ToolArgument
from tooling.mcp.tools.table import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.mcp.tools.records import Tool


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
    "more": {
        "type": "object",
        "description": "of a cut answer: its name for the tool `more`, and how many pages it has",
    },
}
"""What the JSON object of every command has; `truncated` and `more` are the server's own."""
ALWAYS: Final = ("ok", "command", "exit_code", "dry_run", "plan", "registered", "checks", "next", "warnings")
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrder:
    """A command to run."""

    program: str
    main: str
    """module:function that takes the words and returns the exit code."""
    words: tuple[str, ...]
    """Behind the program's name."""
    input: str
    """Its standard input."""
    folder: Path
    """Working directory."""


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return what the arguments have to be."""
    properties = {}
    for each in arguments_of(tool):
        text: dict[str, Any] = {"enum": list(each.choices)}
        if not each.choices:
            text = {"maxLength": min(each.length, WORD_LENGTH * ITEMS)}
            text |= {"pattern": each.pattern} if each.pattern else {}
        schema: dict[str, Any] = {"type": each.type, "description": each.help}
        if each.type == "array":
            schema |= {
                "items": {"type": "string", **text},
                "maxItems": ITEMS,
                **({"minItems": 1} if each.required else {}),
            }
        elif each.type == "string":
            schema |= text
        properties[each.name] = schema if each.default is None else schema | {"default": each.default}
    needed = [each.name for each in arguments_of(tool) if each.required]
    required = {"required": needed} if needed else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **required}


def output_schema(tool: Tool) -> dict[str, Any]:
    """Return what the JSON object of the command is. Only what an error has too is required."""
    fields = {name: {"type": kinds.split("|") if "|" in kinds else kinds} for name, kinds in tool.fields.items()}
    return {"type": "object", "properties": ENVELOPE | fields, "required": list(ALWAYS)}


def make_call(tool: Tool, arguments: Mapping[str, Any], root: Path) -> ToolOrder:
    """Return the command line of a call. Raises UsageError for arguments that the tool does not take."""
    _validate(tool, arguments)
    commands, options, behind, standard_input = list[str](), list[str](), list[str](), ""
    for argument in arguments_of(tool):
        if argument.name not in arguments:
            continue
        value = arguments[argument.name]
        items = value if isinstance(value, list) else [value]
        for item in items:
            _check(argument, item, root)
        if argument.passing is Passing.COMMAND:
            commands += items
        elif argument.passing is Passing.WORD:
            behind += items
        elif argument.passing is Passing.SWITCH:
            options += [argument.option] if value else []
        elif argument.passing is Passing.OPTION:
            options += [f"{argument.option}={item}" for item in items]
        else:
            options.append(f"{argument.option}=-")
            standard_input = json.dumps(value)
            if len(standard_input) > TEXT_LENGTH:
                message = f"has {len(standard_input)} characters as JSON"
                raise UsageError(message, where=argument.name, fix=f"at most {TEXT_LENGTH}")
    words = [
        *commands,
        *tool.words,
        "--json",
        f"--repo={os.fspath(root)}",
        *options,
        *(["--", *behind] if behind else []),
    ]
    return ToolOrder(
        program=tool.program,
        main=PROGRAMS[tool.program].main,
        words=tuple(words),
        input=standard_input,
        folder=root,
    )


def _validate(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError about the first argument that the schema of a tool does not allow."""
    takes = {each.name: each for each in arguments_of(tool)}
    for name in arguments:
        if name not in takes:
            fix = did_you_mean(name, takes) or (f"it takes {', '.join(takes)}" if takes else "it takes none")
            raise UsageError(f"{tool.name} takes no argument {_short(name)}", where=name[:_SHOWN], fix=fix)
    missing = next((each for each in takes.values() if each.required and each.name not in arguments), None)
    if missing is not None:
        raise UsageError(f"{tool.name} needs {missing.name}", where=missing.name, fix=missing.help)
    # Words are known by their place: where one is given, those before it are needed
    words = [each for each in takes.values() if each.passing is Passing.WORD]
    for before, behind in pairwise(words):
        if behind.name in arguments and before.name not in arguments:
            raise UsageError(f"{behind.name} needs {before.name}", where=behind.name, fix=before.help)
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(input_schema(tool)).iter_errors(dict(arguments)))
    if error is None:
        return
    argument = takes[str(error.absolute_path[0])]
    wanted = error.validator_value
    fixes = {
        "enum": f"one of {', '.join(argument.choices)}",
        "type": f"give a value of type {wanted}",
        "maxLength": f"give at most {wanted} characters",
        "maxItems": f"give at most {wanted} items",
        "minItems": "give at least one item",
        "pattern": f"write {FORMS.get(str(wanted), 'what this is')}: {argument.help}",
    }
    fix = fixes.get(str(error.validator), f"see the input schema of {tool.name}")
    where = ".".join(str(part) for part in error.absolute_path)
    raise UsageError(f"{_short(error.instance)} cannot be used", where=where, fix=fix)


def _check(argument: ToolArgument, value: Any, root: Path) -> None:
    """Raise UsageError for a value that leads where it must not."""
    if value == "--":  # argparse takes it for the end of options even in --option=--
        raise UsageError("'--' cannot be used", where=argument.name, fix=argument.help)
    if argument.guard is Guard.NONE:
        return
    try:
        place = (root / value).resolve()
        is_file = place.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds what no path can
        raise UsageError(f"{_short(value)} cannot be used: {error}", where=argument.name, fix=argument.help) from error
    if argument.guard is Guard.INSIDE and not place.is_relative_to(root):
        fix = f"name something inside of {root}"
        raise UsageError(f"{_short(value)} lies outside of the repository", where=argument.name, fix=fix)
    if argument.guard is Guard.REVISION and (is_file or os.path.isabs(value)):
        fix = "name a commit or BASE..HEAD; a branch that is called like a file is refs/heads/NAME"
        raise UsageError(f"{_short(value)} is a file", where=argument.name, fix=fix)


def _short(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}... ({len(shown)} characters)")
