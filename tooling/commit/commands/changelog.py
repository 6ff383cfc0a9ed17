"""Prints the commits of a range (default: since the latest tag) as a list of changes, breaking ones first.

A commit that the same range reverts is left out together with the revert. `--write FILE` writes the whole history
instead: a section per tag with what is new, corrected and faster, by scope; what several commits say in the same words
stands once. The last line of the file names its newest commit, and `--check FILE` tells whether it still follows, given
the same `--title` and `--all-types`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from tooling.cli.errors import FindingError, UsageError
from tooling.cli.git import Git, find_repository
from tooling.cli.parser import add_changing
from tooling.cli.report import Report, say
from tooling.commit.changelog import UP_TO, entries, markdown, page
from tooling.commit.changes import commits
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    import argparse

    from tooling.cli.git import Repository
    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("range", nargs="?", metavar="BASE..HEAD", help="default: latest tag..HEAD, or all")
    parser.add_argument(
        "--title", metavar="TEXT", default="", help="heading (default: the range; with --write: Changelog)"
    )
    parser.add_argument("--all-types", action="store_true", help="style, test, build, ci and chore too")
    parser.add_argument("--write", metavar="FILE", help="write the whole history to FILE, e.g. CHANGELOG.md")
    parser.add_argument(
        "--check", metavar="FILE", help="exit 10 if FILE is not what --write wrote at its newest commit"
    )
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Print the list of changes of a range, or write or check the page of the whole history."""
    repository = find_repository(arguments.repo)
    if arguments.write and arguments.check:
        raise UsageError("--write and --check exclude each other", where="--check", fix="leave one out")
    if arguments.range and (arguments.write or arguments.check):
        raise UsageError(
            "the file has the whole history",
            where=arguments.range,
            fix="leave the range out, or print it without a file",
        )
    if arguments.write:
        return _write(repository, arguments)
    if arguments.dry_run or arguments.diff:
        raise UsageError("nothing would be written", where="--dry-run", fix="name a file: --write CHANGELOG.md")
    if arguments.check:
        return _check(repository, arguments)
    root, revisions = repository.root, arguments.range
    if not revisions:
        git = Git(root)
        if git.commit("HEAD") is None:
            raise UsageError("there are no commits yet", where="HEAD", fix="commit something first")
        tag = git.text("describe", "--tags", "--abbrev=0", "HEAD", allowed=(0, 128))
        revisions = f"{tag}..HEAD" if tag else "HEAD"
    found = entries(commits(root, revisions))
    return Report(
        command="areal-commit changelog",
        changing=False,
        text=markdown(found, arguments.title or revisions, all_types=arguments.all_types),
        data={"range": revisions, "entries": [asdict(each) for each in found]},
    )


def _write(repository: Repository, arguments: argparse.Namespace) -> Report:
    plan = Plan(repository.root)
    plan.write(arguments.write, _page(repository, arguments, "HEAD"), reason="the history as a list of changes")
    if not arguments.dry_run:
        from tooling.kit.change.transaction import apply_plan, transaction

        with transaction(repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
            apply_plan(repository, plan)
    return Report(
        command="areal-commit changelog", dry_run=arguments.dry_run, changes=plan.changes, show_diff=arguments.diff
    )


def _page(repository: Repository, arguments: argparse.Namespace, revision: str) -> bytes:
    title = arguments.title or "Changelog"
    return page(repository.root, revision, title, all_types=arguments.all_types).encode()


def _check(repository: Repository, arguments: argparse.Namespace) -> Report:
    path = arguments.check
    fix = f"run `areal-commit changelog --write {path}`, with the options it was written with"
    text = (Plan(repository.root).read(path) or b"").decode(errors="replace")
    last = re.search(rf"^{re.escape(UP_TO)}([0-9a-f]{{40}}) -->$", text, re.MULTILINE)
    if last is None:
        raise FindingError("does not say up to which commit it goes", where=path, fix=fix)
    if Git(repository.root).commit(last[1]) is None:
        raise FindingError(
            f"goes up to {last[1][:9]}, a commit that this repository does not have", where=path, fix=fix
        )
    if text.encode(errors="replace") != _page(repository, arguments, last[1]):
        raise FindingError(f"differs from the history up to {last[1][:9]}", where=path, fix=fix)
    return Report(
        command="areal-commit changelog",
        changing=False,
        text=f"{path} follows the history up to {last[1][:9]}",
        data={"path": path, "up_to": last[1]},
    )
