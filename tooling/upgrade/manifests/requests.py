"""What was asked for: "vllm==0.18.0", "torch==2.10.0@vllm"; checked against the policy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.upgrade.manifests.specifiers import parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.policy.watched import UpgradePolicy

_REQUEST = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*(?P<version>[^\s@=<>,;]+)(?:@(?P<variant>[\w.-]+))?$"
)


@dataclass(frozen=True, slots=True, order=True)
class VersionRequest:
    """One package and the version it is to have."""

    distribution: str
    version: str
    variant: str = ""
    """ "" for all variants that have the package."""

    def __str__(self) -> str:
        variant = f"@{self.variant}" if self.variant else ""
        return f"{self.distribution}=={self.version}{variant}"


def parse_request(text: str) -> VersionRequest:
    """Parse the request that a command line names. Raises UsageError for anything else."""
    hit = _REQUEST.match(text.strip())
    if hit is None:
        raise UsageError(f"{text!r} names no version", fix="write PACKAGE==VERSION, or PACKAGE==VERSION@VARIANT")
    parse_version(hit["version"])
    return VersionRequest(canonicalize_name(hit["name"]), hit["version"], hit["variant"] or "")


def check_requests(requests: Sequence[VersionRequest], policy: UpgradePolicy) -> tuple[VersionRequest, ...]:
    """Return the requests, each once. Raises UsageError for unknown variants, variants that do not have the package,
    packages whose variants differ when none is named, and for two versions of one package."""
    for request in requests:
        names = [each.name for each in policy.variants]
        package = policy.package(request.distribution)
        own = list(package.variants) if package and package.variants else names
        if not request.variant:
            if package and package.scope == "divergent" and len(names) > 1:
                forms = " or ".join(f"{request.distribution}=={request.version}@{name}" for name in own)
                message = f"{request.distribution} has a version of its own in each variant ({', '.join(own)})"
                raise UsageError(message, where=str(request), fix=f"say which one: {forms}")
            continue
        if request.variant not in names:
            advice = did_you_mean(request.variant, names) or f"variants: {', '.join(names)}"
            raise UsageError(f"unknown variant {request.variant!r}", where=str(request), fix=advice)
        if request.variant not in own:
            message = f"{request.distribution} is not part of variant {request.variant!r}"
            raise UsageError(message, where=str(request), fix=f"it belongs to {', '.join(own)}")
    unique = tuple(dict.fromkeys(requests))
    for index, one in enumerate(unique):
        for other in unique[:index]:
            overlap = one.variant == other.variant or not one.variant or not other.variant
            if one.distribution == other.distribution and one.version != other.version and overlap:
                fix = "ask for one version, or name a variant for each"
                raise UsageError(f"{one} and {other} contradict each other", fix=fix)
    return unique
