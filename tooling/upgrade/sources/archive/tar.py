"""Gzipped tar archives as sdists use them, read as a stream: regular files and links that stay inside. Devices, links
that lead out, names that lead out, and whatever grows beyond its limits are refused."""

from __future__ import annotations

import gzip
import posixpath
import tarfile
import zlib
from typing import TYPE_CHECKING

from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.sources.archive.reading import MAX_MEMBERS, Budget, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAX_STREAM = 2 << 30
"""Most bytes of the whole archive, inflated, also of what is not kept."""
_EXTENDED = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_MAX_EXTENDED = 1 << 20
"""Most bytes of a header that extends another: the standard library reads it whole."""


def tar_members(path: Path, filename: str, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Contents of the members whose name is wanted, links followed. Raises ArchiveError."""
    try:
        with gzip.open(path, "rb") as unpacked:
            stream = _Bounded(unpacked, filename)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]  # a stream is read from only
                return _Collector(filename, wanted).collect(archive)
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError) as error:
        raise ArchiveError(f"damaged archive: {error}", where=filename, fix="nothing of it was kept") from error


class _Bounded:
    """A stream that ends in an error instead of going on for ever."""

    def __init__(self, stream: gzip.GzipFile, where: str) -> None:
        self._stream = stream
        self._where = where
        self._left = _MAX_STREAM

    def read(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise ArchiveError(f"it would take more than {_MAX_STREAM >> 20} MB", where=self._where)
        return found


class _Header(tarfile.TarInfo):
    """Refuses headers that would be read into memory at any size, and sparse files."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and header.size > _MAX_EXTENDED:
            raise ArchiveError("an extended header is too long")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise ArchiveError("it holds a sparse file")
        return header


class _Collector:
    """What has been seen of one archive."""

    def __init__(self, where: str, wanted: Callable[[str], bool]) -> None:
        self._where = where
        self._wanted = wanted
        self._budget = Budget(where)
        self._found: dict[str, bytes] = {}
        self._links: dict[str, str] = {}

    def collect(self, archive: tarfile.TarFile) -> dict[str, bytes]:
        """Everything wanted. One pass: a link's target may come later."""
        for count, member in enumerate(archive):
            if count > MAX_MEMBERS:
                raise ArchiveError(f"it has more than {MAX_MEMBERS} members", where=self._where)
            name = member.name.removeprefix("./").rstrip("/")
            if name in {"", "."} and member.isdir():
                continue
            checked_name(name, self._where)
            if member.issym() or member.islnk():
                self._link(name, member)
            elif member.isfile():
                self._file(name, member, archive)
            elif not member.isdir():
                raise ArchiveError(f"{name!r} is a device or something unknown", where=self._where)
        for name in [name for name in self._links if self._wanted(name)]:
            content = self._found.get(self._target(name))
            if content is not None:
                self._budget.take(name, len(content))
                self._found[name] = content
        return self._found

    def _file(self, name: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        if not self._wanted(name):
            return
        self._once(name)
        self._budget.take(name, member.size)
        stream = archive.extractfile(member)
        content = stream.read() if stream is not None else b""
        if len(content) != member.size:
            raise ArchiveError(f"{name!r} ends too early", where=self._where)
        self._found[name] = content

    def _link(self, name: str, member: tarfile.TarInfo) -> None:
        start = posixpath.dirname(name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(start, member.linkname))
        outside = target == ".." or target.startswith(("/", "../"))
        if outside or "\\" in target or ":" in target.partition("/")[0]:
            raise ArchiveError(f"{name!r} is a link that leads out of the archive", where=self._where)
        self._once(name)
        self._links[name] = target

    def _once(self, name: str) -> None:
        if name in self._found or name in self._links:
            raise ArchiveError(f"{name!r} is there twice", where=self._where)

    def _target(self, name: str) -> str:
        """The file behind a chain of links; a circle ends at a name that is none."""
        for _ in range(16):
            if name not in self._links:
                break
            name = self._links[name]
        return name
