"""What the command line understands."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "areal-mcp"
CLIENTS: Final = ("claude", "codex", "opencode")
DEFAULT_MOST: Final = 200_000
EXIT_CODES: Final = {
    0: "done; of a server: the client has gone",
    1: "internal error",
    2: "wrong arguments, no repository, or the SDK is not installed",
    10: "--self-test found something wrong",
    130: "interrupted (Ctrl-C)",
}
_USAGE: Final = f"""\
{PROGRAM} [--repo PATH] [--allow-writes] [--only FAMILY,...] [--timeout SECONDS] [--max-output N]
       {PROGRAM} --list | --self-test [options] [--json]
       {PROGRAM} config {{{",".join(CLIENTS)}}} [options] [--dry-run] [--json]"""
_DESCRIPTION: Final = """\
Serves the commands of this harness as tools of the Model Context Protocol, on standard input and output: an agent
program starts it. `config` prints what to tell that program; nothing is written.

Without --allow-writes every tool only reads: what a command would write is shown by the tool of the name ..._plan."""


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Of the whole command line."""
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    made = _Parser(
        prog=PROGRAM,
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("words", nargs="*", metavar="config CLIENT", help="print the configuration for an agent program")
    does = made.add_mutually_exclusive_group()
    does.add_argument("--list", action="store_true", help="print the tools, and what they cost in tokens")
    does.add_argument("--self-test", action="store_true", help="start a server, call tools, compare with the commands")
    made.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help="the repository (default: here)")
    made.add_argument("--allow-writes", action="store_true", help="also offer the tools that change files")
    made.add_argument(
        "--only",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="FAMILY,...",
        help="offer only tools whose names begin so, e.g. new,review: an agent reads them all (default: all)",
    )
    made.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end every command after this (default: each its own)"
    )
    made.add_argument(
        "--max-output",
        type=int,
        default=DEFAULT_MOST,
        metavar="N",
        help="cut answers to N characters of JSON, and say so (default: %(default)s)",
    )
    made.add_argument("--dry-run", action="store_true", help="of config: the same, since it writes nothing anyway")
    made.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    return made


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments, with `client` taken out of the words. Raises UsageError."""
    arguments = parser().parse_intermixed_args(words)
    arguments.client = _client(arguments.words)
    printing = arguments.list or arguments.self_test or arguments.client
    if arguments.client and (arguments.list or arguments.self_test):
        raise UsageError("config does nothing else", where="config", fix="leave --list and --self-test out")
    for option, given in (("--json", arguments.json), ("--dry-run", arguments.dry_run)):
        if given and not printing:
            raise UsageError("a server does not take it", where=option, fix="it goes with --list, --self-test, config")
    if arguments.timeout is not None and not 0 < arguments.timeout < math.inf:
        raise UsageError("is no time to wait", where=f"--timeout {arguments.timeout:g}", fix="write --timeout 120")
    if arguments.max_output < 1_000:
        raise UsageError("is too little for any answer", where="--max-output", fix="write 1000 or more")
    if arguments.only:
        _check_families(arguments.only)
    return arguments


def _check_families(names: Sequence[str]) -> None:
    from tooling.cli.suggest import did_you_mean
    from tooling.mcp.tools.table import families

    for name in names:
        if name not in families():
            fix = did_you_mean(name, families()) or f"there are {', '.join(families())}"
            raise UsageError("there are no such tools", where=f"--only {name}", fix=fix)


def _client(words: Sequence[str]) -> str:
    if not words:
        return ""
    if words[0] != "config":
        raise UsageError("is no command", where=words[0], fix=f"write `{PROGRAM} config CLIENT`, or nothing to serve")
    if len(words) != 2 or words[1] not in CLIENTS:
        raise UsageError("which client?", where=" ".join(words), fix=f"one of {', '.join(CLIENTS)}")
    return words[1]
