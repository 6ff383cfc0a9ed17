"""The commit that is to be proposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.pull_request.history.commits import commits_since, read_commit, write_commit
from tooling.pull_request.history.message import (
    author_of,
    checked_title,
    conforms,
    joined_message,
    with_header,
)
from tooling.pull_request.history.replay import merged_tree, replay

if TYPE_CHECKING:
    from tooling.pull_request.git import Git
    from tooling.pull_request.history.commits import Commit
    from tooling.pull_request.situation import Target, Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What the branch is to become. Objects only: nothing leads to them yet."""

    before: str
    """Tip of the branch now."""
    after: str
    """Tip of the branch afterwards; the same where nothing has to be rewritten."""
    parted: str
    """Where branch and base parted: with `before`, the change as it was written."""
    onto: str
    """Parent of the first commit of the proposal."""
    commits: tuple[Commit, ...]
    """Of the branch as it is."""
    title: str
    message: str
    """Of the newest commit of the proposal."""
    joined: bool
    """Whether the proposal is one commit."""

    @property
    def rewritten(self) -> bool:
        """Whether the branch moves."""
        return self.before != self.after


def propose(git: Git, tip: str, target: Target, wishes: Wishes) -> Proposal:
    """Compute the proposal. Raises RebaseConflictError, TitleError, and UsageError where nothing is to be proposed."""
    base_name = f"{target.base_remote}/{target.base}"
    parted = _parted(git, target.base_tip, tip, base_name, wishes)
    commits = commits_since(git, target.base_tip, tip)
    if not commits:
        fix = "commit something first, or name another base"
        raise UsageError(f"the branch has no commit that {base_name} lacks", where="HEAD", fix=fix)
    title = checked_title(wishes.title, git.root) if wishes.title else ""
    onto = target.base_tip if wishes.rebase else parted
    if wishes.squash:
        after = _squashed(git, commits, parted, onto, title, base_name)
    else:
        after = tip if onto == parted else replay(git, commits, onto, base_name=base_name)
    if git.tree(after) == git.tree(onto):
        fix = f"it may be merged already; `git switch {target.base}`"
        raise UsageError(f"{base_name} has everything that this branch changes", where="HEAD", fix=fix)
    message = read_commit(git, after).message
    header = title or _header(git, wishes, message, commits, parted, tip)
    return Proposal(
        before=tip,
        after=after,
        parted=parted,
        onto=onto,
        commits=commits,
        title=header,
        message=message,
        joined=wishes.squash or len(commits) == 1,
    )


def _parted(git: Git, base: str, tip: str, base_name: str, wishes: Wishes) -> str:
    found = git.run("merge-base", "--all", base, tip, allowed=(0, 1)).decode().split()
    if not found:
        shallow = git.repository.is_shallow()
        fix = "`git fetch --unshallow`" if shallow else "name another base"
        why = "; this clone has only the newest commits" if shallow else ""
        raise UsageError(f"this branch and {base_name} share no history{why}", where="--base", fix=fix)
    if len(found) > 1 and not wishes.rebase:
        fix = "leave out --no-rebase"
        raise UsageError(f"this branch and {base_name} parted in {len(found)} places", where="--no-rebase", fix=fix)
    return found[0]


def _squashed(git: Git, commits: tuple[Commit, ...], parted: str, onto: str, title: str, base_name: str) -> str:
    """One commit. The only commit of a branch keeps its words when they conform."""
    tip = commits[-1].hash
    alone = commits[0] if len(commits) == 1 and len(commits[0].parents) == 1 else None
    written = tuple(each for each in commits if len(each.parents) < 2) or commits
    if alone is not None and conforms(alone.subject, git.root):
        keeps = not title or title == alone.subject
        if keeps:
            return tip if alone.parents[0] == onto else replay(git, commits, onto, base_name=base_name)
        message = with_header(alone.message, title)
    else:
        message = joined_message(git.root, written, parted, tip, title)
    tree = git.tree(tip) if onto == parted else merged_tree(git, onto, tip, base_name=base_name)
    return write_commit(git, tree=tree, parent=onto, message=message, author=author_of(written))


def _header(git: Git, wishes: Wishes, message: str, commits: tuple[Commit, ...], parted: str, tip: str) -> str:
    """The title where none was given: the header of the only commit, or one for all of them."""
    if wishes.squash or len(commits) == 1:
        return message.strip().split("\n", 1)[0]
    written = tuple(each for each in commits if len(each.parents) < 2) or commits
    return joined_message(git.root, written, parted, tip, "").split("\n", 1)[0]
