"""What the two command lines understand."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

UPGRADE: Final = "areal-upgrade-deps"
AUDIT: Final = "areal-audit"
COMMANDS: Final = {
    "impact": "what would break, before anything is touched",
    "latest": "for each watched package: the newest version that audits clean, and the first that does not",
}
EXIT_CODES: Final = {
    0: "compatible: nothing found (the share of uses that could not be judged is printed)",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments, policy or checklist",
    3: "no set of versions satisfies all requirements, or a file changed meanwhile",
    4: "a release or its source could not be had",
    10: "something breaks",
    11: "only warnings",
    75: "another process is changing the repository",
    130: "interrupted (Ctrl-C); nothing was written",
}
AUDIT_EXIT_CODES: Final = {
    0: "all checklists are true",
    1: EXIT_CODES[1],
    2: EXIT_CODES[2],
    4: EXIT_CODES[4],
    10: "a checklist is missing, stale or wrong; `areal-audit --write` puts it right",
    75: EXIT_CODES[75],
    130: EXIT_CODES[130],
}


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def upgrade_parser() -> argparse.ArgumentParser:
    """Of `areal-upgrade-deps`."""
    parser = _parser(
        UPGRADE,
        f"{UPGRADE} PACKAGE==VERSION[@VARIANT] ... [options]\n       {UPGRADE} impact PACKAGE==VERSION ... [options]\n"
        f"       {UPGRADE} latest [PACKAGE ...] [options]",
        "Moves dependencies to new versions and finds each place of the code that these break, without importing them.",
        EXIT_CODES,
        "commands:\n" + "\n".join(f"  {name:<8}{text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument("requests", nargs="*", metavar="PACKAGE==VERSION", help=argparse.SUPPRESS)
    what = parser.add_argument_group("what is done")
    what.add_argument(
        "--from",
        dest="old",
        action="append",
        default=[],
        metavar="OLD",
        help="version to compare with (PACKAGE==OLD if several are upgraded; default: what the repository declares)",
    )
    what.add_argument("--audit-only", action="store_true", help="change nothing, audit only (as `impact`)")
    what.add_argument("--fix", action="store_true", help="write the changes that are certain, proven by a second audit")
    what.add_argument("--no-lock", dest="lock", action="store_false", help="do not resolve")
    what.add_argument(
        "--summary", metavar="FILE", default="upgrade-summary.md", help="Markdown report (default: %(default)s)"
    )
    what.add_argument("--no-summary", dest="summary", action="store_const", const="", help="write no report")
    _shared(parser)
    shown = parser.add_argument_group("how it is shown")
    shown.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0, for code review")
    shown.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    shown.add_argument("--info", action="store_true", help="list findings of severity info too")
    shown.add_argument("--diff", action="store_true", help="show unified diffs")
    return parser


def audit_parser() -> argparse.ArgumentParser:
    """Of `areal-audit`."""
    parser = _parser(
        AUDIT,
        f"{AUDIT} [PACKAGE ...] [--check | --write] [options]",
        "Compares the checklists of watched dependencies (skills/upgrade-deps/checklists) with what the code does.",
        AUDIT_EXIT_CODES,
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these (default: all that are watched)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="report only, for CI (default)")
    what.add_argument("--write", action="store_true", help="write what is missing or wrong; notes of people are kept")
    _shared(parser)
    parser.add_argument("--diff", action="store_true", help="show unified diffs")
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError."""
    return parser.parse_args(words)


def _parser(
    program: str, usage: str, description: str, codes: dict[int, str], more: str = ""
) -> argparse.ArgumentParser:
    listed = "\n".join(f"  {code:<5}{meaning}" for code, meaning in codes.items())
    return _Parser(
        prog=program,
        usage=usage,
        description=description,
        epilog="\n\n".join(filter(None, (more, f"exit codes:\n{listed}"))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _shared(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where")
    where.add_argument("--repo", type=Path, default=Path(), metavar="PATH", help="the repository (default: here)")
    where.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="where sources are kept (default: the user's cache)"
    )
    where.add_argument(
        "--offline",
        nargs="?",
        const="",
        metavar="CACHE",
        help="use no network: only what is cached, in the folder CACHE if it is given",
    )
    writing = parser.add_argument_group("writing")
    writing.add_argument("--dry-run", action="store_true", help="show what would be done; write nothing")
    writing.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="for a lock (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
