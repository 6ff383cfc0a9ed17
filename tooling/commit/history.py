"""Reads from the latest commits of a repository which scopes and types its people chose."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tooling.cli.git import Git
from tooling.commit.changes import commits
from tooling.commit.habits import Habits
from tooling.commit.message import parse
from tooling.commit.settings import TYPES
from tooling.commit.type_history import TypeHistory

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.commit.changes import Commit

MAX_COMMITS: Final = 400
MAX_FILES: Final = 300
"""A commit of more files swept over the whole repository: it says nothing about any place in it."""


@dataclass
class CommitHistory:
    """What people chose so far."""

    author: str = ""
    """Address of the person who asks: what they chose before counts more."""
    scopes: Habits = field(default_factory=Habits)
    types: TypeHistory = field(default_factory=TypeHistory)

    def learn(self, commit: Commit) -> None:
        """Count one commit, oldest first; merges, and messages that are not conventional, say nothing."""
        header = commit.message.strip().partition("\n")[0]  # what follows says nothing about type and scope
        message = parse(header, merge=len(commit.parents) > 1)
        if message.kind == "conventional" and message.type.lower() in TYPES and 0 < len(commit.files) <= MAX_FILES:
            own = bool(self.author) and commit.author == self.author
            self.scopes.learn(message.scopes[0] if message.scopes else "", commit.files, own=own)
            self.types.learn(message.type.lower(), commit.files, own=own)


def read_history(root: Path, revisions: str = "HEAD") -> CommitHistory:
    """Learn what people chose in the latest commits; nothing in a repository without any."""
    git = Git(root)
    if git.commit(revisions) is None:
        return CommitHistory()
    history = CommitHistory(os.environ.get("GIT_AUTHOR_EMAIL") or git.setting("user.email"))
    for commit in reversed(commits(root, revisions, limit=MAX_COMMITS, files=True, lines=False, authors=True)):
        history.learn(commit)
    return history
