"""`latest`: for each watched package the newest version that audits clean, and the first that does not.

Compatibility is assumed to end once: the versions above the present one are searched by halving, so that a package with
a hundred releases costs seven audits. Both sides of the border are audited, so what is reported is true of them; that a
version in between behaves otherwise is possible and not looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.manifests.baseline import baseline
from tooling.upgrade.operations.auditing import Move, audit_moves, check_looked_at
from tooling.upgrade.operations.context import unknown_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import Audit
    from tooling.upgrade.operations.context import UpgradeContext


@dataclass(frozen=True, slots=True)
class Latest:
    """One package."""

    distribution: str
    current: str
    newest: str
    """The newest release there is; "" if none could be listed."""
    clean: str
    """The newest that audits without a breaking finding: the current one if none does."""
    breaking: str
    """The first that does not; "" if all do."""
    audit: Audit | None
    """Of `breaking`."""
    skipped: tuple[str, ...] = ()
    """Versions whose source could not be read, and why."""
    problem: str = ""
    """Why nothing could be said."""
    looked_at_nothing: bool = False
    """Whether that is because no file that uses the package is in scope."""


def latest(context: UpgradeContext, names: Sequence[str]) -> tuple[Latest, ...]:
    """For the packages named, or all that are watched and declared. Raises UsageError for a name that no manifest
    gives a version."""
    for name in names:
        if baseline(name, context.declarations, context.policy, context.root) is None:
            raise unknown_now(context, name, "name a package that a manifest gives a version")
    wanted = names or [each.distribution for each in context.policy.packages if each.declared]
    return tuple(_latest(context, name) for name in wanted)


def _latest(context: UpgradeContext, name: str) -> Latest:
    found = baseline(name, context.declarations, context.policy, context.root)
    if found is None:
        return Latest(name, "", "", "", "", None, problem="no manifest says which version is used now")
    try:
        # Released versions above the current one, ascending; no pre-releases, none that was yanked
        from packaging.version import Version

        candidates = [
            each.text
            for each in context.catalogue.versions(name)
            if not each.yanked and not each.version.is_prerelease and each.version > Version(found.version)
        ]
    except UpstreamError as error:
        return Latest(name, found.version, "", "", "", None, problem=str(error))
    if not candidates:
        return Latest(name, found.version, found.version, found.version, "", None)
    try:
        skipped: list[str] = []
        audits: dict[str, Audit | None] = {}

        def breaks(index: int) -> bool:
            version = candidates[index]
            if version not in audits:
                context.report(f"{name} {version}: auditing")
                try:
                    (audits[version],) = done = audit_moves(context, [Move(name, found.version, version)])
                    check_looked_at(context, done)
                except UpstreamError as error:
                    skipped.append(f"{version}: {error.message}")
                    audits[version] = None
            audit = audits[version]
            return audit is not None and audit.worst() is AuditSeverity.BREAKING

        low, high = 0, len(candidates)
        if breaks(high - 1):
            while low < high:
                middle = (low + high) // 2
                if breaks(middle):
                    high = middle
                else:
                    low = middle + 1
        first = high if high < len(candidates) else -1
        clean = candidates[first - 1] if first > 0 else found.version if first == 0 else candidates[-1]
        breaking = candidates[first] if first >= 0 else ""
        return Latest(name, found.version, candidates[-1], clean, breaking, audits.get(breaking), tuple(skipped))
    except UsageError as error:
        return Latest(name, found.version, candidates[-1], "", "", None, problem=str(error), looked_at_nothing=True)
