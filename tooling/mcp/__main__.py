"""Serves the commands of the harness as tools of the Model Context Protocol: the program `areal-mcp`."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError, exit_codes_help
from tooling.cli.parser import Parser, add_common, seconds, split
from tooling.cli.run import run_cli
from tooling.mcp.tools.records import ANSWER_LENGTH, LEAST_ANSWER_LENGTH

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.report import Report

PROGRAM: Final = "areal-mcp"
CLIENTS: Final = ("claude", "codex", "opencode")
EXIT_CODES: Final = (0, 1, 2, 10, 130)
_USAGE: Final = f"""\
{PROGRAM} [--repo PATH] [--allow-writes] [--only FAMILY,...] [--timeout SECONDS] [--max-output N]
       {PROGRAM} --list | --self-test [options] [--json]
       {PROGRAM} config {{{",".join(CLIENTS)}}} [options] [--dry-run] [--json]"""
_DESCRIPTION: Final = """\
Serves the commands of this harness as tools of the Model Context Protocol, on standard input and output: an agent
program starts it. `config` prints what to tell that program; nothing is written.

Without --allow-writes every tool only reads: what a command would write is shown by the tool of the name ..._plan."""


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(PROGRAM, _DESCRIPTION, usage=_USAGE, epilog=exit_codes_help(EXIT_CODES))
    parser.add_argument("words", nargs="*", metavar="config CLIENT", help="print how an agent program starts it")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--list", action="store_true", help="print the tools, and what they cost in tokens")
    does.add_argument("--self-test", action="store_true", help="start a server, call tools, compare with the commands")
    parser.add_argument("--allow-writes", action="store_true", help="also offer the tools that change files")
    parser.add_argument(
        "--only",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="FAMILY,...",
        help="offer only tools whose names begin so, e.g. new,review: an agent reads them all (default: all)",
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="end every command after this (default: each its own)"
    )
    parser.add_argument(
        "--max-output",
        type=int,
        default=ANSWER_LENGTH,
        metavar="N",
        help="characters of an answer; of a longer one the tool `more` has the pages (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="of config: the same, since it writes nothing anyway")
    add_common(parser)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments, with `client` taken out of the words. Raises UsageError."""
    arguments = make_parser().read(words)
    given, arguments.client = arguments.words, ""
    if given:
        if given[0] != "config":
            fix = f"write `{PROGRAM} config CLIENT`, or nothing to serve"
            raise UsageError("is not a command", where=given[0], fix=fix)
        if len(given) != 2 or given[1] not in CLIENTS:
            raise UsageError("which client?", where=" ".join(given), fix=f"one of {', '.join(CLIENTS)}")
        if arguments.list or arguments.self_test:
            raise UsageError("config does nothing else", where="config", fix="leave --list and --self-test out")
        arguments.client = given[1]
    printing = arguments.list or arguments.self_test or arguments.client
    for option, is_given in (("--json", arguments.json), ("--dry-run", arguments.dry_run)):
        if is_given and not printing:
            raise UsageError("a server does not take it", where=option, fix="it goes with --list, --self-test, config")
    if arguments.timeout == 0:
        raise UsageError("is not a time to wait", where="--timeout 0", fix="write --timeout 120")
    if arguments.max_output < LEAST_ANSWER_LENGTH:
        fix = f"write {LEAST_ANSWER_LENGTH} or more"
        raise UsageError("is too little for any answer", where="--max-output", fix=fix)
    if arguments.only:
        from tooling.cli.suggest import did_you_mean
        from tooling.mcp.tools.table import TOOLS, family_of

        known = tuple(dict.fromkeys(map(family_of, TOOLS)))
        for name in arguments.only:
            if name not in known:
                fix = did_you_mean(name, known) or f"there are {', '.join(known)}"
                raise UsageError("there are no such tools", where=f"--only {name}", fix=fix)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(PROGRAM, words, lambda _: run(words), interrupted=("interrupted", ""))


def run(words: Sequence[str]) -> Report | None:
    """Serve, or print and end. A server speaks through standard output by itself, and returns no report."""
    from tooling.cli.report import Report

    if split(words).help:
        page = make_parser().format_help()
        return Report(command="help", changing=False, text=page, data={"help": page})
    arguments = parse(words)
    if arguments.client:
        from tooling.mcp.commands.config import run as configure

        return configure(arguments)
    if arguments.list:
        from tooling.mcp.commands.list import run as listed

        return listed(arguments)
    if not arguments.self_test and (sys.stdin is None or sys.stdin.isatty()):
        fix = f"`{PROGRAM} config CLIENT` prints how an agent program starts it; see --help"
        raise UsageError("speaks with a program, not with a person", where="standard input", fix=fix)
    if find_spec("mcp") is None:
        raise UsageError("the SDK of the protocol is not installed", where="mcp", fix="pip install 'areal[mcp]'")
    if arguments.self_test:
        from tooling.mcp.commands.self_test import run as tested

        return tested(arguments)
    from tooling.cli.git import find_repository
    from tooling.mcp.server import ServerSettings, serve

    settings = ServerSettings(
        root=find_repository(arguments.repo).root.resolve(),
        writes=arguments.allow_writes,
        only=arguments.only,
        timeout=arguments.timeout,
        most=arguments.max_output,
    )
    # The thread that reads standard input cannot be interrupted, so Ctrl-C ends the process as such; commands that run
    # lose their lifeline, roll back and end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(settings)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
