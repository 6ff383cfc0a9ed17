"""`areal-commit learn`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.git import find_repository
from tooling.cli.report import Report, say
from tooling.commit.git import commits, knows
from tooling.commit.learn import learn, table
from tooling.commit.settings import SECTION, read_settings
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    import argparse

    from tooling.cli.git import Repository
    from tooling.commit.learn import Learnt


def run(arguments: argparse.Namespace) -> Report:
    """Print the table, or add it to pyproject.toml."""
    repository = find_repository(arguments.repo)
    if arguments.min_commits < 1:
        raise UsageError("is no number of commits", where="--min-commits", fix="write --min-commits 3")
    writing = arguments.write or arguments.dry_run or arguments.diff
    learnt = _learnt(repository, arguments)
    plan = Plan(repository.root)
    if writing:
        _refuse_replacing(repository)
        if arguments.write and not arguments.dry_run:
            from tooling.kit.change.transaction import apply_plan, transaction

            with transaction(repository, wait_seconds=10.0, note=lambda line: say(f"rolled back: {line}")):
                _extend(plan, table(learnt))
                apply_plan(repository, plan)
        else:
            _extend(plan, table(learnt))
    return Report(
        command="areal-commit learn",
        dry_run=writing and not (arguments.write and not arguments.dry_run),
        changes=plan.changes,
        show_diff=arguments.diff,
        changing=writing,
        text="" if writing else _head(learnt) + table(learnt),
        data={
            "commits": learnt.commits,
            "scoped": learnt.scoped,
            "scopes": {name: list(paths) for name, paths in learnt.paths.items()},
            "aliases": {name: list(words) for name, words in learnt.aliases.items()},
            "none": list(learnt.none),
            "table": table(learnt),
        },
    )


def _learnt(repository: Repository, arguments: argparse.Namespace) -> Learnt:
    if ".." not in arguments.range and not knows(repository.root, arguments.range):
        raise UsageError("there is no history to learn from", where=arguments.range, fix="name a range with commits")
    found = commits(repository.root, arguments.range, files=True)
    learnt = learn(found, repository.files(untracked=False), min_commits=arguments.min_commits)
    if not learnt.paths:
        fix = "lower --min-commits, or write [tool.areal.commit.scopes] by hand"
        raise UsageError(f"no scope is used often enough in {learnt.commits} commits", where=arguments.range, fix=fix)
    return learnt


def _refuse_replacing(repository: Repository) -> None:
    if read_settings(repository.root).scopes:
        raise ConflictError(
            "there is a table of scopes already; it was kept",
            where=f"{SECTION[:-1]}.scopes]",
            fix="run `areal-commit learn` without --write and take over what is new",
        )


def _extend(plan: Plan, text: str) -> None:
    """Add the tables at the end; where [tool.areal.commit] is there already, only what it lacks."""
    path = "pyproject.toml"
    present = (plan.read(path) or b"").decode("utf-8")
    if "[tool.areal.commit]" in present:
        text = text[text.index("[tool.areal.commit.scopes]") :]
    gap = "" if not present else "\n" if present.endswith("\n") else "\n\n"
    content = f"{present}{gap}{text}".encode(errors="surrogateescape" if sys.platform != "win32" else "strict")
    plan.write(path, content, reason="the scopes that people chose so far")


def _head(learnt: Learnt) -> str:
    return f"# Learnt from {learnt.commits} commits, {learnt.scoped} of them with a scope.\n"
