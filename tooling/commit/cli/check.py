"""`areal-commit check`."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.commit.message import cleaned, parse
from tooling.commit.rules import Problem, problems
from tooling.commit.settings import Settings, read_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


class NonConformingError(ToolError):
    """A message breaks a rule."""

    exit_code = 10
    code = "message"


@dataclass(frozen=True, slots=True)
class Checked:
    """A message and what is wrong with it."""

    name: str
    """Abbreviated hash, or what the message was read from."""
    header: str
    problems: tuple[Problem, ...]

    def failed(self, *, strict: bool) -> bool:
        """Whether the message is refused."""
        return any(strict or problem.severity == "error" for problem in self.problems)


def run(arguments: argparse.Namespace) -> Report:
    """Check a message or a range."""
    root = _root(arguments.repo)
    settings = read_settings(root)
    exempt, checked = 0, list[Checked]()
    if arguments.message is not None:
        checked = [_message("--message", arguments.message, settings)]
    elif _is_file(arguments.target):
        checked = [_message(arguments.target, cleaned(_read(arguments.target)), settings)]
    else:
        checked, exempt = _range(root, arguments.target, settings, everything=arguments.all)
    failed = [each for each in checked if each.failed(strict=arguments.strict)]
    return Report(
        command="areal-commit check",
        problem=_verdict(failed, checked, arguments),
        changing=False,
        text=_text(checked, exempt),
        data={"checked": len(checked), "exempt": exempt, "messages": [_fields(each) for each in checked]},
    )


def _root(path: Path) -> Path:
    """The settings of the nearest repository hold; a message can be checked where there is none."""
    if not path.is_dir():
        raise UsageError("no such folder", where=f"--repo {path}", fix="name a repository")
    try:
        return find_repository(path).root
    except UsageError:
        return path.resolve()


def _is_file(target: str | None) -> bool:
    if target is None:
        fix = "name a file, a range BASE..HEAD, or --message TEXT"
        raise UsageError("nothing to check was named", fix=fix)
    return target == "-" or Path(target).is_file()


def _read(target: str) -> str:
    content = sys.stdin.buffer.read() if target == "-" else Path(target).read_bytes()
    return content.decode("utf-8", errors="replace")


def _message(name: str, text: str, settings: Settings) -> Checked:
    message = parse(text)
    return Checked(name, message.header, tuple(problems(message, settings)))


def _range(root: Path, target: str, settings: Settings, *, everything: bool) -> tuple[list[Checked], int]:
    """The commits of a range, oldest first, and how many of them are exempt: older than the rules, or accepted."""
    from tooling.commit.git import commits, knows

    alone = ".." not in target
    if alone and not knows(root, target):
        fix = "name an existing file, a commit, or a range BASE..HEAD"
        raise UsageError("neither a file nor a revision", where=target, fix=fix)
    limit = 1 if alone else 0
    found = commits(root, target, limit=limit)
    kept = found
    if settings.since and not everything and knows(root, settings.since):
        judged = {each.hash for each in commits(root, target, since=settings.since)}
        kept = [each for each in found if each.hash in judged]
    if not everything:
        kept = [each for each in kept if not each.hash.startswith(tuple(settings.accepted))]
    checked = []
    for each in reversed(kept):
        message = parse(each.message, merge=len(each.parents) > 1)
        checked.append(Checked(each.hash[:12], message.header, tuple(problems(message, settings, final=True))))
    return checked, len(found) - len(kept)


def _verdict(failed: list[Checked], checked: list[Checked], arguments: argparse.Namespace) -> ToolError | None:
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


def _text(checked: Sequence[Checked], exempt: int) -> str:
    lines = []
    for each in checked:
        if each.problems:
            lines.append(f"{each.name}: {each.header}")
            lines += [f"  {_line(problem)}" for problem in each.problems]
    wrong = sum(bool(each.problems) for each in checked)
    if len(checked) != 1 or exempt:
        older = f", {exempt} exempt" if exempt else ""
        lines.append(f"{len(checked)} commits checked, {wrong} with findings{older}")
    return "\n".join(lines)


def _line(problem: Problem) -> str:
    where = "header" if problem.line == 1 else f"line {problem.line}"
    return f"{problem.severity}: {where}: {problem.message}; {problem.fix} [{problem.rule}]"


def _fields(each: Checked) -> dict[str, Any]:
    return {"name": each.name, "header": each.header, "problems": [asdict(problem) for problem in each.problems]}
