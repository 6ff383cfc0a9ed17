"""Share what several commands need: arguments, the repository, the lock around writing, and fields for JSON."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.git import nearest_root

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.cli.git import Repository
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.operations.upgrading import Upgrade, UpgradeOptions

UPGRADE: Final = "areal-upgrade-deps"
FINDINGS: Final = 10
"""Exit code of an audit that found something; `audits[].worst` says whether it breaks."""


def add_requests(parser: Parser) -> None:
    """Add which packages are moved, and from which version."""
    parser.add_argument("requests", nargs="*", metavar="PACKAGE==VERSION[@VARIANT]", help="versions to move to")
    parser.add_argument(
        "--from",
        dest="old",
        action="append",
        default=[],
        metavar="OLD",
        help="version to compare with (PACKAGE==OLD if several are upgraded; default: what the repository declares)",
    )


def add_sources(parser: Parser) -> None:
    """Add where releases are read from."""
    where = parser.add_argument_group("where releases come from")
    where.add_argument("--cache", type=Path, metavar="FOLDER", help="where sources are kept (default: the user's)")
    where.add_argument(
        "--offline",
        nargs="?",
        const="",
        metavar="CACHE",
        help="use no network: only what is cached, in the folder CACHE if it is given",
    )


def add_formats(parser: Parser) -> None:
    """Add how an audit is shown."""
    shown = parser.add_argument_group("how it is shown")
    formats = shown.add_mutually_exclusive_group()
    formats.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0, for code review")
    formats.add_argument("--markdown", action="store_true", help="print the audit as Markdown, for a pull request")
    shown.add_argument("--info", action="store_true", help="list findings of severity info too")


def options_of(arguments: argparse.Namespace, **more: bool) -> UpgradeOptions:
    """Return what the arguments ask for. Raises UsageError where they name no request, or something else than
    PACKAGE==VERSION, or by --from a package that is not upgraded."""
    from tooling.upgrade.manifests.requests import parse_request
    from tooling.upgrade.operations.upgrading import UpgradeOptions

    if arguments.offline and "==" in arguments.offline and not Path(arguments.offline).exists():
        # --offline takes a folder; "--offline engine==2.0" names a package behind it.
        arguments.requests.append(arguments.offline)
        arguments.offline = ""
    if not arguments.requests:
        raise UsageError("no package was named", fix=f"write `{UPGRADE} PACKAGE==VERSION`; see --help")
    requests = tuple(map(parse_request, arguments.requests))
    asked = {request.distribution for request in requests}
    old: dict[str, str] = {}
    for text in arguments.old:
        where = f"--from {text}"
        if "==" not in text and len(asked) > 1:
            raise UsageError("--from names no package", where=where, fix="write --from PACKAGE==OLD for each package")
        request = parse_request(text if "==" in text else f"{min(asked)}=={text}")
        name, version = request.distribution, request.version
        if name not in asked:
            known = ", ".join(sorted(asked))
            raise UsageError(f"{name} is not upgraded here", where=where, fix=f"name one of: {known}")
        if request.variant:
            raise UsageError("an old version has no variant", where=where, fix=f"write --from {name}=={version}")
        if old.setdefault(name, version) != version:
            raise UsageError("--from names two versions of one package", where=where, fix="name one")
    return UpgradeOptions(requests=requests, old=old, offline=arguments.offline is not None, **more)


# -------------------------------------------------------------------------------------------------- the repository


def context_of(arguments: argparse.Namespace) -> UpgradeContext:
    """Open the context that the shared options describe."""
    from tooling.upgrade.operations.context import open_context

    cache, offline = arguments.cache, arguments.offline is not None
    if arguments.offline:
        folder = Path(arguments.offline)
        if not folder.is_dir():
            raise UsageError("no such cache", where=f"--offline {folder}", fix="name a folder that a run has filled")
        cache = folder
    if cache is not None and cache.exists() and not cache.is_dir():
        fix = "name a folder; it is made if it does not exist"
        raise UsageError("is not a folder", where=f"--cache {cache}", fix=fix)
    return open_context(nearest_root(arguments.repo), cache=cache, offline=offline, report=_progress)


@contextmanager
def writing(root: Path, arguments: argparse.Namespace) -> Iterator[Repository]:
    """Hold the repository's lock. Raises UsageError where there is no git, LockedError, and what a rollback raises."""
    from tooling.cli.git import find_repository
    from tooling.cli.report import say
    from tooling.kit.change.transaction import transaction

    repository = find_repository(root)
    with transaction(repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
        yield repository


def half_written(root: Path) -> list[str]:
    """Return a warning, if the tree is one that a killed run left, or another one is writing right now."""
    from tooling.cli.git import find_repository
    from tooling.kit.change.transaction import pending

    try:
        is_pending = pending(find_repository(root))
    except UsageError:
        return []
    found = "an interrupted run left files half written, and this is about them as they are: `areal-new recover` first"
    return [found] if is_pending else []


def write_plan(repository: Repository, plan: Plan) -> None:
    """Write a plan: all of it or nothing."""
    from tooling.kit.change.transaction import apply_plan

    if plan:
        apply_plan(repository, plan)


def _progress(line: str) -> None:
    """Show a line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:100]}")
        sys.stderr.flush()


def end_progress() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


# ------------------------------------------------------------------------------------------------------ the report


def upgrade_report(upgrade: Upgrade, arguments: argparse.Namespace, command: str, *, changing: bool) -> Report:
    """Return the report of an upgrade or an audit, in the format that was asked for."""
    from tooling.cli.report import Report
    from tooling.upgrade.findings import AuditSeverity
    from tooling.upgrade.report.document import markdown, sarif, text

    end_progress()
    worst = {audit.worst() for audit in upgrade.audits}
    found = FINDINGS if worst & {AuditSeverity.BREAKING, AuditSeverity.WARNING} else 0
    status = found if upgrade.problem is None else upgrade.problem.exit_code
    if arguments.sarif:
        import json

        from tooling.cli.toml import version

        shown = json.dumps(sarif(upgrade.audits, tool_version=version()), indent=1) + "\n"
    elif arguments.markdown:
        shown = markdown(upgrade.audits) + "\n"
    else:
        shown = text(upgrade.audits, show_info=arguments.info)
        done = upgrade.fixes.done
        if done:
            files = {finding.path for finding in done}
            shown += f"\nfixed and audited again: {len(done)} places in {len(files)} files\n"
        for finding, why in upgrade.fixes.left:
            shown += f"not fixed: {finding.path}:{finding.line}: {finding.kind}: {why}\n"
    is_machine = arguments.sarif or arguments.markdown
    return Report(
        command=command,
        problem=upgrade.problem,
        exit_code=status,
        first=() if is_machine else upgrade.downgrades,
        dry_run=changing and arguments.dry_run,
        changes=() if is_machine else upgrade.plan.changes,
        show_diff=changing and arguments.diff,
        warnings=tuple(upgrade.warnings),
        changing=changing and not is_machine,
        text=shown,
        data=_fields(upgrade),
    )


def _fields(upgrade: Upgrade) -> dict[str, Any]:
    """Return the fields beside those that every command has; `schemas/upgrade.json` says what they are."""
    from tooling.upgrade.report.document import document, finding_object

    edits = upgrade.bump.edits if upgrade.bump else ()
    resolution = []
    for result in upgrade.locks:
        conflict, proposal = result.conflict, result.proposal
        row: dict[str, Any] = {
            **_picked(result, "variant", "installs", "made", "notes"),
            "changes": [asdict(change) for change in result.changes],
            "conflict": None,
            "proposal": None,
            "seconds": round(result.seconds, 3),
        }
        if conflict is not None:
            row["conflict"] = {**asdict(conflict), "words": [str(cause) for cause in conflict.causes]}
        if proposal is not None:
            row["proposal"] = {
                **_picked(proposal.declaration, "path", "line", "distribution"),
                "before": proposal.declaration.specifier,
                "after": proposal.specifier,
                **_picked(proposal, "version", "why", "applied", "breaking", "evidence"),
            }
        resolution.append(row)
    return {
        **document(upgrade.audits),
        "versions": [{**asdict(move), "downgrade": move.is_downgrade} for move in upgrade.moves],
        "declarations": [_picked(each, "path", "line", "before", "after", "why") for each in edits],
        "resolution": resolution,
        "fixed": [finding_object(finding) for finding in upgrade.fixes.done],
        "not_fixed": [{**finding_object(finding), "why": why} for finding, why in upgrade.fixes.left],
        "checklists": list(upgrade.checklists),
        "sources": [asdict(origin) for origin in upgrade.sources],
    }


def _picked(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def check_summary(root: Path, path: str) -> None:
    """Raise UsageError for a summary that would lie outside the repository, or replace another file."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.upgrading import is_summary

    try:
        present = Plan(root).read(path) if path else None
    except ToolError as error:
        fix = "name a file inside the repository, relative to its root; or --no-summary"
        raise UsageError(error.message, where=f"--summary {path}", fix=fix) from error
    if present is not None and not is_summary(present):
        fix = "name another file, or --no-summary"
        raise UsageError("that file is not a summary of an upgrade: it is kept", where=f"--summary {path}", fix=fix)
