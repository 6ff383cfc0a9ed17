"""Derives the arguments of a tool, and what it is for, from the parser of its command.

An argument is called like its option or word. Its type, choices and default are those of the parser; what its value may
hold follows from the metavar that `--help` shows: FILE is a path inside the repository, REV a revision, NAME a name.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from tooling.mcp.tools.records import NAME, NO_OPTION, REQUIREMENT, TEXT_LENGTH, Guard, Passing, ToolArgument
from tooling.mcp.tools.table import DRY_RUN, PROGRAMS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from tooling.cli.parser import Parser
    from tooling.mcp.tools.records import Tool


WITHHELD: Final[Mapping[str, str]] = dict.fromkeys(
    ("--help", "--json", "--repo", "--verbose", DRY_RUN, "--check", "--write"), "the server decides"
) | {
    **dict.fromkeys(("--sarif", "--rdjson", "--github", "--markdown", "--as-baseline", "--message-only"), "for people"),
    **dict.fromkeys(("--cache", "--plan-out"), "writes anywhere"),
    **dict.fromkeys(("--draft", "--no-push", "--yes", "--replace-body"), "a person agrees to it"),
    **dict.fromkeys(("--wait", "--summary", "--untracked", "--all-types"), "its default is right"),
    "--trust-source": "runs foreign code",
    "--matrix": "runs for hours",
    "--run-checks": "runs for minutes; a person or an agent that may run `areal-pr` does it",
}
"""Options that no tool has, with the reason."""
_WRITING_ONLY: Final = ("--test", "--no-test")
"""Not of a preview."""
_QUESTION, _OF_KIND = "answer ", "option "
"""Starts of the destinations of what single kinds of `areal-new` ask for; the tool has `answers` for questions."""
_VALUES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (r"(.*\b)?BASE\.\.HEAD|REV|BRANCH", {"pattern": NO_OPTION, "guard": Guard.REVISION}),
    (r"PACKAGE==.*", {"pattern": REQUIREMENT}),
    (r"PAGE|PATH|FOLDER|FILE|.*\.\w+", {"pattern": NO_OPTION, "guard": Guard.INSIDE}),
    (r"NAME|FAMILY", {"pattern": NAME}),
    (r"TEXT", {"length": TEXT_LENGTH}),
    (r"N", {"type": "integer"}),
)
"""What a value may hold, by the metavar in `--help`."""


@functools.cache
def arguments_of(tool: Tool) -> tuple[ToolArgument, ...]:
    """Return the arguments of a tool, in the order of its command's parser."""
    found = {each.name: each for each in tool.extra}
    for kind, parser in _parsers(tool):
        for action in parser.actions():
            option = next((each for each in action.option_strings if each.startswith("--")), "")
            key = option or action.dest
            unfit = key in WITHHELD or key in tool.without or (DRY_RUN in tool.words and key in _WRITING_ONLY)
            if unfit or (tool.only and key not in tool.only) or action.dest.startswith(_QUESTION):
                continue
            argument = replace(_argument(action, option), **tool.changes.get(key, {}))
            if action.dest.startswith(_OF_KIND):
                before = found.get(argument.name)
                argument = replace(argument, help=f"{f'{before.help}; ' if before else ''}{kind}: {argument.help}")
            found[argument.name] = argument
    return tuple(found.values())


def description_of(tool: Tool) -> str:
    """Return what a tool is for, by which agents choose it."""
    text = tool.help or " ".join((_parsers(tool)[0][1].description or "").partition("\n\n")[0].split())
    text = f"{text} {tool.note}".strip()
    return f"Shows what {tool.previews} would do, and writes nothing. {text}" if tool.previews else text


def _parsers(tool: Tool) -> list[tuple[str, Parser]]:
    """Return the parser of a command; of `areal-new KIND`, those of all kinds that it brings along, by kind."""
    program, command = PROGRAMS[tool.program], [word for word in tool.words if not word.startswith("-")]
    if tool.program == "areal-new" and not command:
        from tooling.kit.template.kinds import discover
        from tooling.new.command_line import kind_parser

        return [(name, kind_parser(kind)) for name, kind in discover(None).items()]
    module, _, name = program.parser.partition(":")
    make: Callable[..., Parser] = attrgetter(name)(import_module(module))
    return [("", make(*command) if program.has_commands else make())]


def _argument(action: argparse.Action, option: str) -> ToolArgument:
    """Return an option or a word of a parser as an argument."""
    help_text = (action.help or "") % vars(action)
    name = option.removeprefix("--").replace("-", "_") or action.dest
    if action.dest == "answers":
        return ToolArgument(name=name, help=help_text, passing=Passing.INPUT, option=option, type="object")
    if option and action.nargs in {0, "?"}:
        return ToolArgument(
            name=name, help=help_text, passing=Passing.SWITCH, option=option, type="boolean", default=False
        )
    metavar = str(action.metavar or "")
    listed = re.fullmatch(r"\{?([a-z]+(?:[|,][a-z]+)+)\}?", metavar)
    choices = tuple(re.split(r"[|,]", listed[1])) if listed else tuple(map(str, action.choices or ()))
    several = action.nargs in {"*", "+"} or isinstance(action.default, list)
    values = next((values for pattern, values in _VALUES if re.fullmatch(pattern, metavar)), {})
    default = action.default if isinstance(action.default, str | int | float) and action.default else None
    described: dict[str, Any] = {"type": "array" if several else "string", "choices": choices, "default": default}
    described |= values
    if not option:
        described = {
            "passing": Passing.WORD,
            "pattern": NAME,
            "required": action.nargs not in {"?", "*"},
            **described,
        }
    return ToolArgument(name=name, help=help_text, option=option, **described)
