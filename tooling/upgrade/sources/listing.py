"""List the files of a distribution from all configured places, and word the errors of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from tooling.cli.suggest import did_you_mean
from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.links import VersionInfo, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.upgrade.sources.index_config import IndexSettings
    from tooling.upgrade.sources.links import FileLink
    from tooling.upgrade.sources.pages import Pages


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

    def add(found: Iterable[FileLink]) -> bool:
        before = len(links)
        for link in found:
            links.setdefault(link.filename, link)
        return len(links) > before

    alone = None if widely else settings.files.get(distribution)
    stops = settings.first_index and not widely
    places = [alone] if alone else list(settings.find_links)
    for place in places:
        asked.append(without_credentials(place) if "://" in place else place)
        try:
            add(pages.of_place(place, distribution))
        except UpstreamError as error:
            failed.append(error)
    plain = [index for index in settings.indexes if not index.explicit]
    for index in [] if alone else plain if widely else settings.indexes_for(distribution):
        asked.append(index.url)
        try:
            if add(pages.of_index(index, distribution)) and stops:
                break
        except UpstreamError as error:
            failed.append(error)
            if stops:
                break  # asking a later index instead is how a private name is taken over by a public one
    return Listing(tuple(links.values()), tuple(asked), tuple(failed))


def grouped(links: Iterable[FileLink]) -> list[VersionInfo]:
    """Versions in ascending order, each with its files by name."""
    by_version: dict[Version, list[FileLink]] = {}
    for link in links:
        try:
            by_version.setdefault(Version(link.version), []).append(link)
        except InvalidVersion:
            continue
    found = []
    for version, unordered in sorted(by_version.items(), key=lambda item: item[0]):
        files = tuple(sorted(unordered, key=lambda link: link.filename))
        wheels = [link for link in files if link.is_wheel] or files
        info = VersionInfo(
            version=version,
            files=files,
            yanked=files[0].yanked if all(link.yanked is not None for link in files) else None,
            requires_python=next((link.requires_python for link in wheels if link.requires_python), ""),
            uploaded=min((link.uploaded for link in files if link.uploaded), default=""),
        )
        found.append(info)
    return found


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


def not_cached(link: FileLink) -> OfflineError:
    """Report that the file is known and its sources are not here."""
    fix = "run once without --offline"
    return OfflineError("the cache lacks it, and the network may not be used", where=link.filename, fix=fix)
