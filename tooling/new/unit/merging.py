"""Merging one unit's files into a plan: what `update` and `rename` do for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.cli.errors import ChecksFailedError, ConflictError, MergeConflictError
from tooling.kit.change.plan import sha256
from tooling.kit.merge import Labels, has_markers, three_way
from tooling.kit.template.formatting import check_files
from tooling.new.unit.records import Kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.kit.kind import CheckResult
    from tooling.new.unit.bases import Bases
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.references import Rewriting

_ADVISORY = frozenset({"ruff-format"})
"""Checks that an edited file may fail: people do not format as they type."""


@dataclass(slots=True)
class Merger:
    """Puts merged files into the plan of its bases and remembers what there is to say."""

    bases: Bases
    change: Rewriting | None = None
    """Applied to the old sides first, so that a new name is no conflict with an edit beside it."""
    labels: Labels = field(default_factory=Labels)
    seen: set[str] = field(default_factory=set)
    """Paths of generated files that were dealt with."""
    managed: list[str] = field(default_factory=list)
    """Paths that belong to the unit afterwards."""
    conflicts: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    edited: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """Cleanly merged files that hold edits: (as they were, as they will be)."""

    def merge(self, old: str, new: str, theirs: bytes, reason: str) -> None:
        """Merge the file that was generated at `old` with `theirs`, and put it at `new`.

        A file that was not generated before is added; one that a user deleted stays deleted. Raises ConflictError when
        something else lies at `new`, MergeConflictError when the user has not resolved an earlier merge, UsageError
        when the merge base cannot be found.
        """
        self.seen.add(old)
        if not self.bases.generated(old):
            self._add(new, theirs, reason)
            return
        plan = self.bases.plan
        ours = plan.read(old)
        if ours is None:
            if old in self.bases.receipt.files:
                self.managed.append(new)
            return
        if old != new:
            self._require_free(new, theirs)
            plan.delete(old, reason=f"becomes {new}")
        content = self._merged(old, new, ours, theirs)
        plan.write(new, content, reason=reason)
        self.managed.append(new)
        if content != theirs and new not in self.conflicts:
            self.edited[new] = (ours, content)

    def drop(self, paths: Iterable[str]) -> None:
        """Remove files that are no longer part of the template; edited ones stay and become the user's own."""
        for path in paths:
            content = self.bases.plan.read(path)
            if content is None:
                continue
            if sha256(content) == self.bases.receipt.files[path].sha256:
                self.bases.plan.delete(path, reason="no longer part of the template")
            else:
                self.kept.append(Kept(path, "no longer part of the template, but edited; it is yours now"))

    def _merged(self, old: str, new: str, ours: bytes, theirs: bytes) -> bytes:
        base = ours if ours == theirs else self.bases.pristine(old)
        if has_markers(ours) and not has_markers(base):
            raise MergeConflictError(
                "still holds the conflict markers of an earlier merge; nothing was written",
                where=old,
                fix="resolve them first",
            )
        if self.change is not None:
            base, ours = self.change.apply_bytes(base), self.change.apply_bytes(ours)
        merged = three_way(base, ours, theirs, self.labels)
        if merged.conflicts:
            self.conflicts.append(new)
            if b"\0" in merged.content:
                self.warnings.append(f"{new} is binary and changed on both sides; yours was kept")
        return merged.content

    def _add(self, path: str, theirs: bytes, reason: str) -> None:
        self._require_free(path, theirs)
        self.bases.plan.write(path, theirs, reason=reason)
        self.managed.append(path)

    def _require_free(self, path: str, theirs: bytes) -> None:
        if self.bases.plan.read(path) not in (None, theirs):
            raise ConflictError("exists and does not belong to the unit", where=path, fix="move it away")


def check_merged(workspace: Workspace, merger: Merger) -> tuple[CheckResult, ...]:
    """Results of the gates on merged files that hold edits and no conflict markers.

    What a file failed before the merge is a warning (in `merger.warnings`), and so is its layout. Raises
    ChecksFailedError when the merge broke something.
    """
    if not merger.edited:
        return ()
    before = _failures(workspace, {path: was for path, (was, _) in merger.edited.items()})
    results = check_files(workspace.root, {path: will for path, (_, will) in merger.edited.items()})
    passed: list[CheckResult] = []
    for result in results:
        if result.ok:
            passed.append(result)
        elif result.name in before or result.name in _ADVISORY:
            merger.warnings.append(f"{result.name} of edited files: {result.detail}")
        else:
            raise ChecksFailedError(
                f"edits and the new content do not fit together: {result.name} fails; nothing was written",
                where=", ".join(sorted(merger.edited)),
                fix="change the edited lines, or take the file to its generated state first",
                checks=results,
            )
    return tuple(passed)


def _failures(workspace: Workspace, files: Mapping[str, bytes]) -> set[str]:
    return {result.name for result in check_files(workspace.root, files) if not result.ok}
