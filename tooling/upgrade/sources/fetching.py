"""Fetch one archive from its place, check it and put it into the cache.

One behind a URL is read by ranges where the server answers them, otherwise fetched whole, once. A range never proves
the whole file's hash; who reads by ranges checks each member against RECORD instead (`read_wheel`).
"""

from __future__ import annotations

import hashlib
import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from tooling.cli.errors import WriteError
from tooling.upgrade.errors import ArchiveError, OfflineError, UpstreamError
from tooling.upgrade.releases import Origin
from tooling.upgrade.sources.archive.reading import TAIL, ArchiveFile, at_once, merged
from tooling.upgrade.sources.archive.sdist import read_sdist
from tooling.upgrade.sources.archive.wheel import read_wheel
from tooling.upgrade.sources.cache import UNFINISHED, CachedRelease
from tooling.upgrade.sources.links import without_credentials
from tooling.upgrade.sources.pages import local_path
from tooling.upgrade.sources.transport import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.upgrade.releases import Release
    from tooling.upgrade.sources.archive.reading import Contents
    from tooling.upgrade.sources.cache import Cache
    from tooling.upgrade.sources.links import FileLink
    from tooling.upgrade.sources.transport import HttpAnswer, Transport


CONNECTIONS = 4
RANGE_FROM = 30 << 20
"""Bytes from which a wheel is read by ranges: below, the whole file is as quick and its hash can be checked."""
_MAX_FILE = 8 << 30
_BLOCK = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)\Z")


class NoRangesError(Exception):
    """The server answers with the whole file; `answer` is open, for whoever wants to read it."""

    def __init__(self, answer: HttpAnswer | None) -> None:
        super().__init__("the server does not answer ranges")
        self.answer = answer


class RangeReader(io.RawIOBase):
    """A file behind a URL. Parts that were announced are fetched together and then kept."""

    def __init__(
        self, transport: Transport, url: str, name: str, size: int, tail: bytes, headers: dict[str, str]
    ) -> None:
        """tail: the file's last bytes, already fetched. headers: those that make the server refuse another file."""
        self.size = size
        self.bytes_read = len(tail)
        self._name = name
        self._transport = transport
        self._url = url
        self._headers = headers
        self._at = 0
        self._parts: list[tuple[int, bytes]] = [(size - len(tail), tail)]

    @classmethod
    def open(cls, transport: Transport, link: FileLink) -> RangeReader:
        """Fetch the tail of a file. Raises NoRangesError when the server knows no ranges."""
        try:
            answer = transport.get(link.url, {"Range": f"bytes=-{TAIL}"})
        except RefusedError as error:
            if error.status in {400, 405, 416, 501}:
                raise NoRangesError(None) from error
            raise
        found = _CONTENT_RANGE.match(answer.headers.get("content-range", ""))
        if answer.status != 206 or found is None:
            raise NoRangesError(answer)
        with answer:
            start, end, size = (int(text) for text in found.groups())
            if end + 1 != size or size > _MAX_FILE:
                raise NoRangesError(None)
            tail = _exactly(answer, end + 1 - start, link.filename)
            tag = answer.headers.get("etag", "")
            # If-Range makes a server whose file changed send all of the new one, which is refused below.
            guard = {"If-Range": tag} if tag and not tag.startswith("W/") else {}
            return cls(transport, answer.url, link.filename, size, tail, guard)

    def seekable(self) -> bool:
        """Say that any part can be read."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; return where the next byte is read."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if self._at < 0:
            raise ValueError("it ends too early")
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, fetched if they are not there yet."""
        left = max(0, self.size - self._at)
        length = left if at_once(size) < 0 else min(size or 0, left)
        start, self._at = self._at, self._at + length
        for begin, content in self._parts:
            if begin <= start and start + length <= begin + len(content):
                return content[start - begin : start - begin + length]
        content = self._fetch((start, start + length))
        self._parts.append((start, content))
        return content

    def prepare(self, parts: list[tuple[int, int]]) -> None:
        """Fetch parts over several connections, near ones together."""
        runs = merged(parts)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            fetched = list(pool.map(self._fetch, runs))
        self._parts = [(start, content) for (start, _), content in zip(runs, fetched, strict=True)] + self._parts

    def _fetch(self, part: tuple[int, int]) -> bytes:
        start, end = part
        if start >= end:
            return b""
        with self._transport.get(self._url, {"Range": f"bytes={start}-{end - 1}", **self._headers}) as answer:
            found = _CONTENT_RANGE.match(answer.headers.get("content-range", ""))
            if (
                answer.status != 206
                or found is None
                or [int(text) for text in found.groups()] != [start, end - 1, self.size]
            ):
                raise ArchiveError("the file changed while it was read", where=self._name, fix="try again")
            content = _exactly(answer, end - start, self._name)
        self.bytes_read += len(content)
        return content


def download(
    transport: Transport, link: FileLink, target: Path, report: Callable[[str], None], first: HttpAnswer | None = None
) -> int:
    """Fetch a whole file to `target`; how many bytes came.

    first: an answer that already has the whole file, to read from. Raises OfflineError when the connection keeps
    breaking. The target is then incomplete; its owner removes it."""
    for attempt in range(3):
        try:
            with first if first is not None else transport.get(link.url) as answer:
                expected = answer.headers.get("content-length", "")
                total = int(expected) if expected.isdecimal() else None
                done = 0
                with target.open("wb") as stream:
                    while block := answer.read(_BLOCK):
                        done += len(block)
                        if done > _MAX_FILE:
                            raise ArchiveError(f"it is larger than {_MAX_FILE >> 30} GB", where=link.filename)
                        stream.write(block)
                        if total and total > RANGE_FROM and (done // _BLOCK) % 32 == 0:
                            report(f"{link.filename}: {done >> 20} of {total >> 20} MB")
                if total is not None and done != total:
                    raise OfflineError(
                        f"the connection broke after {done} of {total} bytes", where=without_credentials(link.url)
                    )
                return done
        except OfflineError:
            first = None
            if attempt == 2:
                raise
    raise AssertionError("the last attempt returns or raises")


def checked_digest(path: Path, link: FileLink) -> str:
    """Return the SHA-256 of a file. Raises ArchiveError when one of the hashes that the index states differs."""
    with path.open("rb") as stream:
        for name, digest in (*link.hashes, ("sha256", "")):
            stream.seek(0)
            actual = hashlib.file_digest(stream, name).hexdigest()
            if digest and actual != digest:
                what = f"the file's {name} is {actual}, the index says {digest}"
                fix = "nothing of it was kept; if it stays so, the index or a proxy changes files"
                raise ArchiveError(what, where=link.filename, fix=fix)
    return actual


def _exactly(answer: HttpAnswer, length: int, name: str) -> bytes:
    content = answer.read(length)
    if len(content) < length:
        raise OfflineError(f"the connection broke {length - len(content)} bytes early", where=name)
    return content


_Fetched: TypeAlias = tuple["Contents", str, int]
"""An archive's sources, the SHA-256 of the whole file ("" where only ranges were read), and how many bytes the network
brought."""


def _believed(contents: Contents, link: FileLink) -> Contents:
    """Return the contents of a wheel. Raises ArchiveError for those that are doubtful, unless the index vouches for the
    file."""
    if contents.doubt and not link.is_vouched_for:
        fix = "take it from an index that states the file's hash: then all of it is checked; or audit another version"
        raise ArchiveError(contents.doubt, where=link.filename, fix=fix)
    told = f"{contents.doubt}; its index vouches for the file, so it was read all the same"
    return replace(contents, doubt=told) if contents.doubt else contents


class Fetcher:
    """Brings archives into the cache."""

    def __init__(self, transport: Transport, cache: Cache, report: Callable[[str], None]) -> None:
        self._transport = transport
        self._cache = cache
        self._report = report

    def stamp(self, link: FileLink) -> str:
        """Return what shows whether the file behind an address is still the same, for files without a stated hash; ""
        if nothing does. Raises OfflineError when the server cannot be asked."""
        if link.sha256:
            return ""
        if link.url.startswith("file:"):
            facts = local_path(link.url).stat()
            return f"{facts.st_size} {facts.st_mtime_ns}"
        try:
            with self._transport.get(link.url, method="HEAD") as answer:
                stated = [answer.headers.get(name, "") for name in ("etag", "last-modified", "content-length")]
        except UpstreamError as error:
            if error.code == "offline":
                raise
            return ""
        return " ".join(stated).strip()

    def fetch(self, link: FileLink, distribution: str, stamp: str) -> tuple[Release, int]:
        """Read an archive and keep its sources; (the release, bytes that came over the network).

        Raises ArchiveError when it is not what it should be; nothing of it is then kept."""
        read = self._local if link.url.startswith("file:") else self._remote
        contents, whole, count = read(link, distribution)
        # A wheel also says itself what its members are
        verified = "whole" if whole and link.is_vouched_for else "ranged" if link.is_wheel else ""
        origin = Origin(
            distribution=distribution,
            version=link.version,
            filename=link.filename,
            url=link.url,
            sha256=link.sha256,
            verified=verified,
            doubt=contents.doubt,
        )
        return self._cache.keep(CachedRelease(origin=origin, stamp=stamp), contents, whole), count

    def _local(self, link: FileLink, distribution: str) -> _Fetched:
        path = local_path(link.url)
        try:
            return self._read(path, link, distribution, 0)
        except OSError as error:
            raise UpstreamError(f"unreadable archive: {error.strerror}", where=str(path)) from error

    def _remote(self, link: FileLink, distribution: str) -> _Fetched:
        if not link.is_wheel or (link.size is not None and link.size <= RANGE_FROM):
            return self._whole(link, distribution)
        try:
            reader = RangeReader.open(self._transport, link)
        except NoRangesError as error:
            return self._whole(link, distribution, error.answer)
        if reader.size <= RANGE_FROM:
            return self._whole(link, distribution)
        self._report(f"{link.filename}: reading its sources by ranges ({reader.size >> 20} MB in all)")
        contents = read_wheel(reader, link.filename, vouched=False, prepare=reader.prepare)
        if contents.doubt and link.is_vouched_for:
            return self._whole(link, distribution)  # the hash of all of it says whether it is what the index means
        return _believed(contents, link), "", reader.bytes_read

    def _whole(self, link: FileLink, distribution: str, first: HttpAnswer | None = None) -> _Fetched:
        self._report(f"{link.filename}: fetching")
        try:
            self._cache.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self._cache.folder, prefix=UNFINISHED) as folder:
                path = Path(folder) / "archive"
                count = download(self._transport, link, path, self._report, first)
                return self._read(path, link, distribution, count)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            fix = "make room, make it writable, or name another cache folder"
            raise WriteError(f"cannot write: {error.strerror}", where=str(self._cache.folder), fix=fix) from error

    def _read(self, path: Path, link: FileLink, distribution: str, count: int) -> _Fetched:
        digest = checked_digest(path, link)
        if link.is_wheel:
            with ArchiveFile(path) as stream:
                contents = read_wheel(stream, link.filename, vouched=link.is_vouched_for)
            return _believed(contents, link), digest, count
        contents = read_sdist(path, link.filename, distribution)
        if not contents.files:
            raise ArchiveError("it holds no Python source", where=link.filename)
        return contents, digest, count
