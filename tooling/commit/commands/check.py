"""Checks one message, or all commits of a range: Conventional Commits 1.0, types, scopes, mood, width, footers.

  areal-commit check .git/COMMIT_EDITMSG       a file, as the commit-msg hook has it ("-": standard input)
  areal-commit check --message "fix: typo"
  areal-commit check origin/main..HEAD         for CI; a fixup! that was forgotten is an error there
  areal-commit check HEAD                      one commit

Merges, git's own reverts and (outside of a range) fixup!, squash! and amend! pass as git writes them.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import FindingError, ToolError, UsageError
from tooling.cli.git import Git, nearest_root
from tooling.cli.report import Report
from tooling.commit.message import cleaned, parse
from tooling.commit.rules import MessageProblem, problems
from tooling.commit.settings import CommitSettings, read_commit_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.parser import Parser


class NonConformingError(FindingError):
    """A message breaks a rule."""

    code = "message"


@dataclass(frozen=True, slots=True)
class CheckedMessage:
    """A message and what is wrong with it."""

    name: str
    """Abbreviated hash, or what the message was read from."""
    header: str
    problems: tuple[MessageProblem, ...]

    def failed(self, *, strict: bool) -> bool:
        """Whether the message is refused."""
        return any(strict or problem.severity == "error" for problem in self.problems)


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("target", nargs="?", metavar="FILE | BASE..HEAD", help="what to check")
    parser.add_argument("--message", metavar="TEXT", help="the message itself, instead of a target")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    parser.add_argument("--all", action="store_true", help="also commits that the settings exempt: `since`, `accepted`")


def run(arguments: argparse.Namespace) -> Report:
    """Check a message or a range."""
    root = nearest_root(arguments.repo)
    settings = read_commit_settings(root)
    exempt, checked = 0, list[CheckedMessage]()
    if arguments.message is not None:
        if arguments.target is not None:
            fix = "leave one of the two out"
            raise UsageError("a message and a target were given", where=arguments.target, fix=fix)
        checked = [_message("--message", arguments.message, settings)]
    elif _is_file(arguments.target):
        from_stdin = arguments.target == "-"
        content = sys.stdin.buffer.read() if from_stdin else Path(arguments.target).read_bytes()
        checked = [_message(arguments.target, cleaned(content.decode("utf-8", errors="replace")), settings)]
    else:
        checked, exempt = _range(root, arguments.target, settings, everything=arguments.all)
    failed = [each for each in checked if each.failed(strict=arguments.strict)]
    return Report(
        command="areal-commit check",
        problem=_verdict(failed, checked, arguments),
        changing=False,
        text=_text(checked, exempt),
        data={
            "checked": len(checked),
            "exempt": exempt,
            "messages": [
                {"name": each.name, "header": each.header, "problems": [asdict(problem) for problem in each.problems]}
                for each in checked
            ],
        },
    )


def _is_file(target: str | None) -> bool:
    if target is None:
        fix = "name a file, a range BASE..HEAD, or --message TEXT"
        raise UsageError("nothing to check was named", fix=fix)
    return target == "-" or Path(target).is_file()


def _message(name: str, text: str, settings: CommitSettings) -> CheckedMessage:
    message = parse(text)
    return CheckedMessage(name, message.header, tuple(problems(message, settings)))


def _range(root: Path, target: str, settings: CommitSettings, *, everything: bool) -> tuple[list[CheckedMessage], int]:
    """Check the commits of a range, oldest first; also return how many are exempt: older than the rules, or
    accepted."""
    from tooling.commit.changes import commits

    git = Git(root)
    alone = ".." not in target
    if alone and git.commit(target) is None:
        fix = "name an existing file, a commit, or a range BASE..HEAD"
        raise UsageError("neither a file nor a revision", where=target, fix=fix)
    limit = 1 if alone else 0
    found = commits(root, target, limit=limit)
    kept = found
    if settings.since and not everything and git.commit(settings.since):
        judged = {each.hash for each in commits(root, target, since=settings.since)}
        kept = [each for each in found if each.hash in judged]
    if not everything:
        kept = [each for each in kept if not each.hash.startswith(tuple(settings.accepted))]
    checked = []
    for each in reversed(kept):
        message = parse(each.message, merge=len(each.parents) > 1)
        checked.append(CheckedMessage(each.hash[:12], message.header, tuple(problems(message, settings, final=True))))
    return checked, len(found) - len(kept)


def _verdict(
    failed: list[CheckedMessage], checked: list[CheckedMessage], arguments: argparse.Namespace
) -> ToolError | None:
    if not failed:
        return None
    what = f"{len(failed)} of {len(checked)} commits do not conform"
    fix = "put them right with `git rebase -i BASE`, `reword` each"
    if not arguments.target or _is_file(arguments.target):
        what, fix = "the message does not conform", "put right what is named above"
        if arguments.target and os.path.basename(arguments.target) == "COMMIT_EDITMSG":
            kept = shlex.quote(os.path.abspath(arguments.target))
            fix = f"your text is kept: `git commit -e -F {kept}`"
    return NonConformingError(what, fix=fix)


def _text(checked: Sequence[CheckedMessage], exempt: int) -> str:
    lines = []
    for each in checked:
        if each.problems:
            lines.append(f"{each.name}: {each.header}")
            for problem in each.problems:
                where = "header" if problem.line == 1 else f"line {problem.line}"
                lines.append(f"  {problem.severity}: {where}: {problem.message}; {problem.fix} [{problem.rule}]")
    wrong = sum(bool(each.problems) for each in checked)
    if len(checked) != 1 or exempt:
        older = f", {exempt} exempt" if exempt else ""
        lines.append(f"{len(checked)} commits checked, {wrong} with findings{older}")
    return "\n".join(lines)
