"""What the command line understands."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "areal-harness"
EXIT_CODES: Final = {
    0: "done, or nothing to do; all checks passed",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments or settings, or a source that no platform could be given",
    3: "a file of somebody else, or a link, stands where a generated one belongs",
    4: "generated files were edited by hand; they were kept",
    10: "sync --check: not in step; check: findings; doctor: a client sees something else than the sources; "
    "eval: a task is not done",
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
    _evaluation(
        _command(commands, "eval", "let an agent do the tasks of skills in scratch copies, and judge what is left")
    )
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError."""
    arguments = parser().parse_args(words)
    if arguments.command == "sync":
        if not 0 <= arguments.wait < threading.TIMEOUT_MAX:
            raise UsageError("is no number of seconds", where=f"--wait {arguments.wait:g}", fix="write --wait 10")
        if arguments.check and arguments.overwrite:
            raise UsageError("--check writes nothing", where="--overwrite", fix="leave one of the two out")
    if arguments.command == "eval" and not (
        arguments.agent or arguments.dry_run or arguments.prepare or arguments.judge
    ):
        fix = "name one with --agent (claude, codex, opencode or a command line), or look first with --dry-run"
        raise UsageError("no agent to do the tasks", where="--agent", fix=fix)
    return arguments


def _evaluation(command: argparse.ArgumentParser) -> None:
    command.add_argument("skills", nargs="*", metavar="SKILL", help="only the tasks of these skills (default: all)")
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--agent", metavar="AGENT", help="claude, codex, opencode, or a command line that takes a prompt last"
    )
    what.add_argument(
        "--prepare", type=Path, metavar="FOLDER", help="only make the workspace of one task, to work in it"
    )
    what.add_argument("--judge", type=Path, metavar="FOLDER", help="only judge a workspace that --prepare made")
    what.add_argument("--dry-run", action="store_true", help="say what would be done and judged; start nothing")
    command.add_argument("--id", type=int, metavar="N", help="only the task of this number")
    command.add_argument("--baseline", action="store_true", help="do every task once more without its skill")
    command.add_argument("--quick", action="store_true", help="leave out checks that take more than a few seconds")
    command.add_argument("--keep", type=Path, metavar="FOLDER", help="keep workspaces, outputs and grading.json here")
    command.add_argument(
        "--clients", type=Path, metavar="FOLDER", help="look for the agent's program in this folder first"
    )
    command.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="per task (default: 1800)")


def _command(commands: argparse._SubParsersAction[_Parser], name: str, summary: str) -> argparse.ArgumentParser:
    found = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    found.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help="the repository (default: here)")
    found.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    return found
