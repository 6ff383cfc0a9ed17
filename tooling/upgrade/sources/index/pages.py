"""Pages of indexes, asked for as seldom as possible: within ten minutes not at all, then only whether they changed.

An index may also be a folder (file:), with a page per project, or with nothing but files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.index.simple_api import ACCEPT, file_link, read_page
from tooling.upgrade.sources.links import without_credentials
from tooling.upgrade.sources.transport import NetworkError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.upgrade.sources.cache import Cache
    from tooling.upgrade.sources.config.settings import Index
    from tooling.upgrade.sources.links import FileLink
    from tooling.upgrade.sources.transport import Answer, Transport

FRESH_SECONDS = 600
_MAX_PAGE = 64 << 20
_MAX_FOLDER = 200_000
_ENDINGS = (".whl", ".tar.gz", ".zip")


class Pages:
    """Answers "which files are there" for one place at a time."""

    def __init__(
        self, transport: Transport, cache: Cache, report: Callable[[str], None], *, offline: bool, fresh: bool = False
    ) -> None:
        """fresh: whether to ask even for pages that are fresh enough."""
        self._transport = transport
        self._cache = cache
        self._report = report
        self._offline = offline
        self._fresh = fresh

    def of_index(self, index: Index, distribution: str) -> list[FileLink]:
        """Files of a distribution at an index; none if it does not know it. Raises OfflineError, UpstreamError."""
        if index.url.startswith("file:"):
            folder = local_path(index.url)
            return self.of_folder(folder if index.flat else folder / distribution, distribution)
        if "://" not in index.url:
            return self.of_folder(Path(index.url) if index.flat else Path(index.url) / distribution, distribution)
        return self.of_page(index.url if index.flat else f"{index.url}/{distribution}/", distribution)

    def of_folder(self, folder: Path, distribution: str) -> list[FileLink]:
        """Files in a folder, or on the page `index.html` in it."""
        page = folder / "index.html"
        try:
            if page.is_file() and page.stat().st_size <= _MAX_PAGE:
                return read_page(page.read_bytes(), "text/html", page.as_uri(), distribution)
            names = sorted(path.name for path in folder.iterdir())[:_MAX_FOLDER] if folder.is_dir() else []
        except OSError as error:
            raise UpstreamError(f"unreadable folder: {error.strerror}", where=str(folder)) from error
        links = [_local_link(folder / name, distribution) for name in names if name.endswith(_ENDINGS)]
        return [link for link in links if link is not None]

    def of_place(self, place: str, distribution: str) -> list[FileLink]:
        """Files at a find-links place: a folder, an archive, or the address or path of a page."""
        if "://" in place and not place.startswith("file:"):
            if urlsplit(place).path.endswith(_ENDINGS):
                name = urlsplit(place).path.rpartition("/")[2]
                found = file_link(name, place.partition("#")[0], distribution, source=without_credentials(place))
                return [found] if found is not None else []
            return self.of_page(place, distribution)
        path = local_path(place) if place.startswith("file:") else Path(place).expanduser()
        if path.is_file() and path.suffix in {".html", ".htm"}:
            return read_page(path.read_bytes(), "text/html", path.resolve().as_uri(), distribution)
        if path.is_file():
            link = _local_link(path, distribution)
            return [link] if link is not None else []
        return self.of_folder(path, distribution)

    def of_page(self, url: str, distribution: str) -> list[FileLink]:
        """Files that a page lists, from the cache where that is new enough."""
        name = f"pages/{hashlib.sha256(without_credentials(url).encode()).hexdigest()[:32]}.json"
        kept = self._cache.read(name)
        if self._offline:
            if not kept:
                raise OfflineError("this page was never fetched", where=without_credentials(url))
            return _links(kept, distribution)
        age = time.time() - kept["fetched"] if isinstance(kept.get("fetched"), float) else FRESH_SECONDS
        if kept and 0 <= age < FRESH_SECONDS and not self._fresh:
            return _links(kept, distribution)
        try:
            kept = self._asked(url, kept)
        except NetworkError as error:
            if not kept:
                raise
            self._report(f"{error.where or without_credentials(url)} does not answer; what it said before is used")
            return _links(kept, distribution)
        import json

        self._cache.write(name, json.dumps(kept, sort_keys=True).encode())
        return _links(kept, distribution)

    def _asked(self, url: str, kept: dict[str, Any]) -> dict[str, Any]:
        headers = {"Accept": ACCEPT}
        for header, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if isinstance(kept.get(key), str) and kept[key]:
                headers[header] = kept[key]
        try:
            answer = self._transport.get(url, headers)
        except RefusedError as error:
            if error.status in {404, 410}:
                return {"url": without_credentials(url), "fetched": time.time(), "type": "text/html", "body": ""}
            raise
        with answer:
            if answer.status == 304:
                return {**kept, "fetched": time.time()}
            body = _unpacked(_whole(answer), answer)
        return {
            "url": without_credentials(answer.url),
            "fetched": time.time(),
            "etag": answer.headers.get("etag", ""),
            "modified": answer.headers.get("last-modified", ""),
            "type": answer.headers.get("content-type", ""),
            "body": base64.b64encode(zlib.compress(body, 3)).decode(),
        }


def local_path(url: str) -> Path:
    """The path of a file: address."""
    return Path(url2pathname(urlsplit(url).path))


def _whole(answer: Answer) -> bytes:
    blocks: list[bytes] = []
    total = 0
    while block := answer.read(1 << 16):
        blocks.append(block)
        total += len(block)
        if total > _MAX_PAGE:
            raise UpstreamError(f"the page is larger than {_MAX_PAGE >> 20} MB", where=without_credentials(answer.url))
    expected = answer.headers.get("content-length", "")
    if expected.isdecimal() and total != int(expected):
        raise NetworkError("the connection broke", where=without_credentials(answer.url))
    return b"".join(blocks)


def _unpacked(body: bytes, answer: Answer) -> bytes:
    """The page itself: some servers compress what was asked for as it is."""
    encoding = answer.headers.get("content-encoding", "identity").lower()
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        return body
    try:
        machine = zlib.decompressobj(47)  # gzip or zlib, as the header of the data says
        page = machine.decompress(body, _MAX_PAGE + 1)
    except zlib.error as error:
        raise UpstreamError(f"unreadable page: {error}", where=without_credentials(answer.url)) from None
    if len(page) > _MAX_PAGE:
        raise UpstreamError(f"the page is larger than {_MAX_PAGE >> 20} MB", where=without_credentials(answer.url))
    return page


def _links(kept: dict[str, Any], distribution: str) -> list[FileLink]:
    try:
        body = zlib.decompressobj().decompress(base64.b64decode(kept["body"]), _MAX_PAGE) if kept["body"] else b""
        return read_page(body, str(kept["type"]), str(kept["url"]), distribution)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        return []


def _local_link(path: Path, distribution: str) -> FileLink | None:
    try:
        resolved = path.resolve(strict=True)
        size = resolved.stat().st_size
    except OSError:
        return None
    return file_link(path.name, resolved.as_uri(), distribution, size=size, source=str(path.parent))
