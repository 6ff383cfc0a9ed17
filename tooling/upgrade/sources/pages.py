"""Fetch and parse index pages (PEP 503 and PEP 691), keep them in the cache, and list a distribution's files from all
configured places."""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter

from tooling.cli.suggest import did_you_mean
from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.cache import read_kept
from tooling.upgrade.sources.links import FileLink, VersionInfo, without_credentials
from tooling.upgrade.sources.transport import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tooling.upgrade.sources.cache import Cache
    from tooling.upgrade.sources.index_config import IndexSettings
    from tooling.upgrade.sources.transport import HttpAnswer, Transport


ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HEXADECIMAL = re.compile(r"[0-9a-f]{32,128}\Z")
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "sha224", "sha1", "md5"})


def read_page(body: str, content_type: str, url: str, distribution: str) -> list[FileLink]:
    """Return the files of one distribution that a page lists; those of others are left out.

    url: where the page came from, for its relative links."""
    if "json" in content_type:
        try:
            page = json.loads(body)
        except (ValueError, RecursionError):
            return []
        entries = page.get("files") if isinstance(page, dict) else None
    else:
        parser = _Anchors(url)
        parser.feed(body)
        parser.close()
        entries = parser.entries
    links = (_entry_link(entry, url, distribution) for entry in entries) if isinstance(entries, list) else ()
    return [link for link in links if link is not None]


def file_link(filename: str, url: str, distribution: str, **facts: Any) -> FileLink | None:
    """Return a link as a record; None when the name is neither a wheel nor an sdist of the distribution."""
    try:
        is_wheel = filename.endswith(".whl")
        named = parse_wheel_filename(filename)[:2] if is_wheel else parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    if named[0] != distribution or urlsplit(url).scheme not in {"http", "https", "file"}:
        return None
    return FileLink(filename=filename, url=without_credentials(url), version=str(named[1]), **facts)


class _Anchors(HTMLParser):
    """Collects what each `<a>` says, as an entry of a JSON page would."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self.entries: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "href" not in found or tag not in {"a", "base"}:
            return
        address = _joined(self._base, found["href"])
        if tag == "base":
            self._base = address
            return
        url, _, fragment = address.partition("#")
        self.entries.append(
            {
                "filename": unquote(url.partition("?")[0].rpartition("/")[2]),
                "url": url,
                "hashes": dict([fragment.partition("=")[::2]]),
                "requires-python": found.get("data-requires-python"),
                "yanked": "data-yanked" in found and (found["data-yanked"] or True),
            }
        )


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address.strip())
    except ValueError:
        return ""


def _entry_link(entry: object, base: str, distribution: str) -> FileLink | None:
    filename, url = (entry.get("filename"), entry.get("url")) if isinstance(entry, dict) else (None, None)
    if not isinstance(entry, dict) or not isinstance(filename, str) or not isinstance(url, str):
        return None
    yanked, size = entry.get("yanked"), entry.get("size")
    return file_link(
        filename,
        _joined(base, url).partition("#")[0],
        distribution,
        hashes=_hashes(entry.get("hashes")),
        requires_python=_text(entry.get("requires-python")),
        yanked=(_text(yanked) or "no reason given") if yanked else None,
        size=size if isinstance(size, int) and size >= 0 else None,
    )


def _hashes(stated: object) -> tuple[tuple[str, str], ...]:
    """Pairs that are an algorithm hashlib has and a digest, the algorithm in lower case."""
    pairs = stated.items() if isinstance(stated, dict) else ()
    found = [(_text(algorithm).lower(), _text(digest).lower()) for algorithm, digest in pairs]
    return tuple((name, value) for name, value in found if name in _ALGORITHMS and _HEXADECIMAL.match(value))


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


FRESH_SECONDS = 600
_MAX_PAGE = 64 << 20
_MAX_FOLDER = 200_000
_ENDINGS = (".whl", ".tar.gz", ".zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPage:
    """What an index answered; of a distribution that it does not know an empty page."""

    url: str
    """After redirects, without credentials: what its relative links start at."""
    fetched: float
    etag: str = ""
    modified: str = ""
    type: str = "text/html"
    body: str = ""


_PAGE = TypeAdapter(KeptPage)


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

    def of_place(self, place: str, distribution: str) -> list[FileLink]:
        """Files at a place: a folder (or its `index.html`), an archive, or the address or path of a page; none of an
        index that does not know the distribution. Raises OfflineError, UpstreamError."""
        if "://" in place and not place.startswith("file:"):
            if urlsplit(place).path.endswith(_ENDINGS):
                name = urlsplit(place).path.rpartition("/")[2]
                found = file_link(name, place.partition("#")[0], distribution)
                return [found] if found is not None else []
            return self.of_page(place, distribution)
        path = local_path(place) if place.startswith("file:") else Path(place).expanduser()
        page = path / "index.html" if path.is_dir() else path
        try:
            if page.suffix in {".html", ".htm"} and page.is_file() and page.stat().st_size <= _MAX_PAGE:
                body = page.read_bytes().decode("utf-8", "replace")
                return read_page(body, "text/html", page.resolve().as_uri(), distribution)
            files = sorted(path.iterdir())[:_MAX_FOLDER] if path.is_dir() else [path]
        except OSError as error:
            raise UpstreamError(f"unreadable folder: {error.strerror}", where=str(path)) from error
        links = [_local_link(file, distribution) for file in files if file.name.endswith(_ENDINGS)]
        return [link for link in links if link is not None]

    def of_page(self, url: str, distribution: str) -> list[FileLink]:
        """Files that a page lists, from the cache where that is new enough."""
        name = f"pages/{hashlib.sha256(without_credentials(url).encode()).hexdigest()[:32]}.json"
        kept = read_kept(self._cache.folder / name, _PAGE)
        if kept is None and self._offline:
            raise OfflineError("this page was never fetched", where=without_credentials(url))
        is_fresh = kept is not None and 0 <= time.time() - kept.fetched < FRESH_SECONDS and not self._fresh
        if kept is None or not (is_fresh or self._offline):
            try:
                kept = self._asked(url, kept)
                self._cache.write(name, _PAGE.dump_json(kept))
            except OfflineError as error:
                if kept is None:
                    raise
                self._report(f"{error.where or without_credentials(url)} does not answer; what it said before is used")
        return read_page(kept.body, kept.type, kept.url, distribution)

    def _asked(self, url: str, kept: KeptPage | None) -> KeptPage:
        known = {"If-None-Match": kept.etag, "If-Modified-Since": kept.modified} if kept is not None else {}
        headers = {"Accept": ACCEPT, **{name: value for name, value in known.items() if value}}
        try:
            answer = self._transport.get(url, headers)
        except RefusedError as error:
            if error.status in {404, 410}:
                return KeptPage(url=without_credentials(url), fetched=time.time())
            raise
        with answer:
            if answer.status == 304 and kept is not None:
                return replace(kept, fetched=time.time())
            packed = answer.read(_MAX_PAGE + 1)
            expected = answer.headers.get("content-length", "")
            if expected.isdecimal() and len(packed) < min(int(expected), _MAX_PAGE):
                raise OfflineError("the connection broke", where=without_credentials(answer.url))
            body = _unpacked(packed, answer)
        return KeptPage(
            url=without_credentials(answer.url),
            fetched=time.time(),
            etag=answer.headers.get("etag", ""),
            modified=answer.headers.get("last-modified", ""),
            type=answer.headers.get("content-type", ""),
            body=body.decode("utf-8", "replace"),
        )


def local_path(url: str) -> Path:
    """Return the path of a file: address."""
    return Path(url2pathname(urlsplit(url).path))


def _unpacked(body: bytes, answer: HttpAnswer) -> bytes:
    """Return the page itself: some servers compress what was asked for as it is."""
    where = without_credentials(answer.url)
    if answer.headers.get("content-encoding", "identity").lower() in {"gzip", "x-gzip", "deflate"}:
        try:
            # gzip or zlib, as the header of the data says
            body = zlib.decompressobj(47).decompress(body, _MAX_PAGE + 1)
        except zlib.error as error:
            raise UpstreamError(f"unreadable page: {error}", where=where) from None
    if len(body) > _MAX_PAGE:
        raise UpstreamError(f"the page is larger than {_MAX_PAGE >> 20} MB", where=where)
    return body


def _local_link(path: Path, distribution: str) -> FileLink | None:
    try:
        resolved = path.resolve(strict=True)
        size = resolved.stat().st_size
    except OSError:
        return None
    return file_link(path.name, resolved.as_uri(), distribution, size=size)


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found, and what did not answer."""

    links: tuple[FileLink, ...]
    asked: tuple[str, ...]
    """Every place, in order, without credentials."""
    failed: tuple[UpstreamError, ...]
    """Why places gave no answer. Their files, if any, are missing from `links`."""


def list_files(distribution: str, settings: IndexSettings, pages: Pages, *, widely: bool = False) -> Listing:
    """Ask every place that counts for a distribution. Of several files with one name the first is kept.

    widely: ask all indexes that are configured, also behind the first one that answers or fails, and beside a file
    or an index that the project names for this distribution. An installer must not do that (it is how a private name
    is taken over by a public one); here sources are only read, and the origin says whose they are."""
    links: dict[str, FileLink] = {}
    asked: list[str] = []
    failed: list[UpstreamError] = []
    alone = None if widely else settings.files.get(distribution)
    plain = [index for index in settings.indexes if not index.explicit]
    indexes = [] if alone else plain if widely else settings.indexes_for(distribution)
    places = [
        (without_credentials(place) if "://" in place else place, place, False)
        for place in ([alone] if alone else settings.find_links)
    ]
    places += [(each.url, each.url if each.flat else f"{each.url}/{distribution}/", True) for each in indexes]
    for shown, place, is_index in places:
        asked.append(shown)
        before = len(links)
        try:
            for link in pages.of_place(place, distribution):
                links.setdefault(link.filename, link)
        except UpstreamError as error:
            failed.append(error)
            before = -1
        # Asking a later index instead of one that fails is how a private name is taken over by a public one
        if is_index and len(links) > before and settings.first_index and not widely:
            break
    return Listing(tuple(links.values()), tuple(asked), tuple(failed))


def grouped(links: Iterable[FileLink]) -> list[VersionInfo]:
    """Versions in ascending order."""
    reasons: dict[Version, list[str | None]] = {}
    for link in sorted(links, key=lambda link: link.filename):
        reasons.setdefault(Version(link.version), []).append(link.yanked)
    return [VersionInfo(version, None if None in told else told[0]) for version, told in sorted(reasons.items())]


_NEAR = 2
"""Versions named on each side of one that does not exist."""


def unknown_package(distribution: str, listing: Listing, known: Sequence[str], *, offline: bool) -> UpstreamError:
    """No place lists any file of a distribution."""
    if offline:
        fix = "run once without --offline, or put its wheel into a folder that PIP_FIND_LINKS or UV_FIND_LINKS names"
        return OfflineError(
            "nothing of it is in the cache, and the network may not be used", where=distribution, fix=fix
        )
    if not listing.asked:
        fix = "set an index or a folder of wheels, or drop PIP_NO_INDEX / UV_NO_INDEX"
        return UpstreamError("no index and no folder of wheels is configured", where=distribution, fix=fix)
    if listing.failed:
        first = listing.failed[0]
        reasons = "; ".join(str(error) for error in listing.failed)
        kind = OfflineError if all(error.code == "offline" for error in listing.failed) else UpstreamError
        return kind(f"no index that answers knows it ({reasons})", where=distribution, fix=first.fix)
    fix = did_you_mean(distribution, (name for name in known if name != distribution))
    asked = ", ".join(listing.asked)
    return UpstreamError(
        f"no package of that name; asked: {asked}", where=distribution, fix=fix or "check its spelling"
    )


def unknown_version(distribution: str, version: str, listing: Listing) -> UpstreamError:
    """Report that the distribution exists, and the version does not, or has no archive that can be read."""
    found = grouped(listing.links)
    usable = [info.version for info in found if info.yanked is None] or [info.version for info in found]
    wanted = Version(version)
    below = [str(one) for one in usable if one < wanted][-_NEAR:]
    above = [str(one) for one in usable if one > wanted][:_NEAR]
    newest = [str(usable[-1])] if usable and str(usable[-1]) not in {*below, *above} else []
    near = ", ".join([*below, *above, *newest])
    failed = f" ({'; '.join(str(error) for error in listing.failed)})" if listing.failed else ""
    message = f"no wheel or source distribution of version {version}{failed}"
    return UpstreamError(message, where=distribution, fix=f"the nearest versions are {near}" if near else "")
