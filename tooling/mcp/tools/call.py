"""From the arguments of a call to the words of a command line. No shell ever sees them, and no parser can take a value
for an option: values stand behind `--` or in `--option=value`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.mcp.tools.records import FORMS, TEXT_LENGTH, Check, Parameter, Passing
from tooling.mcp.tools.schemas import input_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from jsonschema import ValidationError

    from tooling.mcp.tools.records import Tool

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
