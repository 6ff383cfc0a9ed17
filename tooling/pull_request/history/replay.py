"""Merging and replaying without a work tree: a conflict is an answer, and leaves nothing behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tooling.cli.errors import MergeConflictError, UsageError
from tooling.pull_request.history.commits import write_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.pull_request.git import Git
    from tooling.pull_request.history.commits import Commit


class RebaseConflictError(MergeConflictError):
    """Both sides changed the same lines; `files` names where. Nothing was changed."""

    def __init__(self, message: str, files: Sequence[str], *, where: str, fix: str) -> None:
        """files: paths with conflicts."""
        super().__init__(message, where=where, fix=fix)
        self.files = tuple(files)
        self.details = {"files": list(files)}


def merged_tree(git: Git, onto: str, tip: str, *, base_name: str, what: str = "") -> str:
    """The tree of both. what: which commit is brought over, for the message. Raises RebaseConflictError that names the
    files of a conflict."""
    done = git.attempt("merge-tree", "--write-tree", "-z", "--name-only", onto, tip)
    if done.status not in {0, 1}:
        if "usage: git merge-tree" in done.complaint:
            fix = "upgrade git to 2.38 or newer, or use --no-rebase"
            raise UsageError("this git cannot merge without a work tree", where="git --version", fix=fix)
        raise UsageError(f"the merge failed: {done.complaint}", where=os.fspath(git.root))
    tree, _, rest = done.output.partition(b"\0")
    if done.status == 1:
        named = rest.split(b"\0\0", 1)[0].split(b"\0")
        files = [os.fsdecode(path) for path in dict.fromkeys(named) if path]
        shown = ", ".join(repr(path) if not path.isprintable() else path for path in files)
        raise RebaseConflictError(
            f"{what or 'the branch'} and {base_name} changed the same lines of: {shown}",
            files,
            where=base_name,
            fix=f"nothing was changed; `git rebase {base_name}`, put the files right, and run it again",
        )
    return tree.decode()


def replay(git: Git, commits: Sequence[Commit], onto: str, *, base_name: str) -> str:
    """The commits one after the other on top of another one; hash of the last. What `onto` has already is left out, as
    `git rebase` does. Raises RebaseConflictError, and UsageError for merges, whose resolutions would be lost."""
    merge = next((each for each in commits if len(each.parents) != 1), None)
    if merge is not None:
        raise UsageError(
            f"the branch holds a merge ({merge.hash[:12]} {merge.subject}), which cannot be replayed",
            where="--no-squash",
            fix="leave out --no-squash, or add --no-rebase",
        )
    new = onto
    for each in commits:
        before = git.tree(each.parents[0])
        if git.tree(new) == before:
            tree = each.tree
        else:
            # Beside its parent, with the new tree: so the parent is where the two sides parted.
            beside = write_commit(
                git, tree=git.tree(new), parent=each.parents[0], message="beside", author=each, signed=False
            )
            what = f"{each.hash[:12]} ({each.subject})"
            tree = merged_tree(git, beside, each.hash, base_name=base_name, what=what)
        if tree == git.tree(new) and each.tree != before:
            continue  # it is there already
        new = write_commit(git, tree=tree, parent=new, message=each.message, author=each)
    return new
