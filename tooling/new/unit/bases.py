"""The merge base of a unit: the bytes that were generated, found again without keeping a copy of them.

A receipt remembers only hashes. The bytes come from, in this order: the old template tree in git, rendered again with
the old answers; the file on disk, when nobody edited it; the file's history in git. Whatever comes is compared with the
receipt's hash. Only when nothing matches is an old template's rendering taken as it is, with a warning: then the same
template gave other bytes, as after an update of the formatter.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, ToolError, UsageError
from tooling.kit.change.plan import sha256
from tooling.kit.template.tree import restore_tree
from tooling.new.unit.produce import Produced, produce, template_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.cli.git import Repository
    from tooling.kit.change.plan import Plan
    from tooling.kit.receipts import Receipt
    from tooling.kit.template.kinds import KindSource
    from tooling.new.unit.context import Workspace

_MOST_COMMITS = 2000
"""How far back a file's history is searched."""


@contextmanager
def old_template(workspace: Workspace, receipt: Receipt, source: KindSource | None) -> Iterator[Path | None]:
    """The template folder that a unit came from, None when it cannot be had: the kind's own folder as long as it did
    not change, else the tree that git kept, in a temporary folder."""
    if source is not None and template_tree(workspace, source) == receipt.template.tree:
        yield source.folder
        return
    with tempfile.TemporaryDirectory(prefix="areal-new-template-") as scratch:
        # The folder's name is the kind's: messages about the template name it.
        folder = Path(scratch) / receipt.kind
        folder.mkdir()
        yield folder if restore_tree(workspace.repository, receipt.template.tree, folder) else None


@dataclass(slots=True)
class Bases:
    """Pristine bytes of one unit's files."""

    repository: Repository
    receipt: Receipt
    plan: Plan
    rendered: Produced | None
    """The old template rendered with the old answers; None when the old template is gone."""
    warnings: list[str] = field(default_factory=list)

    def generated(self, path: str) -> bool:
        """Whether the file was part of the unit, though it may have been undone since."""
        return path in self.receipt.files or (self.rendered is not None and path in self.rendered.files)

    def pristine(self, path: str) -> bytes:
        """Bytes of the file as it was generated. Raises UsageError, saying why, when they cannot be found."""
        again = None if self.rendered is None else self.rendered.files.get(path)
        known = self.receipt.files.get(path)
        if known is None:
            if again is None:
                raise UsageError("was not generated", where=path)
            return again
        for content in (again, _on_disk(self.plan, path)):
            if content is not None and sha256(content) == known.sha256:
                return content
        content = _in_history(self.repository, path, known.sha256)
        if content is not None:
            return content
        if again is not None:
            self.warnings.append(f"{path}: the old template gives other bytes than it did; the merge may be less exact")
            return again
        raise self._lost(path)

    def _lost(self, path: str) -> UsageError:
        tree = self.receipt.template.tree
        reason = f"the template it came from (tree {tree[:12]}) is not in this repository, and no commit holds the file"
        if self.repository.is_shallow():
            fix = "run `git fetch --unshallow`: the history of this clone was cut off"
        else:
            fix = "fetch the branch or commit that holds the template, or `areal-new undo` and generate the unit again"
        return UsageError(f"its generated content cannot be found: {reason}", where=path, fix=fix)


def find_bases(workspace: Workspace, receipt: Receipt, plan: Plan, folder: Path | None) -> Bases:
    """Bases of a unit, from its old template in `folder` when there is one."""
    rendered, warnings = None, list[str]()
    if folder is not None:
        settings = replace(workspace.settings, package=receipt.package, tests=receipt.tests)
        try:
            rendered = produce(workspace, folder, receipt.names, receipt.answers, kind=receipt.kind, settings=settings)
        except ToolError as error:
            warnings.append(f"the template that {receipt.name!r} came from cannot be rendered any more: {error}")
    return Bases(workspace.repository, receipt, plan, rendered, warnings)


def _on_disk(plan: Plan, path: str) -> bytes | None:
    try:
        return plan.read(path)
    except ConflictError:
        return None


def _in_history(repository: Repository, path: str, digest: str) -> bytes | None:
    """Content of that hash among the versions of a file in any branch."""
    from git.exc import GitError

    try:
        with repository.git() as repo:
            repo.git.update_environment(GIT_NO_LAZY_FETCH="1")
            commits = repo.git.rev_list("--all", f"--max-count={_MOST_COMMITS}", "--", path).split()
            seen: set[str] = set()
            for commit in commits:
                listed = repo.git.ls_tree("-z", commit, "--", path)
                blob = listed.split("\t")[0].split()[-1] if listed else ""
                if not blob or blob in seen:
                    continue
                seen.add(blob)
                content = repo.git.execute(
                    ["git", "cat-file", "blob", blob], stdout_as_string=False, strip_newline_in_stdout=False
                )
                content = content if isinstance(content, bytes) else os.fsencode(str(content))
                if sha256(content) == digest:
                    return content
    except GitError:
        return None
    return None
