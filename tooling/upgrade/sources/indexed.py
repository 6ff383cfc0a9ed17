"""Releases from the user's package indexes, or from the cache.

catalogue = Catalogue(default_folder(), offline=False)
release = catalogue.release("vllm", "0.18.0")
[str(found.version) for found in catalogue.versions("vllm")]
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from tooling.cli.errors import UsageError
from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.cache import Cache
from tooling.upgrade.sources.fetching import Fetcher
from tooling.upgrade.sources.index_config import read_settings
from tooling.upgrade.sources.links import FileLink, VersionInfo, choose
from tooling.upgrade.sources.pages import (
    Listing,
    Pages,
    grouped,
    list_files,
    unknown_package,
    unknown_version,
)
from tooling.upgrade.sources.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tooling.upgrade.releases import Release
    from tooling.upgrade.sources.index_config import IndexSettings


_PYTHON = "3.11"
"""Whose wheels are preferred."""


class Catalogue:
    """What the user's indexes have, asked as seldom as possible. One instance serves a whole run; all methods may be
    called from several threads."""

    def __init__(
        self,
        cache: Path,
        *,
        offline: bool = False,
        project: Path | None = None,
        settings: IndexSettings | None = None,
        known: Iterable[str] = (),
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """cache: folder, made when needed. project: whose configuration counts
        beside the user's. settings: instead of reading any. known: names of distributions, to suggest from.
        report: called with a line about what takes time."""
        self._settings = settings if settings is not None else read_settings(project)
        self._offline = offline or self._settings.offline
        self._cache = Cache(cache)
        self._transport = Transport(self._settings)
        self._known = frozenset(known)
        self._report = report
        self._fetcher = Fetcher(self._transport, self._cache, report)
        self._listings: dict[tuple[str, bool], Listing] = {}

    def versions(self, name: str) -> list[VersionInfo]:
        """All versions of a distribution, ascending; pre-releases and yanked ones too.

        Raises UpstreamError when no index knows it, OfflineError when none could be asked."""
        distribution = _normalised(name)
        return grouped(self._listed(distribution).links)

    def release(self, name: str, text: str) -> Release:
        """Return the sources of a release. A yanked one is given, and says so in its origin.

        Raises UsageError for what is not a name or version, UpstreamError when there is no such release or it has no
        archive, OfflineError when it is not cached and cannot be fetched, ArchiveError when its archive is bad."""
        distribution = _normalised(name)
        try:
            version = Version(text)
        except InvalidVersion:
            raise UsageError(f"not a version: {text!r}", fix="write one as 0.18.0") from None
        started = time.monotonic()
        try:
            link = self._chosen(distribution, version)
            release, count = self._opened(link, distribution)
        except UpstreamError as error:
            error.where = error.where or distribution
            raise
        seconds = round(time.monotonic() - started, 3)
        release.origin = replace(release.origin, yanked=link.yanked, bytes_read=count, seconds=seconds)
        return release

    def cached_between(self, name: str, old: str, new: str) -> list[str]:
        """Versions between two whose sources are in the cache, ascending: reading them costs no request."""
        found = {Version(version) for version in self._cache.versions(_normalised(name))}
        return [str(version) for version in sorted(found) if Version(old) < version < Version(new)]

    # ------------------------------------------------------------------------------------------------------- which file

    def _chosen(self, distribution: str, version: Version) -> FileLink:
        listing = self._listed(distribution)
        matching = _matching(listing.links, version)
        if not matching and not self._offline:
            # A page from the cache may be older than the release.
            listing = self._listed(distribution, fresh=True)
            matching = _matching(listing.links, version)
        if not matching and self._more_places(listing):
            self._report(f"{distribution} {version}: not where the project looks first; asking the other indexes")
            listing = self._listed(distribution, widely=True)
            matching = _matching(listing.links, version)
        link = choose(matching, _PYTHON)
        if link is None:
            raise unknown_version(distribution, str(version), listing)
        return link

    def _listed(self, distribution: str, *, fresh: bool = False, widely: bool = False) -> Listing:
        if not fresh and (distribution, widely) in self._listings:
            return self._listings[distribution, widely]
        pages = Pages(self._transport, self._cache, self._report, offline=self._offline, fresh=fresh)
        listing = list_files(distribution, self._settings, pages, widely=widely)
        if not listing.links and not widely and self._more_places(listing):
            self._report(f"{distribution}: nothing where the project looks first; asking the other indexes")
            listing = list_files(distribution, self._settings, pages, widely=True)
        if listing.links:
            self._listings[distribution, widely] = listing
            return listing
        if not fresh and not self._offline and listing.asked and not listing.failed:
            return self._listed(distribution, fresh=True)  # a page from the cache may be older than the package
        if self._offline or listing.failed:
            # Which files there are is not known; those that were fetched once are known to be.
            links = tuple(
                FileLink(
                    filename=known.filename,
                    url=known.url,
                    version=known.version,
                    hashes=(("sha256", known.sha256),) if known.sha256 else (),
                )
                for known in (entry.origin for entry in self._cache.entries(distribution))
            )
            if links:
                return Listing(links, listing.asked, listing.failed)
        raise unknown_package(
            distribution, listing, sorted(self._known | set(self._cache.distributions())), offline=self._offline
        )

    def _more_places(self, listing: Listing) -> bool:
        """Whether an index is configured that was not asked."""
        return any(index.url not in listing.asked for index in self._settings.indexes if not index.explicit)

    # ------------------------------------------------------------------------------------------------------ its sources

    def _opened(self, link: FileLink, distribution: str) -> tuple[Release, int]:
        is_local = link.url.startswith("file:")
        entry = self._cache.entry(distribution, link.url, link.sha256)
        stamp = entry.stamp if entry is not None else ""
        if is_local or not self._offline:
            try:
                stamp = self._fetcher.stamp(link)
            except OSError as error:
                raise UpstreamError(f"unreadable archive: {error.strerror}", where=link.url) from error
            except OfflineError:
                if entry is None:
                    raise
        if entry is not None and entry.stamp == stamp:
            release = self._cache.release(entry)
            if release is not None:
                return release, 0
            self._report(f"{link.filename}: what the cache had of it is gone or damaged")
        if self._offline and not is_local:
            message, fix = "the cache lacks it, and the network may not be used", "run once without --offline"
            raise OfflineError(message, where=link.filename, fix=fix)
        return self._fetcher.fetch(link, distribution, stamp)


def _normalised(name: str) -> str:
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        raise UsageError(f"not a name of a distribution: {name!r}") from None


def _matching(links: Iterable[FileLink], version: Version) -> list[FileLink]:
    """Files of a version; where there are none and it has no local part, those of the highest one with any (+cpu)."""
    found = [(Version(link.version), link) for link in links]
    same = [link for actual, link in found if actual == version]
    if same or version.local:
        return same
    local = [(actual, link) for actual, link in found if actual.public == version.public]
    highest = max((actual for actual, _ in local), default=None)
    return [link for actual, link in local if actual == highest]
