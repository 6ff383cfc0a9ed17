"""A change to a repository as a value: every path with its bytes before and after, and why.

    plan = Plan(root)
    plan.write("areal/reward/digits.py", source, reason="the reward function")
    plan.read("areal/reward/registry.py")        # bytes as they will be, None when absent

Dry run, diff, JSON, saved plan, apply and undo are views of it (`tooling.cli.diff`, `.plan_file`, `.transaction`).
Writing the bytes that are there already is not a change: planning a second time after applying gives an empty plan. It
knows whole files only: no modes, no links, no folders of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

from tooling.cli.errors import ConflictError, ToolError, UsageError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Action = Literal["create", "modify", "delete"]


@dataclass(frozen=True, slots=True)
class PathChange:
    """One file: `before` and `after` are its whole content, None where it does not exist."""

    path: str
    """Relative to the repository root, with "/"."""
    before: bytes | None
    after: bytes | None
    reason: str

    @property
    def action(self) -> Action:
        """Return what happens to the file."""
        if self.before is None:
            return "create"
        return "delete" if self.after is None else "modify"


class Plan:
    """A virtual tree over `root`: reads fall through to the disk once and are remembered, writes stay here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._before: dict[str, bytes | None] = {}
        self._after: dict[str, bytes | None] = {}
        self._reasons: dict[str, str] = {}

    @classmethod
    def from_changes(cls, root: Path, changes: Iterable[PathChange]) -> Self:
        """Return a plan made elsewhere, e.g. a saved one.

        `before` is what its maker read; it is compared with the disk only when the plan is applied. Raises UsageError
        for unsafe paths and for a path that comes twice, ConflictError for paths that cannot exist together.
        """
        plan = cls(root)
        for change in changes:
            path = safe_path(change.path)
            if path in plan._after:
                raise UsageError("is changed twice by one plan", where=path)
            plan._before[path] = change.before
            plan._set(path, change.after, change.reason)
        return plan

    def read(self, path: str) -> bytes | None:
        """Return the content as it will be after the plan; None when absent.

        Raises UsageError for a path outside the root or below .git, ConflictError for a folder or a link in its place,
        WriteError when the disk refuses to read.
        """
        path = safe_path(path)
        if path in self._after:
            return self._after[path]
        return self._on_disk(path)

    def write(self, path: str, content: bytes, *, reason: str) -> None:
        """Set the whole content of a file.

        Raises like `read`, and ConflictError when the plan already writes a file that differs only in case, or that
        would have to be a folder of this one.
        """
        self._set(path, content, reason)

    def delete(self, path: str, *, reason: str) -> None:
        """Remove a file; removing an absent one is not a change."""
        self._set(path, None, reason)

    @property
    def changes(self) -> tuple[PathChange, ...]:
        """Return what differs from the disk as it was first read, by path."""
        return tuple(self._changes())

    def __bool__(self) -> bool:
        """Check whether anything would change."""
        return next(self._changes(), None) is not None

    def _changes(self) -> Iterator[PathChange]:
        for path in sorted(self._after):
            before, after = self._before[path], self._after[path]
            if before != after:
                yield PathChange(path, before, after, self._reasons[path])

    def _set(self, path: str, content: bytes | None, reason: str) -> None:
        path = safe_path(path)
        self._on_disk(path)
        if content is not None:
            self._refuse_collision(path)
        self._after[path] = content
        self._reasons[path] = reason

    def _refuse_collision(self, path: str) -> None:
        """Refuse two files that some disks cannot hold together: "A.py" with "a.py", "a" with "a/b"."""
        folded = path.casefold()
        for other, content in self._after.items():
            if content is None or other == path:
                continue
            taken = other.casefold()
            if taken == folded:
                raise ConflictError(f"differs only in case from {other!r}, which the same plan writes", where=path)
            if taken.startswith(f"{folded}/") or folded.startswith(f"{taken}/"):
                raise ConflictError(f"cannot exist beside {other!r}: one would be a folder of the other", where=path)

    def _on_disk(self, path: str) -> bytes | None:
        if path not in self._before:
            self._before[path] = read_inside(self.root, path)
        return self._before[path]


def safe_path(path: str) -> str:
    """Return the path in its normal form ("a//b/" -> "a/b").

    Raises UsageError when it is absolute, leaves the root, lies in .git, or holds characters that no source file needs
    (control characters, backslash, half a surrogate pair).
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or ".." in parts or ":" in parts[0]:
        raise UsageError(f"unsafe path {path!r}", fix="use a path relative to the repository root, without '..'")
    if any(ord(letter) < 32 or letter == "\x7f" or "\ud800" <= letter <= "\udfff" for letter in path):
        raise UsageError(f"unsafe path {path!r}", fix="use a path without control characters, in valid Unicode")
    # Some disks drop trailing dots and spaces, or offer a short name: all of these would be .git there.
    if any(part.casefold().rstrip(". ") in {".git", "git~1"} for part in parts):
        raise UsageError(f"unsafe path {path!r}: it lies inside .git")
    return "/".join(parts)


def read_inside(root: Path, path: str) -> bytes | None:
    """Return the content of `root/path`, None when absent.

    Links are not followed: a plan writes only what it has read. Raises ConflictError for whatever is not a file, and
    WriteError when the disk refuses.
    """
    current = root
    try:
        for part in PurePosixPath(path).parts:
            current = current / part
            if current.is_symlink():
                fix = "replace the link by a file, or use another name"
                raise ConflictError("is a symbolic link", where=path, fix=fix)
        if not current.exists():
            blocking = next((parent for parent in current.parents if parent.exists() and not parent.is_dir()), None)
            if blocking is not None:
                raise ConflictError(f"{os.fspath(blocking)!r} is a file, expected a folder", where=path)
            return None
        if not current.is_file():
            raise ConflictError("is not a regular file", where=path)
        return current.read_bytes()
    except OSError as error:
        if isinstance(error, ToolError):
            raise
        raise WriteError(f"cannot be read: {error.strerror}", where=path, fix="make it readable") from error


def sha256(content: bytes) -> str:
    """Return the hexadecimal SHA-256, as receipts and saved plans hold it."""
    import hashlib

    return hashlib.sha256(content).hexdigest()
