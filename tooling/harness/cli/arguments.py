"""What the command line understands."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "areal-harness"
EXIT_CODES: Final = {
    0: "done, or nothing to do; all checks passed",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments or settings, or a source that no platform could be given",
    3: "a file of somebody else, or a link, stands where a generated one belongs",
    4: "generated files were edited by hand; they were kept",
    10: "sync --check: not in step; check: findings; doctor: a client sees something else than the sources",
    75: "another process is changing the repository",
    130: "interrupted (Ctrl-C); nothing was written",
}


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Of the whole command line."""
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    top = _Parser(
        prog=PROGRAM,
        description="Compiles skills/ and agents/ for every agent platform, and checks that what they say exists.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    sync = _command(commands, "sync", "write the platforms' copies; files of others and edits by hand are kept")
    sync.add_argument("--check", action="store_true", help="write nothing; exit 10 when a copy is not in step (CI)")
    sync.add_argument("--overwrite", action="store_true", help="replace copies that were edited by hand, too")
    sync.add_argument("--dry-run", action="store_true", help="show what would be done; write nothing, take no lock")
    sync.add_argument("--diff", action="store_true", help="show unified diffs; of edited copies, how they differ")
    sync.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="for a lock (default: 10)")
    check = _command(commands, "check", "check every path, symbol, command and option that the pages mention; sizes")
    check.add_argument("pages", nargs="*", metavar="PAGE", help="only these files (default: all sources and AGENTS.md)")
    check.add_argument("--no-run", action="store_true", help="start no process: options and commands are not checked")
    _command(commands, "list", "skills and experts, their size in tokens, and where each is compiled to")
    doctor = _command(commands, "doctor", "ask the agent programs that are installed what they see here")
    doctor.add_argument("--clients", type=Path, metavar="FOLDER", help="look for the programs in this folder first")
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError."""
    arguments = parser().parse_args(words)
    if arguments.command == "sync":
        if not 0 <= arguments.wait < threading.TIMEOUT_MAX:
            raise UsageError("is no number of seconds", where=f"--wait {arguments.wait:g}", fix="write --wait 10")
        if arguments.check and arguments.overwrite:
            raise UsageError("--check writes nothing", where="--overwrite", fix="leave one of the two out")
    return arguments


def _command(commands: argparse._SubParsersAction[_Parser], name: str, summary: str) -> argparse.ArgumentParser:
    found = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    found.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help="the repository (default: here)")
    found.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    return found
