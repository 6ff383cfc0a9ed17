"""Fetches one archive from its place, checks it and puts it into the cache."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tooling.cli.errors import WriteError
from tooling.upgrade.errors import ArchiveError, UpstreamError
from tooling.upgrade.sources.archive.sdist import read_sdist
from tooling.upgrade.sources.archive.wheel import read_wheel
from tooling.upgrade.sources.archive.zip import ArchiveFile
from tooling.upgrade.sources.cache import UNFINISHED, CachedRelease
from tooling.upgrade.sources.pages import local_path
from tooling.upgrade.sources.remote import RANGE_FROM, NoRangesError, RangeReader, check_hashes, download

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.upgrade.releases import Release
    from tooling.upgrade.sources.archive.reading import Contents
    from tooling.upgrade.sources.cache import Cache
    from tooling.upgrade.sources.links import FileLink
    from tooling.upgrade.sources.transport import HttpAnswer, Transport

_MAX_METADATA = 4 << 20


@dataclass(slots=True)
class Fetched:
    """An archive's sources and how they came."""

    contents: Contents
    archive_sha256: str
    """Of the whole file; "" where only ranges were read."""
    verified: str
    bytes_read: int


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

    def metadata(self, link: FileLink) -> bytes | None:
        """Return the metadata file beside a wheel (PEP 658); None when it cannot be read or its hash differs."""
        try:
            with self._transport.get(f"{link.url}.metadata") as answer:
                found = answer.read(_MAX_METADATA)
        except UpstreamError:
            return None
        return found if hashlib.sha256(found).hexdigest() == link.metadata_sha256 else None

    def fetch(self, link: FileLink, distribution: str, stamp: str) -> tuple[Release, int]:
        """Read an archive and keep its sources; (the release, bytes that came over the network).

        Raises ArchiveError when it is not what it should be; nothing of it is then kept."""
        fetched = self._local(link, distribution) if link.url.startswith("file:") else self._remote(link, distribution)
        entry = CachedRelease(
            distribution=distribution,
            version=link.version,
            filename=link.filename,
            url=link.url,
            sha256=link.sha256,
            verified=fetched.verified,
            packed="",
            packed_sha256="",
            stamp=stamp,
        )
        _, release = self._cache.keep(entry, fetched.contents, fetched.archive_sha256)
        return release, fetched.bytes_read

    def _local(self, link: FileLink, distribution: str) -> Fetched:
        path = local_path(link.url)
        machines = {name: hashlib.new(name) for name in {"sha256", *(name for name, _ in link.hashes)}}
        try:
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    for machine in machines.values():
                        machine.update(block)
        except OSError as error:
            raise UpstreamError(f"unreadable archive: {error.strerror}", where=str(path)) from error
        digests = {name: machine.hexdigest() for name, machine in machines.items()}
        check_hashes(link, digests)
        return self._read(path, link, distribution, digests["sha256"], 0)

    def _remote(self, link: FileLink, distribution: str) -> Fetched:
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
        return Fetched(contents, "", "ranged", reader.bytes_read)

    def _whole(self, link: FileLink, distribution: str, first: HttpAnswer | None = None) -> Fetched:
        self._report(f"{link.filename}: fetching")
        try:
            self._cache.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self._cache.folder, prefix=UNFINISHED) as folder:
                path = Path(folder) / "archive"
                count = download(self._transport, link, path, self._report, first)
                with path.open("rb") as stream:
                    digest = link.sha256 or hashlib.file_digest(stream, "sha256").hexdigest()
                return self._read(path, link, distribution, digest, count)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            fix = "make room, make it writable, or name another cache folder"
            raise WriteError(f"cannot write: {error.strerror}", where=str(self._cache.folder), fix=fix) from error

    def _read(self, path: Path, link: FileLink, distribution: str, digest: str, count: int) -> Fetched:
        if link.is_wheel:
            with ArchiveFile(path) as stream:
                contents = read_wheel(stream, link.filename, vouched=link.is_vouched_for)
            return Fetched(contents, digest, "whole" if link.is_vouched_for else "ranged", count)
        contents = read_sdist(path, link.filename, distribution)
        if not contents.files:
            raise ArchiveError("it holds no Python source", where=link.filename)
        return Fetched(contents, digest, "whole" if link.is_vouched_for else "", count)
