"""Reads from the latest commits of a repository which scopes and types its people chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.git import Git
from tooling.commit.changes import commits
from tooling.commit.habits import Habits
from tooling.commit.message import parse
from tooling.commit.settings import TYPES
from tooling.commit.suggestion import guess_type
from tooling.commit.type_history import TypeHistory

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.commit.changes import Commit

MAX_COMMITS: Final = 400
COUNTED: Final = 80
"""Newest commits of which lines are counted; counting takes git most of the time."""


@dataclass
class CommitHistory:
    """What people chose so far."""

    scopes: Habits = field(default_factory=Habits)
    types: TypeHistory = field(default_factory=TypeHistory)

    def learn(self, commit: Commit, *, counted: bool = True) -> None:
        """Count one commit, oldest first; merges, and messages that are not conventional, say nothing. Types are learnt
        where lines were counted."""
        header = commit.message.strip().partition("\n")[0]  # what follows says nothing about type and scope
        message = parse(header, merge=len(commit.parents) > 1)
        if message.kind == "conventional" and message.type.lower() in TYPES and commit.files:
            self.scopes.learn(message.scopes[0] if message.scopes else "", commit.files)
            if counted:
                self.types.learn(message.type.lower(), commit.files, guess_type(commit.files).value)


def read_history(root: Path, revisions: str = "HEAD") -> CommitHistory:
    """Learn what people chose in the latest commits; nothing in a repository without any."""
    history = CommitHistory()
    if Git(root).commit(revisions) is None:
        return history
    older = commits(root, revisions, limit=MAX_COMMITS, skip=COUNTED, files=True, lines=False)
    for commit in reversed(older):
        history.learn(commit, counted=False)
    try:
        newest, counted = commits(root, revisions, limit=COUNTED, files=True), True
    except UsageError:  # a partial clone: contents are elsewhere
        newest, counted = commits(root, revisions, limit=COUNTED, files=True, lines=False), False
    for commit in reversed(newest):
        history.learn(commit, counted=counted)
    return history
