"""The words of a command line: which one is the command or kind, which options all of them share, and what the
questions of a template become.

    call = split(["--repo", "x", "reward", "digits", "--style", "exact"])      # Call("reward", (...), ...)
    parser = Parser("areal-new reward", "a reward function")
    add_common(parser)
    arguments = parser.read(call.rest)

Standard library only and nothing heavy: `areal-new --help` loads this module. What commands do is in
`tooling.new.commands`.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAM: Final = "areal-new"
DEFAULT_WAIT: Final = 10.0
"""Seconds to wait for another process that changes the same repository."""
VALUE_OPTIONS: Final = ("--repo", "--wait", "--test", "--answers", "--plan-out")
"""Shared options that are followed by a value; they may stand before the command."""
_FLAGS: Final = (
    "--diff",
    "--dry-run",
    "--force",
    "--help",
    "--json",
    "--no-test",
    "--verbose",
    "--version",
    "-V",
    "-h",
    "-v",
)
"""Shared options without one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A command line, taken apart."""

    word: str | None
    """The command or kind; None without one."""
    rest: tuple[str, ...]
    """Everything else, in order."""
    help: bool
    version: bool

    @property
    def repo(self) -> str | None:
        """Value of `--repo`, needed before the command's own parser exists; a missing value is that parser's matter."""
        value = None
        for position, word in enumerate(self.rest):
            if word == "--":
                break
            if word == "--repo" and position + 1 < len(self.rest):
                value = self.rest[position + 1]
            elif word.startswith("--repo="):
                value = word.removeprefix("--repo=")
        return value


def split(words: Sequence[str]) -> Call:
    """Find the command among options that may stand before it."""
    rest: list[str] = []
    command, position = None, 0
    while position < len(words):
        word = words[position]
        if command is None and word in VALUE_OPTIONS:
            rest += words[position : position + 2]
            position += 2
            continue
        if command is None and word != "--" and not word.startswith("-"):
            command = word
        else:
            rest.append(word)
        position += 1
    options = before_dashes(rest)
    return Call(
        command,
        tuple(rest),
        help="-h" in options or "--help" in options,
        version=command is None and ("-V" in options or "--version" in options),
    )


def no_command(call: Call) -> UsageError:
    """What is wrong with a call that names neither command nor kind."""
    from tooling.cli.suggest import did_you_mean

    see = f"see `{PROGRAM} --help`"
    for word in before_dashes(call.rest):
        option = word.partition("=")[0]
        if option.startswith("-") and option not in (*VALUE_OPTIONS, *_FLAGS):
            return UsageError(f"unknown option {option!r}", fix=did_you_mean(option, ("--help", "--version")) or see)
    return UsageError("no command and no kind was given", fix=see)


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words up to "--", after which nothing is an option."""
    return words[: words.index("--")] if "--" in words else words


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of exiting, and suggests the nearest option."""

    def __init__(self, prog: str, description: str, *, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
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
        if unknown:
            raise self._unknown(unknown[0])
        return arguments

    def error(self, message: str) -> NoReturn:
        """Called by argparse for every parse failure."""
        raise UsageError(message, fix=f"see `{self.prog} --help`")

    def _unknown(self, word: str) -> UsageError:
        from tooling.cli.suggest import did_you_mean

        see = f"see `{self.prog} --help`"
        if not word.startswith("-"):
            return UsageError(f"unexpected argument {word!r}", fix=see)
        options = [option for action in self._actions for option in action.option_strings]
        hint = did_you_mean(word.partition("=")[0], options)
        return UsageError(f"unknown option {word.partition('=')[0]!r}", fix=hint or see)


def add_common(parser: Parser) -> None:
    """What every command and kind understands."""
    group = parser.add_argument_group("common options")
    group.add_argument("-h", "--help", action="store_true", help="show this page")
    group.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    group.add_argument("--repo", metavar="PATH", help="a folder in the repository (default: the current one)")
    group.add_argument("-v", "--verbose", action="store_true", help="show seconds per phase, and where an error arose")


def add_changing(parser: Parser) -> None:
    """What every command that changes files understands."""
    group = parser.add_argument_group("options about writing")
    group.add_argument("--dry-run", action="store_true", help="show what would be done; write nothing, take no lock")
    group.add_argument("--diff", action="store_true", help="show unified diffs")
    group.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_WAIT,
        help="how long to wait for another process that changes this repository (default: %(default)g)",
    )


def add_planning(parser: Parser, *, force: bool = True) -> None:
    """What commands that compute a plan understand. force: whether `--force` is about nothing else here."""
    group = parser.add_argument_group("options about saved plans")
    group.add_argument(
        "--plan-out", metavar="FILE", help=f"save the plan for `{PROGRAM} apply FILE` instead of applying it"
    )
    if force:
        group.add_argument("--force", action="store_true", help="replace an existing FILE of --plan-out")


def add_testing(parser: Parser) -> None:
    """What commands whose result has tests understand."""
    group = parser.add_argument_group("options about tests")
    choice = group.add_mutually_exclusive_group()
    choice.add_argument(
        "--test",
        metavar="{after,staged}",
        type=one_of("after", "staged"),
        help="run the unit's tests after writing (default), or before, on a copy of the repository",
    )
    choice.add_argument("--no-test", action="store_true", help="run no tests")


def one_of(*words: str) -> Callable[[str], str]:
    """A type for argparse that accepts some words, and suggests the nearest one for others."""

    def check(text: str) -> str:
        if text in words:
            return text
        from tooling.cli.suggest import did_you_mean

        hint = did_you_mean(text, words)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(words)}" + (f"; {hint}" if hint else ""))

    return check


def seconds(text: str) -> float:
    """A type for argparse: a duration, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return value
