"""Describes a tool, and an argument of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$(?!\n)"
"""Of kinds, units, packages and rules. Python's `$` would let a line feed through."""
NO_OPTION: Final = r"^[^-\s][^\n\r\x00]*$(?!\n)"
"""A word that no parser takes for an option."""
REQUIREMENT: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+(@[A-Za-z0-9_-]+)?$(?!\n)"
"""PACKAGE==VERSION[@VARIANT]."""
FORMS: Final = {
    NAME: "letters, digits and . _ -, not a dash first",
    NO_OPTION: "one line that does not begin with a dash or a space",
    REQUIREMENT: "PACKAGE==VERSION or PACKAGE==VERSION@VARIANT",
}
"""Patterns in words."""
WORD_LENGTH: Final = 1_000
TEXT_LENGTH: Final = 100_000
ITEMS: Final = 100
ANSWER_LENGTH: Final = 25_000
"""Longest answer in characters, text and structured content together, unless a server is started with another limit."""
LEAST_ANSWER_LENGTH: Final = 4_000
"""That limit is at least this."""


class Passing(StrEnum):
    """How a value reaches the command line."""

    OPTION = "option"
    """--option=value, once per item of a list."""
    SWITCH = "switch"
    """--option, or nothing."""
    WORD = "word"
    """Behind `--`, in the order of the parser; a list is several words."""
    COMMAND = "command"
    """In front of the options: what another program would call its subcommand."""
    INPUT = "input"
    """--option=-, and the value as JSON on the standard input."""


class Guard(StrEnum):
    """A check of a value beyond its schema."""

    NONE = ""
    INSIDE = "inside"
    """A path: it leads to a place inside the repository, links followed."""
    REVISION = "revision"
    """A commit or a range: never a file, which some commands would read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgument:
    """One argument of a tool."""

    name: str
    help: str
    passing: Passing = Passing.OPTION
    option: str = ""
    """As the command's `--help` has it, e.g. "--dry-run"; "" for words."""
    type: str = "string"
    """A type of JSON Schema; of an array, the items are strings."""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    default: Any = None
    """What the command does without it; None when that is nothing worth saying."""
    required: bool = False
    length: int = WORD_LENGTH
    """Longest text."""
    guard: Guard = Guard.NONE


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """One row of the table of tools. The arguments come from the command's parser (`tooling.mcp.tools.arguments`)."""

    name: str
    title: str
    program: str
    """The command, e.g. "areal-new"."""
    words: tuple[str, ...] = ()
    """What every call begins with, e.g. ("sync",)."""
    help: str = ""
    """What it does and when to use it; agents choose by this. "": the first paragraph of the command's `--help`."""
    note: str = ""
    """What follows that paragraph."""
    extra: tuple[ToolArgument, ...] = ()
    """Arguments that the parser does not have, before all others."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of `ToolArgument` that differ from the parser's, by option or word: {"target": {"name": "range"}}."""
    only: tuple[str, ...] = ()
    """Options and words of the parser that the tool takes; none: all."""
    without: tuple[str, ...] = ()
    """Those that it does not take."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of the JSON object, beside those of every command: the types of JSON Schema, several separated by "|"."""
    writes: bool = False
    preview: str = ""
    """Name of the tool that only shows what this one would write: the same command with --dry-run."""
    previews: str = ""
    """Of a preview: name of the tool that writes."""
    destructive: bool = False
    """Whether it may remove something that no other tool can restore."""
    idempotent: bool = False
    """Whether calling it twice is the same as once."""
    network: bool = False
    verdicts: Mapping[int, str] = field(default_factory=dict)
    """Exit codes that are an answer and not a failure: 10 of a review with findings."""
    seconds: float = 120.0
    """After this the command is ended."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that mean something in this repository; `--self-test` uses those of tools that only read."""
