"""Merges what changed in a template, or in a name, into files that people edited.

    three_way(pristine, on_disk, new_render, Labels("yours", "template before", "template now"))
    -> Merged(b"...", conflicts=0)

Files are merged by `git merge-file`, which touches no repository and no index; `Merger` does it for a whole unit.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tooling.cli.errors import ChecksFailedError, ConflictError, MergeConflictError, ToolError, UsageError
from tooling.cli.git import Git
from tooling.kit.change.plan import sha256
from tooling.kit.edits.text import conflict_lines
from tooling.kit.receipts import Proof
from tooling.kit.template.rendering import check_files
from tooling.kit.template.tree import restore_tree
from tooling.new.change import KeptFile
from tooling.new.proof import standing, tests_there
from tooling.new.unit import ADVISORY, render_unit, template_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.cli.git import Repository
    from tooling.kit.change.plan import Plan
    from tooling.kit.receipts import Receipt, TemplateReference
    from tooling.kit.template.kinds import KindSource
    from tooling.new.change import Change, Project
    from tooling.new.unit import Entries, RenderedUnit

_MOST_CONFLICTS = 127
"""Above it git's exit status means an error."""
_MOST_COMMITS = 2000
"""How far back a file's history is searched."""


class Labels(NamedTuple):
    """What the three sides are called in conflict markers."""

    ours: str = "yours"
    base: str = "template before"
    theirs: str = "template now"


class Merged(NamedTuple):
    """The result: `conflicts` counts the places that hold markers for a person (at most 127 are counted)."""

    content: bytes
    conflicts: int


def three_way(base: bytes, ours: bytes, theirs: bytes, labels: Labels | None = None) -> Merged:
    """Merge what changed from base to theirs into ours.

    Lines changed on both sides keep both, between markers in diff3 style. A file whose line ends were converted as a
    whole (CRLF) keeps its own. A binary file changed on both sides stays ours and counts as one conflict: it has no
    place for markers. Raises UsageError when there is no git.
    """
    if theirs in (base, ours):
        return Merged(ours, 0)
    if ours == base:
        return Merged(theirs, 0)
    if any(b"\0" in side for side in (base, ours, theirs)):
        return Merged(ours, 1)
    if _only_crlf(ours) and not _only_crlf(base):
        converted = [side.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for side in (base, theirs)]
        if converted != [base, theirs]:
            return three_way(converted[0], ours, converted[1], labels)
    with tempfile.TemporaryDirectory(prefix="areal-new-merge-") as folder:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(folder) / name).write_bytes(content)
        named = [word for label in labels or Labels() for word in ("-L", label)]
        done = Git(Path(folder)).attempt("merge-file", "-p", "--diff3", *named, "ours", "base", "theirs")
    if not 0 <= done.status <= _MOST_CONFLICTS:
        raise ToolError(f"git merge-file failed with status {done.status}: {done.complaint}")
    return Merged(done.output, done.status)


def _only_crlf(content: bytes) -> bool:
    """Check whether there are line ends and all of them are CRLF."""
    return b"\n" in content and content.count(b"\n") == content.count(b"\r\n")


# ------------------------------------------------------------------------------------------------- pristine content


@contextmanager
def old_template(project: Project, receipt: Receipt, source: KindSource | None) -> Iterator[Path | None]:
    """Yield the template folder that a unit came from, None when it is not found: the kind's own folder as long as it
    did not change, else the tree that git kept, in a temporary folder."""
    if source is not None and template_tree(project, source) == receipt.template.tree:
        yield source.folder
        return
    with tempfile.TemporaryDirectory(prefix="areal-new-template-") as scratch:
        # The folder's name is the kind's: messages about the template name it.
        folder = Path(scratch) / receipt.kind
        folder.mkdir()
        yield folder if restore_tree(project.repository, receipt.template.tree, folder) else None


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Old words and their new ones. Example: {"digits_reward": "numbers_reward", "areal.reward.digits":
    "areal.reward.numbers"}, key "digits".

    Symbols, dotted modules and paths of the unit are unmistakable as whole words: in Python, YAML, TOML and Markdown
    they can be rewritten. The bare registry key ("digits") may mean many things; it is only reported, where it is a
    value.
    """

    words: Mapping[str, str]
    key: str

    def apply_bytes(self, content: bytes) -> bytes:
        """Replace every whole-word occurrence, all at once; what is not UTF-8 stays as it is."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return content
        return self._pattern().sub(lambda found: self.words[found.group()], text).encode("utf-8")

    def is_mentioned(self, line: str) -> bool:
        """Check whether a line still names the unit: by a word, or by its key as a value."""
        key = re.escape(self.key)
        value = rf"""["'`]{key}["'`]|[=:][ \t]*{key}(?![\w.(])|\bimport[ \t]+{key}\b"""
        return bool(self._pattern().search(line) or re.search(value, line))

    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.words, key=lambda word: (-len(word), word))
        return re.compile(r"(?<![\w/])(?:" + ("|".join(map(re.escape, longest_first)) or "(?!)") + r")(?![\w])")


class Merger:
    """Merges one unit's files into a change: what `update` and `rename` do for each of them.

    The merge base is the bytes that were generated. A receipt remembers only their hashes; they come from, in this
    order: the old template rendered again with the old answers, the file on disk when nobody edited it, the file's
    history in git. Whatever comes is compared with the receipt's hash. Only when nothing matches is an old template's
    rendering taken as it is, with a warning: then the same template gave other bytes, as after an update of the
    formatter.
    """

    def __init__(
        self,
        project: Project,
        change: Change,
        receipt: Receipt,
        folder: Path | None,
        *,
        labels: Labels | None = None,
    ) -> None:
        """Render the old template. folder: where it lies, None when it is not found."""
        self.project = project
        self.change = change
        self.receipt = receipt
        self.labels = labels or Labels()
        self.rendered: RenderedUnit | None = None
        """The old template rendered with the old answers; None when it cannot be."""
        self.rewriting: Rewriting | None = None
        """Applied to the old sides first, so that a new name is not a conflict with an edit beside it."""
        self.managed: list[str] = []
        """Paths that belong to the unit afterwards."""
        self._seen: set[str] = set()
        self._edited: dict[str, tuple[bytes, bytes]] = {}
        """Cleanly merged files that hold edits: (as they were, as they will be)."""
        if folder is not None:
            settings = replace(project.settings, package=receipt.package, tests=receipt.tests)
            kind = receipt.kind
            try:
                self.rendered = render_unit(
                    project, folder, receipt.names, receipt.answers, kind=kind, settings=settings
                )
            except ToolError as error:
                change.warnings.append(
                    f"the template that {receipt.name!r} came from cannot be rendered any more: {error}"
                )

    def merge(self, old: str, new: str, theirs: bytes, reason: str) -> None:
        """Merge the file that was generated at `old` with `theirs`, and put it at `new`.

        A file that was not generated before is added; one that a user deleted stays deleted. Raises ConflictError when
        something else lies at `new`, MergeConflictError when the user has not resolved an earlier merge, UsageError
        when the merge base cannot be found.
        """
        self._seen.add(old)
        plan = self.change.plan
        was_generated = old in self.receipt.files or (self.rendered is not None and old in self.rendered.files)
        ours = plan.read(old) if was_generated else None
        if was_generated and ours is None:
            if old in self.receipt.files:
                self.managed.append(new)
            return
        if (not was_generated or old != new) and plan.read(new) not in (None, theirs):
            raise ConflictError("exists and does not belong to the unit", where=new, fix="move it away")
        content = theirs
        if ours is not None:
            if old != new:
                plan.delete(old, reason=f"becomes {new}")
            content = self._merged(old, new, ours, theirs)
            if content != theirs and new not in self.change.conflicts:
                self._edited[new] = (ours, content)
        plan.write(new, content, reason=reason)
        self.managed.append(new)

    def _merged(self, old: str, new: str, ours: bytes, theirs: bytes) -> bytes:
        base = ours if ours == theirs else self._pristine(old)
        if conflict_lines(ours) and not conflict_lines(base):
            raise MergeConflictError(
                "still holds the conflict markers of an earlier merge; nothing was written",
                where=old,
                fix="resolve them first",
            )
        if self.rewriting is not None:
            base, ours = self.rewriting.apply_bytes(base), self.rewriting.apply_bytes(ours)
        merged = three_way(base, ours, theirs, self.labels)
        if merged.conflicts:
            self.change.conflicts.append(new)
            if b"\0" in merged.content:
                self.change.warnings.append(f"{new} is binary and changed on both sides; yours was kept")
        return merged.content

    def _pristine(self, path: str) -> bytes:
        """Return the bytes of the file as it was generated. Raises UsageError, saying why, when they are not found."""
        again = None if self.rendered is None else self.rendered.files.get(path)
        known = self.receipt.files.get(path)
        if known is None:
            if again is None:
                raise UsageError("was not generated", where=path)
            return again
        repository = self.project.repository
        for content in chain((again, read_or_none(self.change.plan, path)), _history(repository, path)):
            if content is not None and sha256(content) == known.sha256:
                return content
        if again is not None:
            self.change.warnings.append(
                f"{path}: the old template gives other bytes than it did; the merge may be less exact"
            )
            return again
        tree = self.receipt.template.tree[:12]
        fix = "fetch the branch or commit that holds the template, or `areal-new undo` and generate the unit again"
        if repository.is_shallow():
            fix = "run `git fetch --unshallow`: the history of this clone was cut off"
        raise UsageError(
            f"its generated content cannot be found: the template it came from (tree {tree}) is not in this "
            "repository, and no commit holds the file",
            where=path,
            fix=fix,
        )

    def finish(self) -> None:
        """Remove the files that are no longer part of the unit, and check the merged ones.

        Edited files stay and become the user's own. What a merged file failed before the merge is a warning, and so is
        its layout. Raises ChecksFailedError when the merge broke something.
        """
        plan, change = self.change.plan, self.change
        for path in sorted(self.receipt.files.keys() - self._seen):
            content = plan.read(path)
            if content is not None and sha256(content) == self.receipt.files[path].sha256:
                plan.delete(path, reason="no longer part of the template")
            elif content is not None:
                change.kept.append(KeptFile(path, "no longer part of the template, but edited; it is yours now"))
        if not self._edited:
            return
        failed_before = {
            result.name
            for result in check_files(change.root, {path: was for path, (was, _) in self._edited.items()})
            if not result.ok
        }
        results = check_files(change.root, {path: will for path, (_, will) in self._edited.items()})
        for result in results:
            if result.ok:
                change.checks.append(result)
            elif result.name in failed_before or result.name in ADVISORY:
                change.warnings.append(f"{result.name} of edited files: {result.detail}")
            else:
                raise ChecksFailedError(
                    f"edits and the new content do not fit together: {result.name} fails; nothing was written",
                    where=", ".join(sorted(self._edited)),
                    fix="change the edited lines, or take the file to its generated state first",
                    checks=results,
                )

    def complete(self, unit: RenderedUnit, template: TemplateReference, entries: Entries) -> None:
        """Give the change the unit's new receipt, and the tests that are there."""
        described = unit.receipt_files()
        receipt = replace(
            unit.receipt(self.receipt.kind, template, register=self.receipt.register),
            files={path: described[path] for path in self.managed},
            entries=entries.entries,
            documents=entries.documents,
            proof=self.receipt.proof,
        )
        plan = self.change.plan
        if not standing(plan, receipt).current:
            receipt = replace(receipt, proof=Proof())
        if receipt.path != self.receipt.path:
            plan.delete(self.receipt.path, reason="receipt under the old name")
        self.change.plan_receipt(receipt)
        self.change.tests += tuple(tests_there(plan, receipt))


def read_or_none(plan: Plan, path: str) -> bytes | None:
    """Return the content of a file; None also for a link or a folder in its place."""
    try:
        return plan.read(path)
    except ConflictError:
        return None


def _history(repository: Repository, path: str) -> Iterator[bytes | None]:
    """Yield the versions of a file in any branch; they are looked up when the first one is asked for."""
    git = Git(repository.root)
    commits = git.attempt("rev-list", "--all", f"--max-count={_MOST_COMMITS}", "--", path)
    if commits.status == 0:
        yield from git.blobs([f"{commit}:{path}" for commit in commits.output.decode().split()])
