"""The parser of each command and kind, and the way from a command line to the command that answers it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.new.cli.answering import add_questions, name_option
from tooling.new.cli.arguments import PROGRAM, Parser, add_changing, add_common, add_planning, add_testing, split
from tooling.new.cli.command_table import COMMANDS
from tooling.new.cli.invocation import Invocation
from tooling.new.cli.lookup import find_kinds, find_root

if TYPE_CHECKING:
    from tooling.cli.report import Report
    from tooling.kit.template.kinds import KindSource
    from tooling.new.cli.arguments import Call

GENERATE: Final = "generate"
"""Module that answers for every kind."""
QUESTIONING: Final = frozenset({"explain", "update"})
"""Commands that take the questions of the kind that follows them."""


class _CommandModule(Protocol):
    """What a module of `tooling.new.commands` offers."""

    __doc__: str | None

    def configure(self, parser: Parser) -> None: ...

    def run(self, invocation: Invocation) -> Report: ...


def command_parser(name: str, kind: KindSource | None = None) -> Parser:
    """The parser of a command. kind: whose questions it takes too."""
    module = _module(COMMANDS[name].module)
    parser = Parser(f"{PROGRAM} {name}", _description(module))
    module.configure(parser)
    questions = parser.add_argument_group(f"questions of {kind.name}") if kind is not None else None
    add_common(parser)
    if kind is not None and questions is not None:
        add_questions(questions, kind)
    return parser


def kind_parser(kind: KindSource) -> Parser:
    """The parser of a kind: its questions and options besides the common ones. Raises UsageError when the template is
    damaged, or a question has the name of a common option."""
    program = f"{PROGRAM} {kind.name}"
    parser = Parser(program, f"Generate {kind.summary}.", usage=f"{program} NAME [options]")
    _module(GENERATE).configure(parser)
    questions = parser.add_argument_group(f"questions of {kind.name}")
    add_changing(parser)
    add_planning(parser)
    add_testing(parser)
    add_common(parser)
    add_questions(questions, kind)
    return parser


def call_parser(call: Call) -> Parser:
    """The parser of a call that names a command or a kind."""
    if call.word in COMMANDS:
        return command_parser(call.word, _questioned(call))
    return kind_parser(_find_kind(call))


def invoke(call: Call, *, as_json: bool) -> Report:
    """Carry out a call that names a command or a kind. Raises ToolError when it fails."""
    word = cast("str", call.word)
    if word in COMMANDS:
        kind = _questioned(call)
        return _run(COMMANDS[word].module, command_parser(word, kind), call, as_json=as_json, kind=kind)
    kind = _find_kind(call)
    return _run(GENERATE, kind_parser(kind), call, as_json=as_json, kind=kind)


def _run(module: str, parser: Parser, call: Call, *, as_json: bool, kind: KindSource | None) -> Report:
    arguments = parser.read(call.rest)
    try:
        return _module(module).run(Invocation(cast("str", call.word), arguments, as_json, kind))
    except UsageError as error:
        name_option(error, getattr(arguments, "questions", ()))
        raise


def _questioned(call: Call) -> KindSource | None:
    """The kind that a command is about, when it takes that kind's questions as options."""
    if call.word not in QUESTIONING:
        return None
    named = split(call.rest).word
    return find_kinds(call.repo).get(named) if named is not None else None


def _find_kind(call: Call) -> KindSource:
    from tooling.kit.template.kinds import find_kind

    word = cast("str", call.word)
    kinds = find_kinds(call.repo)
    if word in kinds:
        return kinds[word]
    try:
        return find_kind(find_root(call.repo), word)
    except UsageError as error:
        if error.where:  # a damaged kind; else it is unknown, and might be a command misspelt
            raise
        hint = did_you_mean(word, [*COMMANDS, *kinds])
        known = f"kinds are {', '.join(kinds) or '(none)'}; commands are {', '.join(COMMANDS)}"
        raise UsageError(f"no command and no kind is called {word!r}", fix=hint or known) from error


def _module(name: str) -> _CommandModule:
    return cast("_CommandModule", import_module(f"tooling.new.commands.{name}"))


def _description(module: _CommandModule) -> str:
    return (module.__doc__ or "").strip()
