"""`areal-upgrade-deps`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from tooling.kit.errors import ToolError, UsageError
from tooling.kit.output import Report
from tooling.upgrade.cli.arguments import COMMANDS, UPGRADE, parse, upgrade_parser
from tooling.upgrade.cli.frame import apply, context_of, end_progress, framed, writing
from tooling.upgrade.findings import Severity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.upgrade.findings import Audit
    from tooling.upgrade.operations.context import Context
    from tooling.upgrade.operations.upgrading import Upgrade, Wishes


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words and words[0] in COMMANDS else ""
    parser = upgrade_parser()
    if {"-h", "--help"} & set(words):
        parser.print_help()
        return 0
    return framed(UPGRADE, words, lambda stream: _run(parse(parser, words[bool(command) :]), command, stream))


def _run(arguments: argparse.Namespace, command: str, stream: TextIO) -> Report | None:
    if command == "latest":
        from tooling.upgrade.cli.latest import run

        return run(arguments)
    if not arguments.requests:
        raise UsageError("nothing to upgrade was named", fix=f"write `{UPGRADE} PACKAGE==VERSION`; see --help")
    if command == "impact":
        arguments.audit_only = True
    context = context_of(arguments)
    wishes = _wishes(arguments)
    if arguments.audit_only or arguments.dry_run:
        upgrade = _planned(context, wishes, arguments)
    else:
        with writing(context.root, arguments) as repository:
            upgrade = _planned(context, wishes, arguments)
            apply(repository, upgrade.plan)
    end_progress()
    if arguments.sarif:
        from tooling.kit.version import version
        from tooling.upgrade.report.sarif import sarif

        stream.write(json.dumps(sarif(upgrade.audits, tool_version=version()), indent=1) + "\n")
        return Report(command=UPGRADE, exit_code=_status(upgrade), changing=False)
    return _report(upgrade, arguments, command)


def _wishes(arguments: argparse.Namespace) -> Wishes:
    from tooling.upgrade.manifests.requests import parse_request
    from tooling.upgrade.operations.upgrading import Wishes

    old: dict[str, str] = {}
    for text in arguments.old:
        if "==" in text:
            request = parse_request(text)
            old[request.distribution] = request.version
        else:
            old[""] = parse_request(f"any=={text}").version
    requests = tuple(parse_request(text) for text in arguments.requests)
    if "" in old and len(requests) > 1:
        raise UsageError("--from names no package", where="--from", fix="write --from PACKAGE==OLD for each package")
    return Wishes(
        requests=requests,
        old=old,
        bump=not arguments.audit_only,
        lock=arguments.lock,
        fix=arguments.fix and not arguments.audit_only,
        offline=arguments.offline is not None,
    )


def _planned(context: Context, wishes: Wishes, arguments: argparse.Namespace) -> Upgrade:
    """The plan; when it fails, one that holds the summary only, with the problem."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.summary import summary
    from tooling.upgrade.operations.upgrading import Upgrade, plan_upgrade

    upgrade = Upgrade(wishes, Plan(context.root))
    try:
        plan_upgrade(context, upgrade)
    except ToolError as error:
        if arguments.audit_only or isinstance(error, UsageError):
            raise
        upgrade.problem = error
    if upgrade.problem is not None:
        upgrade.plan = Plan(context.root)  # nothing half done: only the summary is written
    if arguments.summary and not arguments.audit_only:
        upgrade.plan.write(arguments.summary, summary(upgrade).encode(), reason="the report of this upgrade")
    return upgrade


def _status(upgrade: Upgrade) -> int:
    if upgrade.problem is not None:
        return upgrade.problem.exit_code
    worst = {audit.worst() for audit in upgrade.audits}
    return 10 if Severity.BREAKING in worst else 11 if Severity.WARNING in worst else 0


def _report(upgrade: Upgrade, arguments: argparse.Namespace, command: str) -> Report:
    from tooling.upgrade.report.markdown import markdown
    from tooling.upgrade.report.text import text

    shown = markdown(upgrade.audits) + "\n" if arguments.markdown else text(upgrade.audits, show_info=arguments.info)
    return Report(
        command=f"{UPGRADE} {command}".strip(),
        problem=upgrade.problem,
        exit_code=_status(upgrade),
        dry_run=arguments.dry_run,
        changes=upgrade.plan.changes,
        show_diff=arguments.diff,
        warnings=tuple(upgrade.warnings),
        changing=not arguments.audit_only,
        text=shown,
        data=_data(upgrade),
    )


def _data(upgrade: Upgrade) -> dict[str, Any]:
    from tooling.upgrade.report.document import document, finding_object

    moves = [{"distribution": m.distribution, "old": m.old, "new": m.new, "why": m.why} for m in upgrade.moves]
    return {
        **document(upgrade.audits),
        "versions": moves,
        "declarations": [_edit(edit) for edit in (upgrade.bump.edits if upgrade.bump else ())],
        "resolution": [_lock(result) for result in upgrade.locks],
        "fixed": [finding_object(finding) for finding in upgrade.fixes.done],
        "not_fixed": [{**finding_object(finding), "why": why} for finding, why in upgrade.fixes.left],
        "checklists": list(upgrade.checklists),
        "sources": _sources(upgrade.audits),
    }


def _sources(audits: Sequence[Audit]) -> list[str]:
    return sorted(
        {f"{audit.distribution}=={version}" for audit in audits for version in (audit.old_version, audit.new_version)}
    )


def _edit(edit: Any) -> dict[str, Any]:
    return {"path": edit.path, "line": edit.line, "before": edit.before, "after": edit.after, "why": edit.why}


def _lock(result: Any) -> dict[str, Any]:
    conflict = result.conflict
    return {
        "variant": result.variant,
        "made": str(result.made),
        "changes": [{"name": each.name, "old": each.old, "new": each.new} for each in result.changes],
        "conflict": [str(cause) for cause in conflict.causes] if conflict else None,
        "notes": list(result.notes),
    }
