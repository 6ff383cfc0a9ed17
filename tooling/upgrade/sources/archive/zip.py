"""Zip archives as wheels use them: stored and deflated members, ZIP64, data descriptors. Everything else is refused,
and so is whatever two readers could understand differently: that is how one archive shows two faces.

The standard library's reader wants a seekable file and takes prefixes, gaps, overlaps and duplicates; this one reads
from ranges and takes none of them.
"""

from __future__ import annotations

import stat
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.sources.archive.reading import MAX_MEMBERS, Budget, checked_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.sources.archive.reading import ArchiveReader

TAIL = 64 << 10
"""Bytes read first, from the end: the end record, and of most wheels the whole directory."""
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_CENTRAL, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _PATCHED, _STRONG, _MASKED = 0x1, 0x20, 0x40, 0x2000
_DESCRIPTOR, _UTF8 = 0x8, 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_MAX_DIRECTORY = 64 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of the directory."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    end: int = 0
    """Where the next member or the directory starts."""


def directory(reader: ArchiveReader) -> list[Member]:
    """All files of an archive, ordered by where they lie; folders are left out. Raises ArchiveError unless the archive
    is plain: one part, nothing before or between, no encryption, no links, no name twice."""
    start, size, count = _end_record(reader)
    raw = reader.read(start, size)
    members = []
    position = 0
    for _ in range(count):
        member, position = _entry(raw, position, reader.name)
        members.append(member)
    if position != len(raw):
        raise _damaged(reader, "its directory has another length than it says")
    members.sort(key=lambda member: member.offset)
    seen: set[str] = set()
    files = []
    for index, each in enumerate(members):
        end = members[index + 1].offset if index + 1 < len(members) else start
        if each.offset + 30 + len(each.raw_name) + each.compressed > end:
            raise _damaged(reader, f"{each.name!r} overlaps what follows it")
        if each.name in seen:
            raise _damaged(reader, f"{each.name!r} is there twice")
        seen.add(each.name)
        if not each.name.endswith("/"):
            files.append(Member(each.name, each.raw_name, each.flags, each.method, each.crc,
                                each.compressed, each.size, each.offset, end))  # fmt: skip
    return files


def contents(reader: ArchiveReader, members: Sequence[Member]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of members, in the order they lie. Each one's length and CRC-32 are checked."""
    budget = Budget(reader.name)
    ordered = sorted(members, key=lambda member: member.offset)
    for member in ordered:
        budget.take(member.name, max(member.size, member.compressed))
    reader.prepare(
        [
            (member.offset, min(member.end, member.offset + 30 + len(member.raw_name) + _FULL16 + member.compressed))
            for member in ordered
        ]
    )
    for member in ordered:
        header = reader.read(member.offset, 30)
        if header[:4] != _LOCAL:
            raise _damaged(reader, f"{member.name!r} is not where the directory says")
        flags, method, _, _, crc, compressed, size, name_length, extra_length = struct.unpack("<HHHHLLLHH", header[6:])
        start = member.offset + 30 + name_length + extra_length
        if start + member.compressed > member.end:
            raise _damaged(reader, f"{member.name!r} overlaps what follows it")
        if reader.read(member.offset + 30, name_length) != member.raw_name or method != member.method:
            raise _damaged(reader, f"{member.name!r} has another name or method in its own header")
        described = bool(flags & _DESCRIPTOR) or _FULL32 in (compressed, size)
        if flags & _ENCRYPTED or (
            not described and (crc, compressed, size) != (member.crc, member.compressed, member.size)
        ):
            raise _damaged(reader, f"{member.name!r} differs between its own header and the directory")
        raw = reader.read(start, member.compressed)
        content = raw
        if member.method == _DEFLATED:
            machine = zlib.decompressobj(-15)
            try:
                # One byte more than it says it has: more than that is never held in memory.
                content = machine.decompress(raw, member.size + 1)
            except zlib.error:
                raise _damaged(reader, f"{member.name!r} cannot be inflated") from None
            if not machine.eof or machine.unused_data:
                raise _damaged(reader, f"{member.name!r} has another length than it says")
        if len(content) != member.size:
            raise _damaged(reader, f"{member.name!r} has another length than it says")
        if zlib.crc32(content) != member.crc:
            raise _damaged(reader, f"{member.name!r} has another checksum than it says")
        yield member.name, content


def _end_record(reader: ArchiveReader) -> tuple[int, int, int]:
    """(start, size, entries) of the central directory."""
    length = min(reader.size, TAIL)
    tail = reader.read(reader.size - length, length)
    position = tail.rfind(_END)
    if position < 0 or len(tail) - position < 22:
        raise _damaged(reader, "it is not a zip archive, or its end is missing")
    disk, start_disk, here, count, size, start, comment = struct.unpack("<4H2LH", tail[position + 4 : position + 22])
    end = reader.size - length + position
    if position + 22 + comment != len(tail):
        raise _damaged(reader, "something follows its end")
    if position >= 20 and tail[position - 20 : position - 16] == _LOCATOR64:
        _, end, disks = struct.unpack("<LQL", tail[position - 16 : position])
        record = reader.read(end, 56) if disks <= 1 and end + 56 <= reader.size else b""
        if record[:4] != _END64:
            raise _damaged(reader, "its ZIP64 record is not where it says")
        disk, start_disk, here, count, size, start = struct.unpack("<2L4Q", record[16:])
    elif _FULL16 in (here, count) or _FULL32 in (size, start):
        raise _damaged(reader, "its ZIP64 record is missing")
    if disk or start_disk or here != count:
        raise _damaged(reader, "it is one part of several")
    if start + size != end:
        raise _damaged(reader, "its directory is not where it says")
    if count > MAX_MEMBERS or size > _MAX_DIRECTORY:
        raise _damaged(reader, f"it has too many members ({count})")
    return start, size, count


def _entry(raw: bytes, position: int, where: str) -> tuple[Member, int]:
    fixed = raw[position : position + 46]
    if len(fixed) != 46 or fixed[:4] != _CENTRAL:
        raise ArchiveError("damaged archive: its directory is broken", where=where)
    (_, system, _, flags, method, _, _, crc, compressed, size, name_length, extra_length, comment_length, disk, _,
     attributes, offset) = struct.unpack("<BBHHHHHLLLHHHHHLL", fixed[4:])  # fmt: skip
    start = position + 46
    end = start + name_length + extra_length + comment_length
    raw_name, extra = raw[start : start + name_length], raw[start + name_length : start + name_length + extra_length]
    if end > len(raw):
        raise ArchiveError("damaged archive: its directory is broken", where=where)
    size, compressed, offset = _zip64(extra, size, compressed, offset, where)
    try:
        decoded = raw_name.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveError(f"a member's name is not text: {raw_name[:80]!r}", where=where) from None
    name = checked_name(decoded, where)
    if flags & (_ENCRYPTED | _PATCHED | _STRONG | _MASKED):
        raise ArchiveError(f"{name!r} is encrypted or patched", where=where)
    if method not in {_STORED, _DEFLATED}:
        raise ArchiveError(f"{name!r} is packed by an unknown method ({method})", where=where)
    if disk not in {0, _FULL16}:
        raise ArchiveError(f"{name!r} lies in another part of the archive", where=where)
    if system == 3 and stat.S_IFMT(attributes >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise ArchiveError(f"{name!r} is a link or a device", where=where)
    return Member(name, raw_name, flags, method, crc, compressed, size, offset), end


def _zip64(extra: bytes, size: int, compressed: int, offset: int, where: str) -> tuple[int, int, int]:
    """(size, compressed, offset) with those that do not fit in 32 bits taken from the ZIP64 extra field."""
    wanted = [value == _FULL32 for value in (size, compressed, offset)]
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack("<HH", extra[position : position + 4])
        field = extra[position + 4 : position + 4 + length]
        if kind == 1 and any(wanted):
            if len(field) < 8 * sum(wanted):
                break
            wide = iter(struct.unpack(f"<{sum(wanted)}Q", field[: 8 * sum(wanted)]))
            chosen = [next(wide) if full else value
                      for full, value in zip(wanted, (size, compressed, offset), strict=True)]  # fmt: skip
            return chosen[0], chosen[1], chosen[2]
        position += 4 + length
    if any(wanted):
        raise ArchiveError("damaged archive: a ZIP64 field is missing", where=where)
    return size, compressed, offset


def _damaged(reader: ArchiveReader, what: str) -> ArchiveError:
    return ArchiveError(f"damaged archive: {what}", where=reader.name, fix="nothing of it was kept; fetch it again")
