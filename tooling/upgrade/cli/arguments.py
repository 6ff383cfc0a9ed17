"""What the two command lines understand."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

UPGRADE: Final = "areal-upgrade-deps"
AUDIT: Final = "areal-audit"
SUMMARY: Final = "upgrade-summary.md"
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
    3: "a lock file is damaged, or a file changed meanwhile",
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
    what.add_argument("--summary", metavar="FILE", help=f"Markdown report, inside the repository (default: {SUMMARY})")
    what.add_argument("--no-summary", dest="summary", action="store_const", const="", help="write no report")
    _shared(parser)
    shown = parser.add_argument_group("how it is shown")
    format_ = shown.add_mutually_exclusive_group()
    _json(format_)
    format_.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0, for code review")
    format_.add_argument("--markdown", action="store_true", help="print the audit as Markdown, for a pull request")
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
    shown = parser.add_argument_group("how it is shown")
    _json(shown)
    shown.add_argument("--diff", action="store_true", help="show unified diffs")
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments, options and others in any order. Raises UsageError."""
    arguments = parser.parse_intermixed_args(words)
    if not 0 <= arguments.wait < threading.TIMEOUT_MAX:
        raise UsageError("is no number of seconds to wait", where=f"--wait {arguments.wait:g}", fix="write --wait 10")
    return arguments


def parse_upgrade(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Those of `areal-upgrade-deps`, with `command` taken out of `requests`. Raises UsageError, also for options that
    a command would silently ignore."""
    arguments = parse(parser, words)
    if arguments.offline and "==" in arguments.offline and not Path(arguments.offline).exists():
        # --offline takes a folder, and what stands behind it is none: it is a package.
        arguments.requests.append(arguments.offline)
        arguments.offline = ""
    named = arguments.requests[:1]
    arguments.command = named[0] if named and named[0] in COMMANDS else ""
    del arguments.requests[: bool(arguments.command)]
    if arguments.command == "impact":
        arguments.audit_only = True
    ignored = _ignored(arguments)
    if ignored:
        option, what = ignored
        raise UsageError(f"{what} does not take {option}", where=option, fix=f"leave it out; see `{UPGRADE} --help`")
    if arguments.summary is None:
        arguments.summary = SUMMARY
    if arguments.command != "latest" and not arguments.requests:
        raise UsageError("nothing to upgrade was named", fix=f"write `{UPGRADE} PACKAGE==VERSION`; see --help")
    return arguments


def _ignored(arguments: argparse.Namespace) -> tuple[str, str] | None:
    """An option that makes no sense with the command, and the command."""
    writing = [
        ("--fix", arguments.fix),
        ("--no-lock", not arguments.lock),
        ("--summary", bool(arguments.summary)),
        ("--diff", arguments.diff),
    ]
    latest = [
        *writing,
        ("--from", arguments.old),
        ("--audit-only", arguments.audit_only),
        ("--sarif", arguments.sarif),
        ("--markdown", arguments.markdown),
        ("--info", arguments.info),
    ]
    refused, what = (latest, "`latest`") if arguments.command == "latest" else (writing, "an audit")
    if not arguments.audit_only and arguments.command != "latest":
        return None
    return next(((option, what) for option, given in refused if given), None)


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


def _json(group: argparse._ActionsContainer) -> None:
    group.add_argument("--json", action="store_true", help="print one JSON object to stdout, all else to stderr")
