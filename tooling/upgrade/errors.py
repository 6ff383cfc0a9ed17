"""What an upgrade may end with, beside the kit's errors.

ToolError
+-- ResolutionError    9   resolution   no set of versions satisfies all requirements
|   +-- ResolverError  9   resolver     ... or there is no answer, because the resolver itself failed
+-- UpstreamError      11  upstream     a release or its source cannot be read
    +-- OfflineError   11  offline      ... because the cache lacks it and the network may not be used
    +-- ArchiveError   11  archive      ... because the archive is damaged, forged or hostile
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ResolutionError(ToolError):
    """No set of versions satisfies all requirements; `details` says who requires what."""

    exit_code = 9
    code = "resolution"

    def __init__(
        self, message: str, *, where: str = "", fix: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        """details: further fields of the JSON object: `causes` as records, `raw` as the resolver's own words."""
        super().__init__(message, where=where, fix=fix)
        self.details = dict(details or {})


class ResolverError(ResolutionError):
    """The resolver failed before it had an answer: no interpreter, a file that it cannot read, no end in time."""

    code = "resolver"


class UpstreamError(ToolError):
    """A release or its source could not be read."""

    exit_code = 11
    code = "upstream"


class OfflineError(UpstreamError):
    """The cache lacks it, and the network may not be used or is not there."""

    code = "offline"


class ArchiveError(UpstreamError):
    """The archive is damaged, forged or hostile; nothing of it was kept."""

    code = "archive"
