"""Parses command lines, and finds the command that one names.

    # tooling/commit/commands/check.py: its docstring is the page of `areal-commit check --help`
    def configure(parser: Parser) -> None:
        parser.add_argument("--strict", action="store_true", help="warnings count as errors")

    def run(arguments: argparse.Namespace) -> Report: ...

    # tooling/commit/__main__.py
    PROGRAM = Program(
        name="areal-commit",
        purpose="Checks and suggests commit messages.",
        commands={"check": Command("tooling.commit.commands.check", "check a message or a range")},
        exit_codes=(0, 1, 2, 10, 130),
    )
    main = PROGRAM.main

Every command has --help, --json and --repo; options may stand before, between and after the positional words. Wrong
arguments raise UsageError with the nearest option or command. `areal-x --help` loads this page and no command.

A program whose commands are not a fixed table (areal-new) uses `split`, `Parser` and `run_cli` itself.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, cast

from tooling.cli.errors import UsageError, exit_codes_help
from tooling.cli.run import before_dashes, run_cli

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tooling.cli.report import Report

DEFAULT_WAIT: Final = 10.0
"""Seconds to wait for another process that changes the same repository."""


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of exiting, and suggests the nearest option."""

    def __init__(self, prog: str, description: str, *, usage: str | None = None, epilog: str = "") -> None:
        """prog: "areal-commit check"; description and epilog are printed as they are."""
        super().__init__(
            prog=prog,
            usage=usage,
            description=description.strip(),
            epilog=epilog or None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse; options may stand before, between and after the positional words, and none after "--"."""
        # The mixed way reads positional words a second time, and would find options among those after "--".
        parse = self.parse_known_args if "--" in words else self.parse_known_intermixed_args
        arguments, unknown = parse(list(words))
        unknown = [word for word in unknown if word != "--"]
        if not unknown:
            return arguments
        # `explain --json -- RULE`: argparse fills a variable number of words once, here with "explain", and leaves the
        # words after "--" over.
        rest = next(
            (action for action in self._actions if action.nargs in {"*", "+"} and not action.option_strings), None
        )
        if rest is not None and "--" in words and unknown == list(words[words.index("--") + 1 :]):
            setattr(arguments, rest.dest, [*getattr(arguments, rest.dest), *unknown])
            return arguments
        see = f"see `{self.prog} --help`"
        if not unknown[0].startswith("-"):
            raise UsageError(f"unexpected argument {unknown[0]!r}", fix=see)
        option = unknown[0].partition("=")[0]
        raise UsageError(f"unknown option {option!r}", fix=_nearest(option, self.options()) or see)

    def actions(self) -> list[argparse.Action]:
        """Return the options and positional words that were added, in order."""
        return list(self._actions)

    def options(self) -> list[str]:
        """Return all option strings: ["-h", "--help", "--json", ...]."""
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse calls this for every parse failure."""
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def add_common(
    parser: Parser,
    *,
    repo: str = "a folder in the repository (default: the current one)",
    verbose: str = "show where an error arose",
) -> None:
    """Add what every command understands. repo, verbose: help of these options."""
    group = parser.add_argument_group("common options")
    group.add_argument("-h", "--help", action="store_true", help="show this page")
    group.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    group.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help=repo)
    group.add_argument("-v", "--verbose", action="store_true", help=verbose)


def add_changing(parser: Parser, *, wait: bool = True) -> None:
    """Add what every command that changes files understands."""
    group = parser.add_argument_group("options about writing")
    group.add_argument("--dry-run", action="store_true", help="show what would be done; write nothing, take no lock")
    group.add_argument("--diff", action="store_true", help="show unified diffs")
    if wait:
        group.add_argument(
            "--wait",
            metavar="SECONDS",
            type=seconds,
            default=DEFAULT_WAIT,
            help="how long to wait for another process that changes this repository (default: %(default)g)",
        )


def one_of(*words: str) -> Callable[[str], str]:
    """Return a type for argparse that accepts some words, and suggests the nearest one for others."""

    def check(text: str) -> str:
        if text in words:
            return text
        hint = _nearest(text, words)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(words)}" + (f"; {hint}" if hint else ""))

    return check


def seconds(text: str) -> float:
    """Parse a duration of 0 seconds or more, as a type for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, taken apart."""

    word: str | None
    """The command (of areal-new: or kind); None without one."""
    rest: tuple[str, ...]
    """Everything else, in order."""
    help: bool
    version: bool

    def value(self, option: str) -> str | None:
        """Return the last value of an option, needed before the parser of the command exists; None without one."""
        found = None
        words = before_dashes(self.rest)
        for position, word in enumerate(words):
            if word == option and position + 1 < len(words):
                found = words[position + 1]
            elif word.startswith(f"{option}="):
                found = word.removeprefix(f"{option}=")
        return found


def split(words: Sequence[str], value_options: Sequence[str] = ("--repo", "--wait")) -> CommandLine:
    """Find the command among options that may stand before it. value_options: those that a value follows.

    Example: split(["--repo", "x", "check", "--strict"]) -> CommandLine("check", ("--repo", "x", "--strict"), ...).
    """
    rest: list[str] = []
    command, position = None, 0
    while position < len(words):
        word = words[position]
        if command is None and word in value_options:
            rest += words[position : position + 2]
            position += 2
            continue
        if command is None and word != "--" and not word.startswith("-"):
            command = word
        else:
            rest.append(word)
        position += 1
    options = before_dashes(rest)
    return CommandLine(
        command,
        tuple(rest),
        help="-h" in options or "--help" in options,
        version=command is None and ("-V" in options or "--version" in options),
    )


def information(program: str, call: CommandLine, page: Callable[[], str]) -> Report | None:
    """Return the report of --version or --help; None for a call that asks for neither. page: makes the page of help."""
    from tooling.cli.report import Report

    if call.version:
        from tooling.cli.toml import version

        number = version()
        return Report(command="version", changing=False, text=f"{program} {number}", data={"version": number})
    if call.help:
        text = page()
        return Report(command="help", changing=False, text=text, data={"help": text})
    return None


class CommandModule(Protocol):
    """What a module of `commands/` offers."""

    __doc__: str | None

    def configure(self, parser: Parser) -> None:
        """Add the arguments of the command."""

    def run(self, arguments: argparse.Namespace) -> Report:
        """Run the command. Raises ToolError when it fails."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """One row of a program's table of commands."""

    module: str
    """Full name, "tooling.commit.commands.check"; loaded when the command is called."""
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgram:
    """A program with a fixed table of commands."""

    name: str
    purpose: str
    commands: Mapping[str, Command]
    exit_codes: tuple[int, ...]
    """Those it can end with; `tooling.cli.errors.EXIT_CODES` explains them."""
    interrupted: tuple[str, str] = ("interrupted; nothing was written", "")
    """Message and fix after Ctrl-C."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run one command line, by default that of the process, and return the exit code."""
        words = list(sys.argv[1:] if argv is None else argv)
        if argv is None:
            gc.disable()  # one process, few cycles, very many small objects
        return run_cli(self.name, words, lambda _: self.run(words), interrupted=self.interrupted)

    def run(self, words: Sequence[str]) -> Report:
        """Run one command line, and return its report. Raises ToolError."""
        call = split(words)
        asked = information(
            self.name, call, lambda: self.help() if call.word is None else self.parser(call.word).format_help()
        )
        if asked is not None:
            return asked
        if call.word is None:
            see = f"see `{self.name} --help`"
            strange = [word.partition("=")[0] for word in before_dashes(call.rest) if word.startswith("-")]
            unknown = [word for word in strange if word not in _SHARED]
            if unknown:
                raise UsageError(f"unknown option {unknown[0]!r}", fix=_nearest(unknown[0], _SHARED) or see)
            raise UsageError("no command was given", fix=see)
        arguments = self.parser(call.word).read(call.rest)
        return self.module(call.word).run(arguments)

    def parser(self, name: str) -> Parser:
        """Return the parser of a command. Raises UsageError for one that does not exist."""
        module = self.module(name)
        parser = Parser(f"{self.name} {name}", module.__doc__ or "")
        module.configure(parser)
        add_common(parser)
        return parser

    def module(self, name: str) -> CommandModule:
        """Load the module of a command. Raises UsageError for one that does not exist."""
        if name not in self.commands:
            fix = _nearest(name, self.commands) or f"commands are {', '.join(self.commands)}"
            raise UsageError(f"unknown command {name!r}", fix=fix)
        return cast("CommandModule", import_module(self.commands[name].module))

    def help(self) -> str:
        """Return the page of `areal-x --help`."""
        options = {"-h, --help": "show this page, or that of a command", "-V, --version": "show the version"}
        parts = [
            f"usage: {self.name} COMMAND [arguments]",
            self.purpose,
            listed("commands", {name: command.summary for name, command in self.commands.items()}),
            listed("options", options),
            exit_codes_help(self.exit_codes),
        ]
        return "\n\n".join(parts) + "\n"


def listed(title: str, rows: Mapping[str, str]) -> str:
    """Return one part of a page of help: a title, and a line per row."""
    width = max((len(name) for name in rows), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows.items()] or ["  (none)"]
    return "\n".join([f"{title}:", *lines])


_SHARED: Final = ("--help", "-h", "--json", "--repo", "--verbose", "-v", "--version", "-V")


def _nearest(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    from tooling.cli.suggest import did_you_mean  # loads difflib

    return did_you_mean(word, known)
