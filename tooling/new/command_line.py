"""The command line of `areal-new`: its commands and kinds, their parsers, and the call of one.

    parser = kind_parser(kind)                    # NAME, --style {exact,boxed}, --strict/--no-strict, --from PATH, ...
    answers, options = read_answers(parser.read(["digits", "--style", "boxed"]))

Texts become typed values here; whether a value is allowed is `tooling.kit.template.questions.check_answers`' matter.
Start-up is light: this page and the list of kinds need nothing but the standard library and a look at folders; what a
command needs is imported when it runs (tests/tooling/new/test_start_up.py keeps the list of what may be loaded).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tooling.cli.errors import ToolError, UsageError, exit_codes_help
from tooling.cli.parser import Command, Parser, add_changing, add_common, information, listed, one_of, split
from tooling.cli.run import before_dashes, run_cli

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from tooling.cli.parser import CommandLine
    from tooling.cli.report import Report
    from tooling.kit.template.kinds import KindSource
    from tooling.kit.template.questions import Question
    from tooling.new.change import Invocation

PROGRAM: Final = "areal-new"
EXIT_CODES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 14, 75, 130)
VALUE_OPTIONS: Final = ("--repo", "--wait", "--test", "--answers", "--plan-out")
"""Shared options that are followed by a value; they may stand before the command."""
_FLAGS: Final = ("--diff", "--dry-run", "--force", "--help", "--json", "--no-test", "--verbose", "--version")
"""Shared options without one; -h, -v and -V besides."""
_DESCRIPTION: Final = """\
Generates a unit (a reward, a dataset, a workflow, ...) with its test, registers it, and proves it; explains, updates,
renames and undoes it later. A run writes everything it says, or nothing; a unit whose tests have not passed is written,
not proven, and `areal-new status` says so."""

_GENERATE: Final = "tooling.new.commands.generate"
"""Module that answers for every kind."""
COMMANDS: Final[Mapping[str, Command]] = {
    name: Command(f"tooling.new.commands.{module}", summary)
    for name, module, summary in (
        ("apply", "apply", "apply a plan that --plan-out saved"),
        ("completion", "completion", "print a completion script for bash, zsh or fish"),
        ("explain", "explain", "say what each file of a unit is for and what is left to do"),
        ("kinds", "kinds", "list what can be generated"),
        ("list", "listing", "list the generated units"),
        ("prove", "prove", "run the tests of units that are not proven, and note what came out"),
        ("recover", "recover", "roll back a run that was interrupted"),
        ("rename", "rename", "rename a unit: files, symbols, registry entry, tests, documents"),
        ("schema", "schema", "print the JSON schema of a kind's answers, or of the output of --json"),
        ("status", "status", "compare generated units with their files, entries and templates"),
        ("undo", "undo", "remove a unit; edited files are kept"),
        ("update", "update", "bring a unit to the current template; edits are merged"),
    )
}
_QUESTIONING: Final = frozenset({"explain", "update"})
"""Commands that take the questions of the kind that follows them."""
_ELSEWHERE: Final = ("--all",)
"""Options of `update`, which takes the questions of a kind too."""
_ANSWER, _OPTION = "answer ", "option "
"""Start of the names in a Namespace; with the space they cannot meet the name of another option."""
_STRUCTURED: Final = ("json", "yaml")


class InvokedModule(Protocol):
    """What a module of `tooling.new.commands` offers."""

    __doc__: str | None

    def configure(self, parser: Parser) -> None:
        """Add the arguments of the command."""

    def run(self, invocation: Invocation) -> Report:
        """Run the command. Raises ToolError when it fails."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return the exit code."""
    if argv is None:
        gc.disable()  # the process lives for a second and makes few cycles; imports alone would trigger dozens of scans
    words = list(sys.argv[1:] if argv is None else argv)
    call = split(words, VALUE_OPTIONS)
    command = call.word or ("version" if call.version else "help" if call.help else "")
    interrupted = ("interrupted; no file is half written", "`areal-new status` says what is there")
    return run_cli(PROGRAM, words, lambda _: answer(call), command=command, interrupted=interrupted)


def answer(call: CommandLine) -> Report:
    """Run a call, and return its report. Raises ToolError."""
    if call.word is None:
        return _answer_without_command(call)
    kind = _find_kind(call)
    module = COMMANDS[call.word].module if call.word in COMMANDS else _GENERATE
    parser = command_parser(call.word, kind) if call.word in COMMANDS else kind_parser(cast("KindSource", kind))
    page = information(PROGRAM, call, parser.format_help)
    if page is not None:
        return page
    from tooling.new.change import Invocation

    arguments = parser.read(call.rest)
    try:
        return _module(module).run(Invocation(call.word, arguments, kind))
    except UsageError as error:  # about a question: the option is what a person knows
        questions = getattr(arguments, "questions", ())
        if any(error.where == question.name for question in questions if not question.computed):
            error.where = flag(error.where)
        raise


def _answer_without_command(call: CommandLine) -> Report:
    """Return the version or the page of help. Raises UsageError for any other call that names no command or kind."""
    problem = None
    try:
        kinds = find_kinds(call.value("--repo")) if call.help and not call.version else {}
    except ToolError as error:  # e.g. a damaged pyproject.toml: the rest of the page still helps
        kinds, problem = {}, error
    page = information(PROGRAM, call, lambda: top_help(kinds))
    if page is not None:
        return replace(page, problem=problem)
    from tooling.cli.suggest import did_you_mean

    see = f"see `{PROGRAM} --help`"
    known = (*VALUE_OPTIONS, *_FLAGS, "-h", "-v", "-V")
    for word in before_dashes(call.rest):
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            raise UsageError(f"unknown option {option!r}", fix=did_you_mean(option, ("--help", "--version")) or see)
    raise UsageError("no command and no kind was given", fix=see)


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
    _module(_GENERATE).configure(parser)
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
        _add_questions(questions, kind)


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
    choice.add_argument("--no-test", action="store_true", help="run no tests: the unit is written, not proven")


def _module(name: str) -> InvokedModule:
    return cast("InvokedModule", import_module(name))


# ---------------------------------------------------------------------------------------------------------- questions


def flag(name: str) -> str:
    """Return the option of a question: "answer_column" -> "--answer-column"."""
    return f"--{name.replace('_', '-')}"


def _add_questions(group: argparse._ArgumentGroup, kind: KindSource) -> None:
    """Add an option for each question and each manifest option. `group` belongs to a parser that has all its other
    options: a question of the same name raises UsageError."""
    from tooling.kit.template.manifest import load_manifest
    from tooling.kit.template.questions import load_questions

    questions = load_questions(kind.folder)
    group.set_defaults(questions=questions)
    added: list[tuple[str, str, dict[str, Any]]] = []
    for question in questions:
        if question.computed:  # by the template; not for a caller to answer
            continue
        about: dict[str, Any] = {"dest": _ANSWER + question.name, "help": _help(question)}
        if question.type == "bool" and not question.multiselect:
            about |= {"action": argparse.BooleanOptionalAction, "default": None}
        elif question.choices:
            about["metavar"] = "{" + ",".join(map(str, question.choices)) + "}"
        else:
            about["metavar"] = "JSON|@FILE" if question.type in _STRUCTURED else question.type.upper()
        added.append((f"question {question.name!r}", flag(question.name), about))
    for option in load_manifest(kind.folder).options:
        value = {"metavar": option.metavar} if option.metavar else {"action": "store_const", "const": ""}
        about = {"dest": _OPTION + option.name, "help": option.help, **value}
        added.append((f"option {option.name!r}", f"--{option.name}", about))
    for what, name, about in added:
        try:
            if name in _ELSEWHERE:
                raise argparse.ArgumentError(None, "an option of another command")
            group.add_argument(name, **{**about, "help": about["help"].replace("%", "%%")})
        except argparse.ArgumentError as error:
            raise UsageError(
                f"the {what} of the template would become {name}, which areal-new uses itself",
                where=os.fspath(kind.folder / "copier.yml"),
                fix="give it another name in the template",
            ) from error


def _help(question: Question) -> str:
    """Say when it is asked, what it is about, and what holds without an answer.

    Example: "[style regex] The pattern (default: .+)".
    """
    from tooling.kit.template.questions import ELSE, occasion

    when, value = occasion(question.when), question.default
    asked_when = f"[{when}] " if when else ""
    if question.required:
        default = "required" + (" where it is asked" if when == ELSE else f" for {when}" if when else "")
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        default = "default: depends on other answers"
    else:
        default = f"default: {value if isinstance(value, str) and value else json.dumps(value, default=str)}"
    return f"{asked_when}{question.help} ({default})".strip()


def read_answers(arguments: Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Return given answers, typed, and given manifest options, of a parser of a kind. Options win over the file of
    `--answers`. Raises UsageError naming the option whose text is not a value of the question's type."""
    from tooling.kit.template.questions import parse_answer

    answers = _answers_file(arguments.answers) if arguments.answers is not None else {}
    questions = {question.name: question for question in getattr(arguments, "questions", ())}
    options = {}
    for name, value in vars(arguments).items():
        if value is None:
            continue
        if name.startswith(_ANSWER):
            question, text = questions[name.removeprefix(_ANSWER)], value
            if question.type in _STRUCTURED and isinstance(value, str) and value.startswith("@"):
                text = _read(value[1:], flag(question.name))
            answers[question.name] = parse_answer(question, text) if isinstance(text, str) else text
        elif name.startswith(_OPTION):
            options[name.removeprefix(_OPTION)] = value
    return answers, options


def _answers_file(name: str) -> dict[str, Any]:
    """Return the object of answers in a JSON file ("-": stdin). Raises UsageError for anything else."""
    text = sys.stdin.read() if name == "-" else _read(name, "--answers")
    try:
        answers = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}", where="--answers", fix="write an object of answers") from error
    if not isinstance(answers, dict):
        raise UsageError(
            f"{name} holds a {type(answers).__name__}, expected an object",
            where="--answers",
            fix='write e.g. {"style": "exact"}',
        )
    return answers


def _read(name: str, where: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name} cannot be read: {reason}", where=where, fix="name a readable text file") from error


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


def _find_kind(call: CommandLine) -> KindSource | None:
    """Return the kind to generate; of a command that takes a kind's questions, that kind."""
    word, repo = cast("str", call.word), call.value("--repo")
    if word in COMMANDS:
        named = split(call.rest, VALUE_OPTIONS).word if word in _QUESTIONING else None
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
