"""Read members of archives with limits and hashes checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """An archive, read."""

    files: Mapping[str, bytes]
    """.py and .pyi files by their path in an installation."""
    native: tuple[str, ...] = ()
    """Paths of compiled modules, likewise."""
    metadata: bytes = b""
    """METADATA or PKG-INFO."""
    entry_points: bytes = b""
    record: bytes = b""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Console scripts that the metadata of an sdist's build system declares."""


MAX_MEMBER = 16 << 20
"""Most bytes of one member that is read, inflated."""
MAX_TOTAL = 512 << 20
"""Most bytes of all members that are read, inflated."""
MAX_MEMBERS = 300_000
_GAP = 64 << 10
"""Bytes between two wanted parts from which it is cheaper to ask twice."""


def merged(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """[start, end) parts in order, those that are near each other taken together."""
    runs: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if runs and start - runs[-1][1] < _GAP:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((start, end))
    return runs


def checked_name(name: str, where: str) -> str:
    """Return a member's name that stays inside whatever folder one might extract it to; ArchiveError for others."""
    parts = name.removesuffix("/").split("/")
    bad = "\\" in name or "\0" in name or name.startswith("/") or ":" in parts[0] or len(name) > 4096
    if bad or any(part in {"", ".", ".."} for part in parts):
        raise ArchiveError(f"a member's name leads out of the archive: {name[:200]!r}", where=where)
    return name


class Budget:
    """Counts inflated bytes, so that a small archive cannot become a large one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = MAX_TOTAL

    def take(self, name: str, size: int) -> None:
        """Reserve room for a member. Raises ArchiveError when it is too large or nothing is left."""
        self._left -= size
        if size > MAX_MEMBER or self._left < 0:
            limit = MAX_MEMBER if size > MAX_MEMBER else MAX_TOTAL
            raise ArchiveError(f"{name[:200]!r} would take more than {limit >> 20} MB", where=self._where)
