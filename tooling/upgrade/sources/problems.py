"""The errors of looking a release up, worded: what was asked for, who was asked, what comes near."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from tooling.cli.suggest import did_you_mean
from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.index.listing import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.sources.index.listing import Listing
    from tooling.upgrade.sources.links import FileLink

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
        told = "; ".join(str(error) for error in listing.failed)
        kind = OfflineError if all(error.code == "offline" for error in listing.failed) else UpstreamError
        return kind(f"no index that answers knows it ({told})", where=distribution, fix=first.fix)
    fix = did_you_mean(distribution, (name for name in known if name != distribution))
    asked = ", ".join(listing.asked)
    return UpstreamError(
        f"no package of that name; asked: {asked}", where=distribution, fix=fix or "check its spelling"
    )


def unknown_version(distribution: str, version: str, listing: Listing) -> UpstreamError:
    """The distribution exists, the version does not, or has no archive that can be read."""
    found = grouped(listing.links)
    usable = [info.version for info in found if info.yanked is None] or [info.version for info in found]
    wanted = Version(version)
    below = [str(one) for one in usable if one < wanted][-_NEAR:]
    above = [str(one) for one in usable if one > wanted][:_NEAR]
    newest = [str(usable[-1])] if usable and str(usable[-1]) not in {*below, *above} else []
    near = ", ".join([*below, *above, *newest])
    failed = f" ({'; '.join(str(error) for error in listing.failed)})" if listing.failed else ""
    message = f"there is no wheel or source distribution of version {version}{failed}"
    return UpstreamError(message, where=distribution, fix=f"the nearest versions are {near}" if near else "")


def not_cached(link: FileLink) -> OfflineError:
    """The file is known and its sources are not here."""
    fix = "run once without --offline"
    return OfflineError("the cache lacks it, and the network may not be used", where=link.filename, fix=fix)
