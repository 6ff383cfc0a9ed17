"""Habits of a repository, read from its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.commit.git import commits, knows
from tooling.commit.habits import Habits
from tooling.commit.message import parse
from tooling.commit.settings import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tooling.commit.git import Commit

MAX_COMMITS: Final = 2000


def habits_of(root: Path, revisions: str = "HEAD") -> Habits:
    """What people chose in the latest commits; nothing in a repository without any."""
    habits = Habits()
    if not knows(root, revisions):
        return habits
    for commit in reversed(commits(root, revisions, limit=MAX_COMMITS, files=True)):
        learn_commit(habits, commit)
    return habits


def learn_commit(habits: Habits, commit: Commit) -> None:
    """Count one commit; merges, and messages that are not conventional, say nothing about scopes."""
    message = parse(commit.message, merge=len(commit.parents) > 1)
    if message.kind == "conventional" and message.type.lower() in TYPES and commit.files:
        scopes = message.scopes
        habits.learn(scopes[0] if scopes else "", commit.files)


def conventional(found: Iterable[Commit]) -> list[Commit]:
    """Those that are not merges and have a header that can be read."""
    return [each for each in found if len(each.parents) < 2 and parse(each.message).kind == "conventional"]
