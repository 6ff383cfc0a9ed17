"""What the command line understands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "areal-commit"
EXIT_CODES: Final = {
    0: "nothing wrong (there may be warnings)",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments, settings or revisions; nothing staged to suggest a message for",
    3: "a hook or a table of somebody else's is in the way; it was kept",
    10: "a message does not conform",
    75: "another process is changing the repository",
    130: "interrupted (Ctrl-C); nothing was written",
}
CHECK: Final = """\
Checks one message, or all commits of a range: Conventional Commits 1.0, types, scopes, mood, width, footers.

  areal-commit check .git/COMMIT_EDITMSG       a file, as the commit-msg hook has it ("-": standard input)
  areal-commit check --message "fix: typo"
  areal-commit check origin/main..HEAD         for CI; a fixup! that was forgotten is an error there
  areal-commit check HEAD                      one commit

Merges, git's own reverts and (outside of a range) fixup!, squash! and amend! pass as git writes them."""
SUGGEST: Final = """\
Suggests type, scope and a skeleton of a message from what is staged, with the evidence and what else it could be.
The table of scopes in pyproject.toml decides; without one, what people chose for these folders before."""
CHANGELOG: Final = """\
Prints the commits of a range (default: since the latest tag) as a list of changes, breaking ones first. A commit that
the same range takes back is left out together with the revert."""
LEARN: Final = """\
Makes a table of scopes out of history, for a repository that has none. Prints it; --write adds it to pyproject.toml."""
HOOK: Final = """\
Installs the commit-msg hook, or removes it. It needs no other tool, and is found where core.hooksPath says. A hook that
is there already is kept and runs first; `uninstall` puts it back."""


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    whole = _new(_Parser, PROGRAM, "Checks and suggests commit messages.", f"exit codes:\n{codes}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _check(_command(commands, "check", "check a message or a range", CHECK))
    _suggest(_command(commands, "suggest", "suggest a message for what is staged", SUGGEST))
    _changelog(_command(commands, "changelog", "print history as a list of changes", CHANGELOG))
    _learn(_command(commands, "learn", "make a table of scopes out of history", LEARN))
    _hook(_command(commands, "hook", "install or uninstall the commit-msg hook", HOOK))
    return whole


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError; prints help and raises SystemExit for --help."""
    return parser().parse_args(words)


def _check(command: argparse.ArgumentParser) -> None:
    what = command.add_mutually_exclusive_group()
    what.add_argument("target", nargs="?", metavar="FILE | BASE..HEAD", help="what to check")
    what.add_argument("--message", metavar="TEXT", help="the message itself")
    command.add_argument("--strict", action="store_true", help="warnings count as errors")
    command.add_argument(
        "--all", action="store_true", help="also commits that the settings exempt: `since`, `accepted`"
    )


def _suggest(command: argparse.ArgumentParser) -> None:
    command.add_argument("--type", metavar="TYPE", help="this type, instead of the suggested one")
    command.add_argument("--scope", metavar="SCOPE", help='this scope ("": none), instead of the suggested one')
    command.add_argument("--message-only", action="store_true", help="print only the skeleton of the message")


def _changelog(command: argparse.ArgumentParser) -> None:
    command.add_argument("range", nargs="?", metavar="BASE..HEAD", help="default: latest tag..HEAD, or all")
    command.add_argument("--title", metavar="TEXT", default="", help="heading (default: the range)")
    command.add_argument("--all-types", action="store_true", help="style, test, build, ci and chore too")


def _learn(command: argparse.ArgumentParser) -> None:
    command.add_argument("--range", default="HEAD", metavar="BASE..HEAD", help="history to learn from (default: all)")
    command.add_argument("--min-commits", type=int, default=3, metavar="N", help="leave out rarer scopes (default: 3)")
    command.add_argument("--write", action="store_true", help="add the table to pyproject.toml")
    _writing(command)


def _hook(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=["install", "uninstall"])
    command.add_argument("--shared", action="store_true", help="also where core.hooksPath serves other repositories")
    _writing(command)


def _writing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="show what would be done; write nothing")
    command.add_argument("--diff", action="store_true", help="show unified diffs")


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


def _new(kind: type[_Parser], program: str, description: str, epilog: str) -> _Parser:
    return kind(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
