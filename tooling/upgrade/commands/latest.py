"""Finds for each package the newest version that resolves and audits clean, and the first that fails.

Each version is planned as the upgrade itself would plan it, so that what is called clean is not refused afterwards.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.kit.change.plan import Plan
from tooling.upgrade.commands.common import FINDINGS, UPGRADE, add_sources, context_of, end_progress
from tooling.upgrade.errors import ResolverError, UpstreamError
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.manifests.requests import VersionRequest
from tooling.upgrade.operations.auditing import check_looked_at
from tooling.upgrade.operations.context import unknown_now
from tooling.upgrade.operations.upgrading import Upgrade, UpgradeOptions, plan_upgrade

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.errors import ToolError
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
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


def latest(
    context: UpgradeContext, names: Sequence[str], *, lock: bool = True, offline: bool = False
) -> tuple[Latest, ...]:
    """Search for the packages named, or all that are watched and declared. lock: whether a version has to resolve
    together with all others. offline: resolve without the network too.

    Compatibility is assumed to end once: the versions above the present one are searched by halving, so that a package
    with a hundred releases costs seven plans. Both sides of the border are planned, so what is reported is true of
    them; that a version in between behaves otherwise is possible and not looked for.

    Raises UsageError for a name that no manifest gives a version, ResolverError where uv itself fails: it would for the
    next package too."""
    for name in names:
        if context.baseline(name) is None:
            raise unknown_now(context, name, "name a package that a manifest gives a version")
    wanted = names or [each.distribution for each in context.policy.packages if each.declared]
    return tuple(_latest(context, name, lock, offline) for name in wanted)


def _latest(context: UpgradeContext, name: str, lock: bool, offline: bool) -> Latest:
    found = context.baseline(name)
    if found is None:
        return Latest(name, "", "", "", "", problem="no manifest says which version is used now")
    try:
        # Released versions above the current one, ascending; no pre-releases, none that was yanked
        from packaging.version import Version

        candidates = [
            str(each.version)
            for each in context.catalogue.versions(name)
            if not each.yanked and not each.version.is_prerelease and each.version > Version(found.version)
        ]
    except UpstreamError as error:
        return Latest(name, found.version, "", "", "", problem=str(error))
    if not candidates:
        return Latest(name, found.version, found.version, found.version, "")
    try:
        skipped: list[str] = []

        @functools.cache
        def planned(version: str) -> Upgrade:
            context.report(f"{name} {version}: planning")
            options = UpgradeOptions(
                requests=(VersionRequest(name, version),), lock=lock, checklists=False, offline=offline
            )
            upgrade = Upgrade(options, Plan(context.root))
            try:
                plan_upgrade(context, upgrade)
                check_looked_at(context, [each for each in upgrade.audits if each.distribution == name])
            except UpstreamError as error:
                skipped.append(f"{version}: {error.message}")
                upgrade.problem = error
            if isinstance(upgrade.problem, ResolverError):
                raise upgrade.problem
            return upgrade

        def is_refused(index: int) -> bool:
            found = planned(candidates[index])
            return bool(found.problem) or any(each.worst() is AuditSeverity.BREAKING for each in found.audits)

        high = len(candidates)
        if is_refused(high - 1):
            high = bisect.bisect_left(range(high), True, key=is_refused)
        clean = candidates[high - 1] if high else found.version
        if high == len(candidates):
            return Latest(name, found.version, candidates[-1], clean, "", skipped=tuple(skipped))
        first = planned(candidates[high])
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


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these (default: all watched)")
    parser.add_argument("--no-lock", dest="lock", action="store_false", help="do not resolve")
    add_sources(parser)
    shown = parser.add_argument_group("how it is shown")
    shown.add_argument("--markdown", action="store_true", help="print a table for a pull request, or a job's summary")


def run(arguments: argparse.Namespace) -> Report:
    """Search and report; change nothing."""
    from packaging.utils import canonicalize_name

    from tooling.cli.report import Report, aligned
    from tooling.upgrade.report.document import document, escaped, table

    for word in arguments.packages:
        if "=" in word:
            raise UsageError(f"{word!r} names a version", fix=f"write `{UPGRADE} latest PACKAGE`")
    context = context_of(arguments)
    names = [canonicalize_name(word) for word in arguments.packages]
    found = latest(context, names, lock=arguments.lock, offline=arguments.offline is not None)
    end_progress()
    if not found:
        raise UsageError("no watched package is declared here", fix=f"name one: `{UPGRADE} latest PACKAGE`")
    problem: ToolError | None = None
    if all(one.problem for one in found):
        message = f"nothing could be found out: {found[0].problem}"
        kind = UsageError if all(one.looked_at_nothing for one in found) else UpstreamError
        problem = kind(message, where=found[0].distribution, fix="see the rows above, then try again")
    rows = [("package", "now", "newest", "clean up to", "first that does not", "why")]
    rows += [
        (one.distribution, one.current, one.newest, one.clean, one.breaking or "-", one.problem or _why(one))
        for one in found
    ]
    skipped = [f"{one.distribution} {each}" for one in found for each in one.skipped]
    shown = aligned(rows)
    if arguments.markdown:
        shown = "\n".join(table(rows[0], [tuple(map(escaped, row)) for row in rows[1:]]))
    titles = [f"{one.distribution}=={one.clean}" for one in found if one.clean not in ("", one.current)]
    option = "" if arguments.lock else " --no-lock"
    return Report(
        command=f"{UPGRADE} latest",
        problem=problem,
        exit_code=None if problem else FINDINGS if any(one.breaking for one in found) else 0,
        changing=False,
        next_steps=() if arguments.markdown else tuple(f"{UPGRADE} {each}{option}" for each in titles),
        text="\n".join(
            [shown, *(f"\nnot audited: {line}" if arguments.markdown else f"not audited: {line}" for line in skipped)]
        )
        + "\n",
        data={
            "packages": [
                {
                    "distribution": one.distribution,
                    "current": one.current,
                    "newest": one.newest,
                    "clean": one.clean,
                    "breaking": one.breaking or None,
                    "refused": one.refused or None,
                    "skipped": list(one.skipped),
                    "problem": one.problem or None,
                    **document(one.audits),
                }
                for one in found
            ],
            "sources": [asdict(origin) for origin in context.origins()],
        },
    )


def _why(one: Latest) -> str:
    if one.refused:
        return one.refused
    breaking = [finding for audit in one.audits for finding in audit.findings if finding.severity == "breaking"]
    if not breaking:
        return ""
    more = f" and {len(breaking) - 1} more" if len(breaking) > 1 else ""
    return f"{breaking[0].path}:{breaking[0].line} {breaking[0].message}{more}"
