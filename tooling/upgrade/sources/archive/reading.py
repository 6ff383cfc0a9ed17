"""Read members of archives with limits and hashes checked.

Zip archives are read by `zipfile`, from any file that can be sought. Refused is what that takes and an installer may
understand differently (prefixes, overlaps, names twice, two headers): so one archive has two faces.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


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
    doubt: str = ""
    """As in an `Origin`."""


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


TAIL = 64 << 10
"""Bytes read first, from the end: the end record, and of most wheels the whole directory."""
_ENCRYPTED, _PATCHED, _STRONG, _MASKED = 0x1, 0x20, 0x40, 0x2000
_DESCRIPTOR = 0x8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_MOST_AT_ONCE = 64 << 20
_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)


class ArchiveFile(io.FileIO):
    """An archive on the disk. Nothing makes its reader ask for more than a directory may have."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes."""
        return super().read(at_once(size))


def at_once(size: int | None) -> int:
    """Return how much is read. Raises ArchiveError for more than anything plain has."""
    if size is not None and size > _MOST_AT_ONCE:
        raise ArchiveError("damaged archive: it has too many members")
    return -1 if size is None else size


class PlainZip:
    """An archive that is plain: one part, nothing before it, no encryption, no links, no name twice."""

    def __init__(self, stream: io.RawIOBase, where: str) -> None:
        """where: for messages. Raises ArchiveError unless the archive is plain."""
        self._stream = stream
        self._where = where
        self._ends: dict[str, int] = {}
        with self._refused():
            self._archive = zipfile.ZipFile(stream)
            members = sorted(self._archive.infolist(), key=lambda each: each.header_offset)
            if len(members) > MAX_MEMBERS:
                raise self._damaged(f"it has too many members ({len(members)})")
            end = self._at(stream.seek(0, io.SEEK_END) - 22 - len(self._archive.comment), 22)
            if end[:4] != b"PK\5\6":
                raise self._damaged("something follows its end")
            if struct.unpack("<L", end[16:20])[0] not in (self._archive.start_dir, _FULL32):
                raise self._damaged("its directory is not where it says")
            starts = [member.header_offset for member in members[1:]]
            for member, following in zip(members, [*starts, self._archive.start_dir], strict=True):
                self._check(member, following)
                self._ends[member.orig_filename] = following
        self.names = [name for name in self._ends if not name.endswith("/")]
        """Of all files, in the order they lie; folders are left out."""

    def contents(
        self, names: Sequence[str], prepare: Callable[[list[tuple[int, int]]], None] = lambda parts: None
    ) -> dict[str, bytes]:
        """Return the contents of members; length and CRC-32 of each are checked. prepare: called with the [start, end)
        parts that are read next, so that they can be fetched together."""
        budget = Budget(self._where)
        members = sorted((self._archive.NameToInfo[name] for name in names), key=lambda each: each.header_offset)
        parts = []
        for member in members:
            budget.take(member.filename, max(member.file_size, member.compress_size))
            most = member.header_offset + 30 + len(member.filename) * 4 + _FULL16 + member.compress_size
            parts.append((member.header_offset, min(self._ends[member.filename], most)))
        prepare(parts)
        with self._refused():
            return {member.filename: self._content(member) for member in members}

    def _check(self, member: zipfile.ZipInfo, following: int) -> None:
        name = checked_name(member.orig_filename, self._where)
        kind = stat.S_IFMT(member.external_attr >> 16) if member.create_system == 3 else 0
        if member.header_offset + 30 + len(name) + member.compress_size > following:
            raise self._damaged(f"{name!r} overlaps what follows it")
        if name in self._ends:
            raise self._damaged(f"{name!r} is there twice")
        for is_bad, words in (
            (member.flag_bits & (_ENCRYPTED | _PATCHED | _STRONG | _MASKED), "is encrypted or patched"),
            (
                member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED},
                f"is packed by an unknown method ({member.compress_type})",
            ),
            (member.volume not in {0, _FULL16}, "lies in another part of the archive"),
            (kind not in {0, stat.S_IFREG, stat.S_IFDIR}, "is a link or a device"),
        ):
            if is_bad:
                raise ArchiveError(f"{name!r} {words}", where=self._where)

    def _content(self, member: zipfile.ZipInfo) -> bytes:
        flags, method, _, _, crc, compressed, size, name_length, extra_length = struct.unpack(
            "<6x4H3L2H", self._at(member.header_offset, 30)
        )
        start = member.header_offset + 30 + name_length + extra_length
        if start + member.compress_size > self._ends[member.filename]:
            raise self._damaged(f"{member.filename!r} overlaps what follows it")
        described = bool(flags & _DESCRIPTOR) or _FULL32 in (compressed, size)
        stated = (member.CRC, member.compress_size, member.file_size)
        if flags & _ENCRYPTED or method != member.compress_type or not (described or (crc, compressed, size) == stated):
            raise self._damaged(f"{member.filename!r} differs between its own header and the directory")
        try:
            # One byte more than it says it has, so that its end, and with it its checksum, is reached.
            content = self._archive.open(member).read(member.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            words = f"{member.filename!r} has another length or checksum than it says, or cannot be inflated"
            raise self._damaged(f"{words}: {error}") from None
        if len(content) != member.file_size:
            raise self._damaged(f"{member.filename!r} has another length than it says")
        return content

    def _at(self, start: int, length: int) -> bytes:
        self._stream.seek(start)
        return self._stream.read(length)

    def _damaged(self, what: str) -> ArchiveError:
        return ArchiveError(f"damaged archive: {what}", where=self._where)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Whatever is wrong becomes an error that names the archive."""
        try:
            yield
        except ArchiveError as error:
            error.where = error.where or self._where
            raise
        except _FAULTS as error:
            raise self._damaged(str(error)) from error
