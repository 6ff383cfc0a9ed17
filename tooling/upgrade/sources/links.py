"""Describe the files that indexes list, and choose which file of a version is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.tags import Tag
    from packaging.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """A wheel or sdist that can be fetched."""

    filename: str
    url: str
    """https:, http: or file:; never with credentials."""
    version: str
    hashes: tuple[tuple[str, str], ...] = ()
    """(algorithm, hexadecimal digest), as the index states them."""
    requires_python: str = ""
    yanked: str | None = None
    """Why; "no reason given" where the index gives none, None if it is not yanked."""
    size: int | None = None

    @property
    def is_wheel(self) -> bool:
        """Whether it is not an sdist."""
        return self.filename.endswith(".whl")

    @property
    def sha256(self) -> str:
        """The stated SHA-256, "" if there is none."""
        return dict(self.hashes).get("sha256", "")

    @property
    def is_vouched_for(self) -> bool:
        """Whether a hash is stated that nobody can forge."""
        return any(name not in {"md5", "sha1"} for name, _ in self.hashes)


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version of a distribution, all its files taken together."""

    version: Version
    yanked: str | None = None
    """Why; None unless every file is yanked."""


def without_credentials(url: str) -> str:
    """Return the URL as it may be shown and stored. Unreadable ones become "<unreadable address>"."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "<unreadable address>"
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


def credentials_of(url: str) -> tuple[str, str] | None:
    """User and password written into a URL, decoded; None if there are none."""
    userinfo, at, _ = urlsplit(url).netloc.rpartition("@")
    if not at:
        return None
    user, _, password = userinfo.partition(":")
    return unquote(user), unquote(password)


def choose(links: Iterable[FileLink], python: str) -> FileLink | None:
    """Of one version's files: a wheel before an sdist, and of the wheels a pure one, one for this machine, one for
    Linux on x86-64 and this Python, any. Files that are yanked or need another Python come after those that do not.

    python: as in "3.11"."""
    return min(links, key=lambda link: _rank(link, python), default=None)


def _rank(link: FileLink, python: str) -> tuple[object, ...]:
    try:
        fits = SpecifierSet(link.requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        fits = True
    # Later builds of one wheel first
    number, text = parse_wheel_filename(link.filename)[2] or (0, "") if link.is_wheel else (0, "")
    return (
        not link.is_wheel,
        link.yanked is not None,
        not fits,
        _tag_rank(link, python),
        (-number, text),
        link.filename,
    )


def _tag_rank(link: FileLink, python: str) -> int:
    if not link.is_wheel:
        return 0
    tags = parse_wheel_filename(link.filename)[3]
    linux = [tag for tag in tags if "linux" in tag.platform and tag.platform.endswith("x86_64")]
    fits = (
        any(tag.platform == "any" and tag.abi == "none" for tag in tags),
        bool(tags & _own_tags()),
        any(tag.interpreter == "cp" + python.replace(".", "") for tag in linux),
        any(tag.abi == "abi3" for tag in linux),
        bool(linux),
        True,
    )
    return fits.index(True)


@cache
def _own_tags() -> frozenset[Tag]:
    return frozenset(sys_tags())
