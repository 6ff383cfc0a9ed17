"""Pages of the Simple API, HTML (PEP 503) and JSON (PEP 691), as file links. Pure functions; what a page contains is
untrusted: entries that make no sense are left out, and no page makes reading it raise."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from tooling.upgrade.sources.links import FileLink, without_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HEXADECIMAL = re.compile(r"[0-9a-f]{32,128}\Z")
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "sha224", "sha1", "md5"})


def read_page(body: bytes, content_type: str, url: str, distribution: str) -> list[FileLink]:
    """The files of one distribution that a page lists; those of others are left out.

    url: where the page came from, for its relative links."""
    if "json" in content_type:
        try:
            page = json.loads(body)
        except (ValueError, RecursionError):
            return []
        entries = page.get("files") if isinstance(page, dict) else None
        found = []
        for entry in entries if isinstance(entries, list) else []:
            link = _entry_link(entry, url, distribution) if isinstance(entry, dict) else None
            if link is not None:
                found.append(link)
        return found
    parser = _Anchors(url)
    parser.feed(body.decode("utf-8", "replace"))
    parser.close()
    return [link for anchor in parser.anchors if (link := _anchor_link(anchor, distribution, url)) is not None]


def file_link(filename: str, url: str, distribution: str, **facts: Any) -> FileLink | None:
    """A link as a record; None when the name is neither a wheel nor an sdist of the distribution."""
    named = parse_filename(filename)
    if named is None or named[0] != distribution or urlsplit(url).scheme not in {"http", "https", "file"}:
        return None
    return FileLink(filename=filename, url=without_credentials(url), version=named[1], is_wheel=named[2], **facts)


def parse_filename(filename: str) -> tuple[str, str, bool] | None:
    """(normalised distribution, version, whether it is a wheel); None for other files."""
    try:
        if filename.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(filename)
            return name, str(version), True
        name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return name, str(version), False


class _Anchors(HTMLParser):
    """Collects the attributes of `<a>`, with `href` made absolute."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self.anchors: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "base" and "href" in found:
            self._base = _joined(self._base, found["href"])
        elif tag == "a" and "href" in found:
            self.anchors.append({**found, "href": _joined(self._base, found["href"])})


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address.strip())
    except ValueError:
        return ""


def _anchor_link(anchor: Mapping[str, str], distribution: str, source: str) -> FileLink | None:
    url, _, fragment = anchor["href"].partition("#")
    filename = unquote(url.partition("?")[0].rpartition("/")[2])
    metadata = anchor.get("data-core-metadata", anchor.get("data-dist-info-metadata"))
    yanked = anchor.get("data-yanked")
    return file_link(
        filename,
        url,
        distribution,
        hashes=_hashes([fragment.partition("=")[::2]]),
        requires_python=anchor.get("data-requires-python", ""),
        yanked=None if yanked is None else yanked or "no reason given",
        metadata=metadata is not None and metadata.lower() != "false",
        metadata_sha256=dict(_hashes([(metadata or "").partition("=")[::2]])).get("sha256", ""),
        source=without_credentials(source),
    )


def _entry_link(entry: Mapping[str, Any], base: str, distribution: str) -> FileLink | None:
    filename, url = entry.get("filename"), entry.get("url")
    if not isinstance(filename, str) or not isinstance(url, str):
        return None
    metadata = entry.get("core-metadata", entry.get("dist-info-metadata"))
    metadata_hashes = _hashes(list(metadata.items())) if isinstance(metadata, dict) else ()
    hashes = entry.get("hashes")
    yanked = entry.get("yanked")
    size = entry.get("size")
    return file_link(
        filename,
        _joined(base, url).partition("#")[0],
        distribution,
        hashes=_hashes(list(hashes.items())) if isinstance(hashes, dict) else (),
        requires_python=_text(entry.get("requires-python")),
        yanked=(_text(yanked) or "no reason given") if yanked else None,
        size=size if isinstance(size, int) and size >= 0 else None,
        uploaded=_text(entry.get("upload-time")),
        metadata=bool(metadata),
        metadata_sha256=dict(metadata_hashes).get("sha256", ""),
        source=without_credentials(base),
    )


def _hashes(pairs: list[Any]) -> tuple[tuple[str, str], ...]:
    """Pairs that are an algorithm hashlib has and a digest, the algorithm in lower case."""
    found = []
    for algorithm, digest in pairs:
        name, value = _text(algorithm).lower(), _text(digest).lower()
        if name in _ALGORITHMS and _HEXADECIMAL.match(value):
            found.append((name, value))
    return tuple(found)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
