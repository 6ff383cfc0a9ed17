"""What is wrong with a commit message, where, and how to put it right.

    problems(parse(text), settings)

A merge, a revert in git's own words and a fixup that waits for `git rebase --autosquash` are accepted as git writes
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.commit.rules.body import body_problems
from tooling.commit.rules.header import header_problems
from tooling.commit.rules.problem import Problem, error, warning

if TYPE_CHECKING:
    from tooling.commit.message import Message
    from tooling.commit.settings import Settings

__all__ = ["Problem", "problems"]


def problems(message: Message, settings: Settings, *, final: bool = False) -> list[Problem]:
    """Everything wrong with a message, by line. final: it is part of a range that is to be merged, so that a fixup has
    been forgotten."""
    if message.kind == "empty":
        return [error("empty", 1, "the message is empty", "say what the commit does: `type(scope): subject`")]
    if message.kind == "merge":
        return []
    if message.kind == "fixup":
        fix = "run `git rebase -i --autosquash BASE`"
        return [error("fixup", 1, "waits to be squashed into another commit", fix)] if final else []
    found = [*header_problems(message, settings), *_revert_problems(message), *body_problems(message, settings)]
    return sorted(found, key=lambda problem: problem.line)


def _revert_problems(message: Message) -> list[Problem]:
    if message.kind != "revert" and message.type.lower() != "revert":
        return []
    named = any(footer.token.lower() in {"refs", "reverts"} for footer in message.footers)
    if named or any("This reverts commit " in line for line in message.lines):
        return []
    return [warning("revert-refs", 1, "does not say which commit it takes back", "add a footer `Refs: HASH`")]
