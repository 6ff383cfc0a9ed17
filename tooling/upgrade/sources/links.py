"""What an index says about a distribution, whatever dialect it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from packaging.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """A wheel or sdist that can be had."""

    filename: str
    url: str
    """https:, http: or file:; never with credentials."""
    version: str
    is_wheel: bool
    hashes: tuple[tuple[str, str], ...] = ()
    """(algorithm, hexadecimal digest), as the index states them."""
    requires_python: str = ""
    yanked: str | None = None
    """Why; "no reason given" where the index gives none, None if it is not yanked."""
    size: int | None = None
    uploaded: str = ""
    """ISO 8601, "" if the index does not say."""
    metadata: bool = False
    """Whether `url` + ".metadata" can be had (PEP 658)."""
    metadata_sha256: str = ""
    source: str = ""
    """The index or folder that lists it, without credentials."""

    @property
    def sha256(self) -> str:
        """The stated SHA-256, "" if there is none."""
        return dict(self.hashes).get("sha256", "")

    @property
    def is_vouched_for(self) -> bool:
        """Whether a hash is stated that nobody can forge."""
        return any(name not in {"md5", "sha1"} for name, _ in self.hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """One version of a distribution, all its files taken together."""

    version: Version
    files: tuple[FileLink, ...]
    yanked: str | None = None
    """Why; None unless every file is yanked."""
    requires_python: str = ""
    uploaded: str = ""
    """When its first file came, ISO 8601; "" if unknown."""

    @property
    def text(self) -> str:
        """As the files write it, normalised."""
        return str(self.version)


def without_credentials(url: str) -> str:
    """The URL as it may be shown and stored. Unreadable ones become "<unreadable address>"."""
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
