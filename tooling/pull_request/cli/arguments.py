"""What the command line understands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "areal-pr"
EXIT_CODES: Final = {
    0: "done, or nothing to do",
    1: "internal error, or the disk refused a write",
    2: "wrong arguments, or a state that forbids to begin (uncommitted work, the base itself, nothing to propose)",
    3: "commits or files of somebody else's are in the way; they were kept",
    5: "the branch conflicts with its base; nothing was changed",
    10: "the title does not conform",
    11: "the remote cannot be reached, or refused the push",
    12: "the branch is pushed, and `gh` refused the pull request",
    75: "another process is at work in this work tree",
    130: "interrupted (Ctrl-C); run it again, it goes on",
}
CREATE: Final = """\
Brings the branch onto its base, joins its commits into one, pushes it and opens a pull request; an open one is updated.

  areal-pr create --dry-run             every step with what it needs, does and how it is taken back
  areal-pr create --draft
  areal-pr create --yes                 agree that commits on the remote are replaced (asked at a terminal)
  areal-pr create --no-push             make the commit, and stop there

Conflicts are found before anything changes. What the branch was is kept: `areal-pr restore` takes it back. A run that
was killed is ended or taken back by the next one."""
BODY: Final = """\
Prints the text of the pull request, by what was fetched last. Writes and asks nothing."""
STATUS: Final = """\
Says where the branch stands: commits, base, remote, pull request, backups, and whether a run was interrupted."""
RESTORE: Final = """\
Brings the branch that is checked out back to a backup (default: the newest that differs), with index and work tree.
What it is now is kept as a new backup, so that this can be taken back too. The remote is left alone."""
BACKUPS: Final = """\
Lists what is kept of the branch that is checked out. Backups are references below refs/areal-pr/backup: nothing
collects them, and no push sends them."""


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    whole = _Parser(
        prog=PROGRAM,
        description="Makes a branch ready, pushes it and opens the pull request; nothing is lost on the way.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _create(_command(commands, "create", "make ready, push, open or update the pull request", CREATE))
    _body(_command(commands, "body", "print the text of the pull request", BODY))
    _status(_command(commands, "status", "say where the branch stands", STATUS))
    _restore(_command(commands, "restore", "bring the branch back to a backup", RESTORE))
    _backups(_command(commands, "backups", "list the backups", BACKUPS))
    return whole


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError; prints help and raises SystemExit for --help."""
    return parser().parse_args(words)


def _create(command: argparse.ArgumentParser) -> None:
    _wishes(command)
    command.add_argument("--draft", action="store_true", help="open it as a draft")
    command.add_argument("--no-push", action="store_true", help="stop when the commit is made")
    command.add_argument("--yes", action="store_true", help="agree that commits on the remote are replaced")
    command.add_argument(
        "--replace-body", action="store_true", help="also where somebody edited the text of the open pull request"
    )
    command.add_argument(
        "--untracked",
        choices=["warn", "refuse"],
        default="warn",
        help="what files mean that git does not know (default: warn)",
    )
    _writing(command)


def _body(command: argparse.ArgumentParser) -> None:
    _wishes(command)


def _status(command: argparse.ArgumentParser) -> None:
    command.add_argument("--base", default="", metavar="BRANCH", help="the base (default: that of the remote)")
    command.add_argument("--remote", default="", metavar="NAME", help="the remote (default: that of the branch)")
    command.add_argument("--offline", action="store_true", help="do not ask `gh` for the pull request")


def _restore(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", nargs="?", default="", metavar="ID", help="which one (`areal-pr backups`)")
    _writing(command)


def _backups(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all", action="store_true", help="of all branches")


def _wishes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--base", default="", metavar="BRANCH", help="what to merge into; REMOTE/BRANCH where it is on another remote"
    )
    command.add_argument("--remote", default="", metavar="NAME", help="where to push (default: that of the branch)")
    command.add_argument("--title", default="", metavar="TEXT", help="type(scope): subject, for commit and request")
    command.add_argument("--no-squash", action="store_true", help="keep the commits as they are")
    command.add_argument("--no-rebase", action="store_true", help="stay where the branch began")
    command.add_argument("--test-report", type=Path, metavar="FILE", help="JUnit XML of the tests that ran")
    command.add_argument("--audit", type=Path, metavar="FILE", help="JSON of `areal-upgrade-deps impact`")


def _writing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="show the steps; change nothing")
    command.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="for another run to end")


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, purpose: str, description: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=purpose,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help="the repository (default: here)")
    command.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
    return command
