"""Short forms for the rows of the table: the kinds of parameters that commands have."""

from __future__ import annotations

from dataclasses import replace

from tooling.mcp.tools.records import NO_OPTION, WORD_LENGTH, Check, Parameter, Passing


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
