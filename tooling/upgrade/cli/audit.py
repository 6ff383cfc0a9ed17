"""`areal-audit`."""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.report import Report
from tooling.cli.run import run_cli
from tooling.upgrade.cli.arguments import AUDIT, audit_parser, parse
from tooling.upgrade.cli.frame import apply, context_of, end_progress, half_written, repository_root, writing

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.checking import CheckedPackage
    from tooling.upgrade.operations.context import UpgradeContext


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = audit_parser()
    if {"-h", "--help"} & set(words):
        parser.print_help()
        return 0
    gc.disable()  # one process, few cycles, very many small objects
    return run_cli(AUDIT, words, lambda _: _run(parse(parser, words)))


def _run(arguments: argparse.Namespace) -> Report:
    if not arguments.write:
        context = context_of(arguments)
        checked = _check(context, _known(context, arguments.packages), None)
        return _report(checked, arguments, None, half_written(context.root))
    if arguments.dry_run:
        context = context_of(arguments)
        checked, plan = _planned(context, arguments)
        return _report(checked, arguments, plan, half_written(context.root))
    with writing(repository_root(arguments.repo), arguments) as repository:
        checked, plan = _planned(context_of(arguments), arguments)  # read when nobody writes any more
        apply(repository, plan)
    return _report(checked, arguments, plan, [])


def _planned(context: UpgradeContext, arguments: argparse.Namespace) -> tuple[tuple[CheckedPackage, ...], Plan]:
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.checking import write

    plan = Plan(context.root)
    checked = _check(context, _known(context, arguments.packages), plan)
    write(checked, plan)
    return checked, plan


def _known(context: UpgradeContext, names: Sequence[str]) -> tuple[str, ...]:
    from packaging.utils import canonicalize_name

    wanted = tuple(canonicalize_name(name) for name in names)
    watched = [package.distribution for package in context.policy.packages]
    for name in wanted:
        if name not in watched:
            raise UsageError(
                f"{name} is not watched", where=name, fix=f"watched: {', '.join(watched) or 'nothing'}; see the policy"
            )
    return wanted


def _check(context: UpgradeContext, names: Sequence[str], plan: Plan | None) -> tuple[CheckedPackage, ...]:
    from tooling.upgrade.operations.checking import check

    checked = check(context, only=names, plan=plan)
    end_progress()
    return checked


def _report(
    checked: Sequence[CheckedPackage], arguments: argparse.Namespace, plan: Plan | None, warnings: Sequence[str]
) -> Report:
    untrue = [one for one in checked if one.drifts]
    # What was written is true now; damaged files are left, and so are those whose release could not be had.
    left = [one for one in untrue if plan is None or any(drift.what == "damaged" for drift in one.drifts) or one.unseen]
    return Report(
        command=AUDIT,
        exit_code=10 if left else 0,
        dry_run=arguments.dry_run,
        changes=plan.changes if plan is not None else (),
        show_diff=arguments.diff,
        changing=plan is not None,
        warnings=(
            *warnings,
            *(f"{one.distribution}: signatures not compared: {one.unseen}" for one in checked if one.unseen),
        ),
        next_steps=("areal-audit --write",) if left and plan is None else (),
        text="\n".join(_lines(checked, "untrue" if plan is None else "put right")) + "\n",
        data={
            "packages": [
                {
                    "distribution": one.distribution,
                    "version": one.version,
                    "checklist": one.path if one.checklist is not None else None,
                    "drift": [asdict(drift) for drift in one.drifts],
                    "unseen": one.unseen or None,
                }
                for one in checked
            ]
        },
    )


def _lines(checked: Sequence[CheckedPackage], untrue: str) -> Iterator[str]:
    if not checked:
        yield "no package is watched here: no manifest names one, and there is no [tool.areal.upgrade]"
    for one in checked:
        if one.checklist is None and not one.drifts:
            continue
        state = f"{len(one.drifts)} {untrue}" if one.drifts else "true"
        entries = len(one.checklist.entries) if one.checklist else 0
        files = len(one.checklist.files) if one.checklist else 0
        yield f"{one.distribution} {one.version}: {files} files, {entries} symbols: {state}"
        for drift in one.drifts:
            yield f"  {drift.path}: {drift.key}: {drift.what}: {drift.message}"
    unused = [one.distribution for one in checked if one.checklist is None and not one.drifts]
    if unused:
        yield f"not used by the code: {', '.join(unused)}"
