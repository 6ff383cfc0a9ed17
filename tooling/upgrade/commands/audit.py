"""Compares the checklists of watched dependencies (skills/upgrade-deps/checklists) with what the code does."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError, exit_codes_help
from tooling.cli.git import nearest_root
from tooling.cli.parser import Parser, add_changing, add_common
from tooling.cli.run import run_cli
from tooling.upgrade.commands.common import (
    FINDINGS,
    add_sources,
    context_of,
    end_progress,
    half_written,
    write_plan,
    writing,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.report import Report
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.checking import CheckedPackage
    from tooling.upgrade.operations.context import UpgradeContext

AUDIT: Final = "areal-audit"
EXIT_CODES: Final = (0, 1, 2, 3, 10, 11, 75, 130, 141)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line of `areal-audit`; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # one process, few cycles, very many small objects
    return run_cli(AUDIT, words, lambda _: _called(words))


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(AUDIT, __doc__ or "", epilog=exit_codes_help(EXIT_CODES))
    configure(parser)
    add_common(parser)
    return parser


def _called(words: list[str]) -> Report:
    from tooling.cli.parser import information, split

    parser = make_parser()
    return information(AUDIT, split(words), parser.format_help) or run(parser.read(words))


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these (default: all that are watched)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="report only, for CI (default)")
    what.add_argument("--write", action="store_true", help="write what is missing or wrong; notes of people are kept")
    add_sources(parser)
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Check the checklists, and put them right with --write."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.checking import write

    writes = arguments.write and not arguments.dry_run
    with writing(nearest_root(arguments.repo), arguments) if writes else nullcontext() as repository:
        context = context_of(arguments)  # read when nobody writes any more
        plan = Plan(context.root) if arguments.write else None
        checked = _checked(context, arguments.packages, plan)
        if plan is not None:
            write(checked, plan)
        if repository is not None and plan is not None:
            write_plan(repository, plan)
    return _report(checked, arguments, plan, [] if writes else half_written(context.root))


def _checked(context: UpgradeContext, names: Sequence[str], plan: Plan | None) -> tuple[CheckedPackage, ...]:
    """Check the packages of these names. Raises UsageError for one that is not watched."""
    from packaging.utils import canonicalize_name

    from tooling.upgrade.operations.checking import check

    wanted = tuple(canonicalize_name(name) for name in names)
    watched = [package.distribution for package in context.policy.packages]
    for name in wanted:
        if name not in watched:
            raise UsageError(
                f"{name} is not watched", where=name, fix=f"watched: {', '.join(watched) or 'nothing'}; see the policy"
            )
    checked = check(context, only=wanted, plan=plan)
    end_progress()
    return checked


def _report(
    checked: Sequence[CheckedPackage], arguments: argparse.Namespace, plan: Plan | None, warnings: Sequence[str]
) -> Report:
    from tooling.cli.report import Report

    untrue = [one for one in checked if one.drifts]
    # What was written is true now; damaged files are left, and so are those whose release could not be had.
    left = [one for one in untrue if plan is None or any(drift.what == "damaged" for drift in one.drifts) or one.unseen]
    lines = []
    if not checked:
        lines.append("no package is watched here: no manifest names one, and there is no [tool.areal.upgrade]")
    for one in checked:
        if one.checklist is None and not one.drifts:
            continue
        state = f"{len(one.drifts)} {'untrue' if plan is None else 'put right'}" if one.drifts else "true"
        entries = len(one.checklist.entries) if one.checklist else 0
        files = len(one.checklist.files) if one.checklist else 0
        lines.append(f"{one.distribution} {one.version}: {files} files, {entries} symbols: {state}")
        lines += [f"  {drift.path}: {drift.key}: {drift.what}: {drift.message}" for drift in one.drifts]
    unused = [one.distribution for one in checked if one.checklist is None and not one.drifts]
    if unused:
        lines.append(f"not used by the code: {', '.join(unused)}")
    return Report(
        command=AUDIT,
        exit_code=FINDINGS if left else 0,
        dry_run=arguments.dry_run,
        changes=plan.changes if plan is not None else (),
        show_diff=arguments.diff,
        changing=plan is not None,
        warnings=(
            *warnings,
            *(f"{one.distribution}: signatures not compared: {one.unseen}" for one in checked if one.unseen),
        ),
        next_steps=("areal-audit --write",) if left and plan is None else (),
        text="\n".join(lines) + "\n",
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
