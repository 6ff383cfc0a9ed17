"""The command line of `areal-new`: its commands and kinds, their parsers, and the call of one.

Start-up is light: this page and the list of kinds need nothing but the standard library and a look at folders; what a
command needs is imported when it runs (tests/tooling/new/test_start_up.py keeps the list of what may be loaded).
"""

from __future__ import annotations

import gc
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tooling.cli.errors import ToolError, UsageError, exit_codes_help
from tooling.cli.parser import Command, Parser, add_changing, add_common, listed, one_of, split
from tooling.cli.run import before_dashes, run_cli

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.cli.parser import Call
    from tooling.cli.report import Report
    from tooling.kit.template.kinds import KindSource
    from tooling.new.workspace import Workspace

PROGRAM: Final = "areal-new"
EXIT_CODES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 75, 130)
VALUE_OPTIONS: Final = ("--repo", "--wait", "--test", "--answers", "--plan-out")
"""Shared options that are followed by a value; they may stand before the command."""
_FLAGS: Final = ("--diff", "--dry-run", "--force", "--help", "--json", "--no-test", "--verbose", "--version")
"""Shared options without one; -h, -v and -V besides."""
_DESCRIPTION: Final = """\
Generates a unit (a reward, a dataset, a workflow, ...) with its test, registers it, and proves it; explains, updates,
renames and undoes it later. A run changes everything it says, or nothing."""

GENERATE: Final = "tooling.new.commands.generate"
"""Module that answers for every kind."""
COMMANDS: Final[Mapping[str, Command]] = {
    name: Command(f"tooling.new.commands.{module}", summary)
    for name, module, summary in (
        ("apply", "apply", "carry out a plan that --plan-out saved"),
        ("completion", "completion", "print a completion script for bash, zsh or fish"),
        ("explain", "explain", "say what each file of a unit is for and what is left to do"),
        ("kinds", "kinds", "list what can be generated"),
        ("list", "listing", "list the generated units"),
        ("recover", "recover", "roll back a run that was interrupted"),
        ("rename", "rename", "rename a unit: files, symbols, registry entry, tests, documents"),
        ("schema", "schema", "print the JSON schema of a kind's answers, or of the output of --json"),
        ("status", "status", "compare generated units with their files, entries and templates"),
        ("undo", "undo", "remove a unit; edited files are kept"),
        ("update", "update", "bring a unit to the current template; edits are merged"),
    )
}
QUESTIONING: Final = frozenset({"explain", "update"})
"""Commands that take the questions of the kind that follows them."""


class InvokedModule(Protocol):
    """What a module of `tooling.new.commands` offers."""

    __doc__: str | None

    def configure(self, parser: Parser) -> None:
        """Add the arguments of the command."""

    def run(self, invocation: Invocation) -> Report:
        """Run the command. Raises ToolError when it fails."""
        ...


@dataclass(frozen=True)
class Invocation:
    """What a command is called with. The workspace is opened when it is first needed."""

    command: str
    """The command or kind, as in `areal-new reward`."""
    arguments: Namespace
    kind: KindSource | None = None
    """The kind to generate, or whose questions the command takes."""

    @property
    def repo(self) -> str | None:
        """Value of `--repo`; None without it."""
        return None if self.arguments.repo == Path() else str(self.arguments.repo)

    @cached_property
    def workspace(self) -> Workspace:
        """The repository of `--repo`, else of the current folder, with its settings and kinds."""
        from tooling.new.workspace import open_workspace

        return open_workspace(self.arguments.repo)

    def option(self, name: str) -> Any:
        """Return an option that not every command has; None where it is missing."""
        return getattr(self.arguments, name, None)

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Show a part of the work on a terminal while it lasts, and its seconds with `--verbose`."""
        from tooling.cli.report import progress, say

        started = time.perf_counter()
        with progress(what):
            yield
        if self.arguments.verbose:
            say(f"{what}: {time.perf_counter() - started:.3f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return the exit code."""
    if argv is None:
        gc.disable()  # the process lives for a second and makes few cycles; imports alone would trigger dozens of scans
    words = list(sys.argv[1:] if argv is None else argv)
    call = split(words, VALUE_OPTIONS)
    command = call.word or ("version" if call.version else "help" if call.help else "")
    interrupted = ("interrupted", "nothing was left half done")
    return run_cli(PROGRAM, words, lambda _: answer(call), command=command, interrupted=interrupted)


def answer(call: Call) -> Report:
    """Run a call, and return its report. Raises ToolError."""
    from tooling.cli.report import Report

    if call.version:
        from tooling.cli.toml import version

        number = version()
        return Report(command="version", changing=False, text=f"{PROGRAM} {number}", data={"version": number})
    if call.help and call.word is None:
        problem = None
        try:
            page = top_help(find_kinds(call.value("--repo")))
        except ToolError as error:  # e.g. a damaged pyproject.toml: the rest of the page still helps
            page, problem = top_help({}), error
        return Report(command="help", changing=False, text=page, data={"help": page}, problem=problem)
    if call.word is None:
        raise _no_command(call)
    kind = _find_kind(call)
    module = COMMANDS[call.word].module if call.word in COMMANDS else GENERATE
    parser = command_parser(call.word, kind) if call.word in COMMANDS else kind_parser(cast("KindSource", kind))
    if call.help:
        page = parser.format_help()
        return Report(command="help", changing=False, text=page, data={"help": page})
    arguments = parser.read(call.rest)
    try:
        return _module(module).run(Invocation(call.word, arguments, kind))
    except UsageError as error:
        from tooling.new.answering import name_option

        name_option(error, getattr(arguments, "questions", ()))
        raise


def top_help(kinds: Mapping[str, KindSource]) -> str:
    """Return the page of `areal-new --help`."""
    options = {"-h, --help": "show this page, or that of a kind or command", "-V, --version": "show the version"}
    parts = [
        f"usage: {PROGRAM} KIND NAME [options]\n       {PROGRAM} COMMAND [arguments]",
        _DESCRIPTION,
        listed("kinds", {name: source.summary for name, source in kinds.items()}),
        listed("commands", {name: command.summary for name, command in COMMANDS.items()}),
        listed("options", options),
        f"`{PROGRAM} KIND --help` lists the questions of a kind as options.",
        exit_codes_help(EXIT_CODES),
    ]
    return "\n\n".join(parts) + "\n"


def _no_command(call: Call) -> UsageError:
    """Return what is wrong with a call that names neither command nor kind."""
    from tooling.cli.suggest import did_you_mean

    see = f"see `{PROGRAM} --help`"
    known = (*VALUE_OPTIONS, *_FLAGS, "-h", "-v", "-V")
    for word in before_dashes(call.rest):
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            return UsageError(f"unknown option {option!r}", fix=did_you_mean(option, ("--help", "--version")) or see)
    return UsageError("no command and no kind was given", fix=see)


# ------------------------------------------------------------------------------------------------------------ parsers


def command_parser(name: str, kind: KindSource | None = None) -> Parser:
    """Return the parser of a command. kind: whose questions it takes too."""
    module = _module(COMMANDS[name].module)
    parser = Parser(f"{PROGRAM} {name}", module.__doc__ or "")
    module.configure(parser)
    _add_rest(parser, kind)
    return parser


def kind_parser(kind: KindSource) -> Parser:
    """Return the parser of a kind: its questions and options besides the common ones. Raises UsageError when the
    template is damaged, or a question has the name of a common option."""
    program = f"{PROGRAM} {kind.name}"
    parser = Parser(program, f"Generate {kind.summary}.", usage=f"{program} NAME [options]")
    _module(GENERATE).configure(parser)
    _add_rest(parser, kind, changing=True)
    return parser


def _add_rest(parser: Parser, kind: KindSource | None, *, changing: bool = False) -> None:
    """Add common options and questions: those come last, so that a question of the same name is noticed."""
    questions = parser.add_argument_group(f"questions of {kind.name}") if kind is not None else None
    if changing:
        add_changing(parser)
        add_planning(parser)
        add_testing(parser)
    add_common(parser, verbose="show seconds per phase, and where an error arose")
    if kind is not None and questions is not None:
        from tooling.new.answering import add_questions

        add_questions(questions, kind)


def add_planning(parser: Parser, *, force: bool = True) -> None:
    """Add what commands that compute a plan understand. force: whether `--force` is about nothing else here."""
    group = parser.add_argument_group("options about saved plans")
    group.add_argument(
        "--plan-out", metavar="FILE", help=f"save the plan for `{PROGRAM} apply FILE` instead of applying it"
    )
    if force:
        group.add_argument("--force", action="store_true", help="replace an existing FILE of --plan-out")


def add_testing(parser: Parser) -> None:
    """Add what commands whose result has tests understand."""
    group = parser.add_argument_group("options about tests")
    choice = group.add_mutually_exclusive_group()
    choice.add_argument(
        "--test",
        metavar="{after,staged}",
        type=one_of("after", "staged"),
        help="run the unit's tests after writing (default), or before, on a copy of the repository",
    )
    choice.add_argument("--no-test", action="store_true", help="run no tests")


def _module(name: str) -> InvokedModule:
    return cast("InvokedModule", import_module(name))


# -------------------------------------------------------------------------------------------------------------- kinds


def find_root(repo: str | None) -> Path | None:
    """Return the repository of `--repo`, else of the current folder; None when the current folder is in none. Raises
    UsageError when `repo` does not lead to one."""
    from tooling.cli.git import find_repository

    try:
        return find_repository(Path.cwd() if repo is None else Path(repo)).root
    except UsageError:
        if repo is not None:
            raise
        return None


def find_kinds(repo: str | None) -> Mapping[str, KindSource]:
    """Return the kinds that can be generated here; outside a repository, those that `areal-new` brings along."""
    from tooling.kit.template.kinds import discover

    return discover(find_root(repo))


def _find_kind(call: Call) -> KindSource | None:
    """Return the kind to generate; of a command that takes a kind's questions, that kind."""
    word, repo = cast("str", call.word), call.value("--repo")
    if word in COMMANDS:
        named = split(call.rest, VALUE_OPTIONS).word if word in QUESTIONING else None
        return find_kinds(repo).get(named) if named is not None else None
    kinds = find_kinds(repo)
    if word in kinds:
        return kinds[word]
    from tooling.cli.suggest import did_you_mean
    from tooling.kit.template.kinds import find_kind

    try:
        return find_kind(find_root(repo), word)
    except UsageError as error:
        if error.where:  # a damaged kind; else it is unknown, and might be a command misspelt
            raise
        hint = did_you_mean(word, [*COMMANDS, *kinds])
        known = f"kinds are {', '.join(kinds) or '(none)'}; commands are {', '.join(COMMANDS)}"
        raise UsageError(f"no command and no kind is called {word!r}", fix=hint or known) from error
