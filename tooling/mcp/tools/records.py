"""Describes a tool and its parameters; short forms for the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
ANSWER_LENGTH: Final = 200_000
"""Longest answer in characters of JSON, unless a server is told otherwise."""


class Passing(StrEnum):
    """How a value reaches the command line."""

    OPTION = "option"
    """--option=value, once per item of a list."""
    SWITCH = "switch"
    """--option, or nothing."""
    WORD = "word"
    """Behind `--`, in the order of the table; a list is several words."""
    COMMAND = "command"
    """In front of the options: what another program would call its subcommand."""
    INPUT = "input"
    """--option=-, and the value as JSON on the standard input."""


class Check(StrEnum):
    """What a value is held to beyond its schema."""

    NONE = ""
    INSIDE = "inside"
    """A path: it leads to a place inside the repository, links followed."""
    REVISION = "revision"
    """A commit or a range: never a file, which some commands would read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
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
    check: Check = Check.NONE
    writing_only: bool = False
    """Not a parameter of the preview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: a command with some of its options, in words for an agent."""

    name: str
    title: str
    help: str
    """What it does and when to use it; agents choose by this."""
    program: str
    """The command, e.g. "areal-new"."""
    main: str = ""
    """module:function that runs it; "": found by the entry point of the program, and left out where there is none."""
    words: tuple[str, ...] = ()
    """What every call begins with, e.g. ("sync",)."""
    parameters: tuple[Parameter, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of the JSON object, beside those of every command: the types of JSON Schema, several separated by "|"."""
    writes: bool = False
    preview: str = ""
    """Name of the tool that only shows what this one would write: the same command with --dry-run."""
    destructive: bool = False
    """Whether it may take something away that cannot be had back by calling another tool."""
    idempotent: bool = False
    """Whether calling it twice is the same as once."""
    network: bool = False
    verdicts: Mapping[int, str] = field(default_factory=dict)
    """Exit codes that are an answer and no failure: 10 of a review with findings."""
    seconds: float = 120.0
    """After this the command is ended."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that mean something in this repository; `--self-test` uses those of tools that only read."""

    @property
    def needed(self) -> tuple[Parameter, ...]:
        """Parameters that have to be given."""
        return tuple(each for each in self.parameters if each.required)


def word(name: str, pattern: str, text: str, *, required: bool = False, check: Check = Check.NONE) -> Parameter:
    """A word behind `--`."""
    return Parameter(name=name, help=text, passing=Passing.WORD, pattern=pattern, required=required, check=check)


def words(name: str, pattern: str, text: str, *, required: bool = False, check: Check = Check.NONE) -> Parameter:
    """Any number of words behind `--`."""
    found = word(name, pattern, text, required=required, check=check)
    return replace(found, type="array")


def option(
    name: str,
    flag: str,
    text: str,
    *,
    check: Check = Check.NONE,
    choices: tuple[str, ...] = (),
    default: str | None = None,
    length: int = WORD_LENGTH,
    pattern: str = "",
) -> Parameter:
    """--flag=value."""
    pattern = pattern or (NO_OPTION if check is not Check.NONE else "")
    return Parameter(
        name=name,
        help=text,
        option=flag,
        check=check,
        choices=choices,
        default=default,
        length=length,
        pattern=pattern,
    )


def switch(name: str, flag: str, text: str) -> Parameter:
    """--flag."""
    return Parameter(name=name, help=text, passing=Passing.SWITCH, option=flag, type="boolean", default=False)


def repeated(name: str, flag: str, pattern: str, text: str) -> Parameter:
    """--flag=item for each item."""
    return Parameter(name=name, help=text, option=flag, type="array", pattern=pattern)


def while_writing(parameter: Parameter) -> Parameter:
    """The same, but no parameter of the preview."""
    return replace(parameter, writing_only=True)
