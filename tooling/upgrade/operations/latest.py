"""`latest`: for each watched package the newest version that resolves and breaks no line, and the first that does not.

Each version is planned as the upgrade itself plans it (`plan_upgrade`): declarations, environments and uses. So what is
called clean is not refused by the command that comes next. Compatibility is assumed to end once: the versions above the
present one are searched by halving, so that a package with a hundred releases costs seven plans. Both sides of the
border are planned, so what is reported is true of them; that a version in between behaves otherwise is possible and not
looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.kit.change.plan import Plan
from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.manifests.baseline import baseline
from tooling.upgrade.manifests.requests import VersionRequest
from tooling.upgrade.operations.auditing import check_looked_at
from tooling.upgrade.operations.context import unknown_now
from tooling.upgrade.operations.upgrading import Upgrade, UpgradeOptions, plan_upgrade

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
    """The newest that resolves and audits without a breaking finding: the current one if none does."""
    breaking: str
    """The first that does not; "" if all do."""
    audits: tuple[Audit, ...] = ()
    """Of `breaking`, and of what moves together with it."""
    refused: str = ""
    """Why an upgrade to `breaking` would be refused, with what is in the way; "" if only lines break."""
    skipped: tuple[str, ...] = ()
    """Versions whose source could not be read, and why. None of them is called clean."""
    problem: str = ""
    """Why nothing could be said."""
    looked_at_nothing: bool = False
    """Whether that is because no file that uses the package is in scope."""


def latest(context: UpgradeContext, names: Sequence[str], *, offline: bool = False) -> tuple[Latest, ...]:
    """Search for the packages named, or all that are watched and declared. offline: resolve without the network too.

    Raises UsageError for a name that no manifest gives a version."""
    for name in names:
        if baseline(name, context.declarations, context.policy, context.root) is None:
            raise unknown_now(context, name, "name a package that a manifest gives a version")
    wanted = names or [each.distribution for each in context.policy.packages if each.declared]
    return tuple(_latest(context, name, offline) for name in wanted)


def _latest(context: UpgradeContext, name: str, offline: bool) -> Latest:
    found = baseline(name, context.declarations, context.policy, context.root)
    if found is None:
        return Latest(name, "", "", "", "", problem="no manifest says which version is used now")
    try:
        # Released versions above the current one, ascending; no pre-releases, none that was yanked
        from packaging.version import Version

        candidates = [
            each.text
            for each in context.catalogue.versions(name)
            if not each.yanked and not each.version.is_prerelease and each.version > Version(found.version)
        ]
    except UpstreamError as error:
        return Latest(name, found.version, "", "", "", problem=str(error))
    if not candidates:
        return Latest(name, found.version, found.version, found.version, "")
    try:
        plans: dict[str, Upgrade] = {}
        skipped: list[str] = []

        def is_refused(index: int) -> bool:
            version = candidates[index]
            if version not in plans:
                context.report(f"{name} {version}: planning")
                options = UpgradeOptions(requests=(VersionRequest(name, version),), checklists=False, offline=offline)
                plans[version] = upgrade = Upgrade(options, Plan(context.root))
                try:
                    plan_upgrade(context, upgrade)
                    check_looked_at(context, [each for each in upgrade.audits if each.distribution == name])
                except UpstreamError as error:
                    skipped.append(f"{version}: {error.message}")
                    upgrade.problem = error
            found = plans[version]
            return bool(found.problem) or any(each.worst() is AuditSeverity.BREAKING for each in found.audits)

        low, high = 0, len(candidates)
        if is_refused(high - 1):
            while low < high:
                middle = (low + high) // 2
                if is_refused(middle):
                    high = middle
                else:
                    low = middle + 1
        clean = candidates[high - 1] if high else found.version
        if high == len(candidates):
            return Latest(name, found.version, candidates[-1], clean, "", skipped=tuple(skipped))
        first = plans[candidates[high]]
        return Latest(
            name,
            found.version,
            candidates[-1],
            clean,
            candidates[high],
            first.audits,
            ": ".join(filter(None, (first.problem.where, first.problem.message))) if first.problem else "",
            tuple(skipped),
        )
    except UsageError as error:
        return Latest(name, found.version, candidates[-1], "", "", problem=str(error), looked_at_nothing=True)
