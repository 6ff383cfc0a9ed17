"""`areal-upgrade-deps`."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, TextIO

from tooling.cli.errors import ToolError, UsageError
from tooling.upgrade.cli.arguments import UPGRADE, parse_upgrade, upgrade_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tooling.cli.report import Report
    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.operations.upgrading import Upgrade, UpgradeOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = upgrade_parser()
    if {"-h", "--help"} & set(words):
        parser.print_help()
        return 0
    from tooling.cli.run import run_cli

    gc.disable()  # one process, few cycles, very many small objects
    return run_cli(
        UPGRADE, words, lambda stream: _run(parse_upgrade(parser, words), stream), machine=("--json", "--sarif")
    )


def _run(arguments: argparse.Namespace, stream: TextIO) -> Report | None:
    if arguments.command == "latest":
        from tooling.upgrade.cli.latest import run

        return run(arguments)
    from tooling.upgrade.cli.frame import apply, context_of, end_progress, half_written, repository_root, writing

    options = _wishes(arguments)
    if arguments.audit_only or arguments.dry_run:
        context = context_of(arguments)
        upgrade = _planned(context, options, arguments)
        upgrade.warnings += half_written(context.root)
    else:
        with writing(repository_root(arguments.repo), arguments) as repository:
            upgrade = _planned(context_of(arguments), options, arguments)  # read when nobody writes any more
            apply(repository, upgrade.plan)
    end_progress()
    if arguments.sarif:
        return _sarif(upgrade, stream)
    return _report(upgrade, arguments)


def _sarif(upgrade: Upgrade, stream: TextIO) -> Report:
    import json

    from tooling.cli.report import Report
    from tooling.cli.toml import version
    from tooling.upgrade.report.sarif import sarif

    stream.write(json.dumps(sarif(upgrade.audits, tool_version=version()), indent=1) + "\n")
    warnings = tuple(upgrade.warnings)
    return Report(
        command=UPGRADE, problem=upgrade.problem, exit_code=_status(upgrade), changing=False, warnings=warnings
    )


def _wishes(arguments: argparse.Namespace) -> UpgradeOptions:
    from tooling.upgrade.manifests.requests import parse_request
    from tooling.upgrade.operations.upgrading import UpgradeOptions

    requests = tuple(parse_request(text) for text in arguments.requests)
    return UpgradeOptions(
        requests=requests,
        old=_old_versions(arguments.old, {request.distribution for request in requests}),
        bump=not arguments.audit_only,
        lock=arguments.lock,
        fix=arguments.fix,
        offline=arguments.offline is not None,
    )


def _old_versions(texts: Sequence[str], asked: set[str]) -> dict[str, str]:
    """What --from says, by distribution; under "" what holds for the only one that is asked for."""
    from tooling.upgrade.manifests.requests import parse_request
    from tooling.upgrade.manifests.specifiers import parse_version

    old: dict[str, str] = {}
    for text in texts:
        where = f"--from {text}"
        if "==" in text:
            request = parse_request(text)
            name, version = request.distribution, request.version
            if name not in asked:
                known = ", ".join(sorted(asked))
                raise UsageError(f"{name} is not upgraded here", where=where, fix=f"name one of: {known}")
            if request.variant:
                raise UsageError("an old version has no variant", where=where, fix=f"write --from {name}=={version}")
        else:
            name, version = "", text
            parse_version(version)
            if len(asked) > 1:
                raise UsageError(
                    "--from names no package", where=where, fix="write --from PACKAGE==OLD for each package"
                )
        if old.setdefault(name, version) != version:
            raise UsageError("--from names two versions of one package", where=where, fix="name one")
    if "" in old and len(old) > 1:
        raise UsageError("--from names two versions of one package", where="--from", fix="name one")
    return old


def _planned(context: UpgradeContext, options: UpgradeOptions, arguments: argparse.Namespace) -> Upgrade:
    """The plan; when it fails, one that holds the summary only, with the problem."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.cli.frame import check_summary
    from tooling.upgrade.operations.summary import summary
    from tooling.upgrade.operations.upgrading import Upgrade, plan_upgrade

    check_summary(context.root, arguments.summary)
    upgrade = Upgrade(options, Plan(context.root))
    try:
        plan_upgrade(context, upgrade)
    except ToolError as error:
        if arguments.audit_only or isinstance(error, UsageError):
            raise
        upgrade.problem = error
    upgrade.sources = context.origins()
    if upgrade.problem is not None:
        upgrade.plan = Plan(context.root)  # nothing half done: only the summary is written
    if arguments.summary and not arguments.audit_only and upgrade.is_news:
        upgrade.plan.write(arguments.summary, summary(upgrade).encode(), reason="the report of this upgrade")
    return upgrade


def _status(upgrade: Upgrade) -> int:
    from tooling.upgrade.findings import AuditSeverity

    if upgrade.problem is not None:
        return upgrade.problem.exit_code
    worst = {audit.worst() for audit in upgrade.audits}
    return 10 if AuditSeverity.BREAKING in worst else 11 if AuditSeverity.WARNING in worst else 0


def _report(upgrade: Upgrade, arguments: argparse.Namespace) -> Report:
    from tooling.cli.report import Report
    from tooling.upgrade.cli.fields import fields
    from tooling.upgrade.report.text import markdown, text

    if arguments.markdown:
        shown = markdown(upgrade.audits) + "\n"
    else:
        shown = text(upgrade.audits, show_info=arguments.info) + "".join(_fixes(upgrade))
    return Report(
        command=f"{UPGRADE} {arguments.command}".strip(),
        problem=upgrade.problem,
        exit_code=_status(upgrade),
        dry_run=arguments.dry_run,
        changes=() if arguments.markdown else upgrade.plan.changes,
        show_diff=arguments.diff,
        warnings=tuple(upgrade.warnings),
        changing=not arguments.audit_only and not arguments.markdown,
        text=shown,
        data=fields(upgrade),
    )


def _fixes(upgrade: Upgrade) -> Iterator[str]:
    done, files = upgrade.fixes.done, {finding.path for finding in upgrade.fixes.done}
    if done:
        yield f"\nfixed and audited again: {len(done)} places in {len(files)} files\n"
    for finding, why in upgrade.fixes.left:
        yield f"not fixed: {finding.path}:{finding.line}: {finding.kind}: {why}\n"
