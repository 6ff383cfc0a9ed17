"""Writes the blocks of experts' pages and the platforms' copies; files of others and edits by hand are kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, EditedSinceError, FindingError, UsageError
from tooling.cli.parser import add_changing
from tooling.cli.report import Report, say
from tooling.harness.compile import DRIFT, EDITED, CopyState, FileState, bring_together, compare, compiled
from tooling.harness.context import open_context
from tooling.harness.ownership.block import with_blocks
from tooling.harness.platforms import PLATFORMS
from tooling.kit.change.plan import PathChange, Plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.errors import ToolError
    from tooling.cli.parser import Parser
    from tooling.harness.context import HarnessContext


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--check", action="store_true", help="write nothing; exit 10 when a copy is not in step (CI)")
    parser.add_argument("--overwrite", action="store_true", help="replace copies that were edited by hand, too")
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Compare, and write unless an option says otherwise."""
    if arguments.check and arguments.overwrite:
        raise UsageError("--check writes nothing", where="--overwrite", fix="leave one of the two out")
    context = open_context(arguments.repo)
    refuse_problems(context)
    if arguments.check or arguments.dry_run:
        plan, states = planned(context, overwrite=arguments.overwrite)
        return _report(arguments, plan, states)
    from tooling.kit.change.transaction import apply_plan, transaction

    with transaction(context.repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
        plan, states = planned(context, overwrite=arguments.overwrite)
        apply_plan(context.repository, plan)
    return _report(arguments, plan, states)


def planned(context: HarnessContext, *, overwrite: bool = False) -> tuple[Plan, list[FileState]]:
    """Return what would be done, and what is. All platforms' folders are read, also of those that are left out."""
    plan = Plan(context.root)
    sources = with_blocks(context.root, context.files, context.sources)
    states = compare(plan, compiled(context.root, sources, context.platforms), tuple(PLATFORMS.values()))
    for old, new in zip(context.sources.experts, sources.experts, strict=True):
        if old.page.body != new.page.body:
            plan.read(new.page.path)
            states.append(FileState(new.page.path, CopyState.OUTDATED, "the code", new.page.text.encode()))
    bring_together(plan, states, overwrite=overwrite)
    return plan, states


def refuse_problems(context: HarnessContext) -> None:
    """Raise UsageError when a source cannot be compiled: all or nothing."""
    if context.problems:
        first, more = context.problems[0], len(context.problems) - 1
        also = f" (and {more} more: `areal-harness check`)" if more else ""
        where = f"{first.path}:{first.line}" if first.line else first.path
        error = UsageError(f"{first.message}{also}", where=where, fix=first.fix)
        raise error


def _report(arguments: argparse.Namespace, plan: Plan, states: Sequence[FileState]) -> Report:
    counts = Counter(one.state.value for one in states)
    problem = _problem(states, overwrite=arguments.overwrite)
    drifts = [one for one in states if one.state in DRIFT]
    behind = FindingError.exit_code if arguments.check and drifts and problem is None else None
    changes = () if arguments.check and not arguments.diff else plan.changes
    # How an edited copy differs from what its source becomes: what would be lost
    edited = tuple(
        PathChange(one.path, one.wanted, plan.read(one.path), f"{one.state.value}: kept")
        for one in states
        if one.state in EDITED and arguments.diff
    )
    current = sum(one.state is CopyState.CURRENT for one in states)
    lines = [
        f"{one.state.value:<14}{one.path}  <- {one.source}"
        for one in states
        if one.state is not CopyState.CURRENT and (arguments.check or one.state not in DRIFT)
    ]
    lines.append(f"{current} of {len(states)} files {'are' if arguments.check else 'were'} in step")
    return Report(
        command="areal-harness sync",
        problem=problem,
        exit_code=behind,
        dry_run=arguments.dry_run or arguments.check,
        changes=(*changes, *(edited if not arguments.overwrite else ())),
        show_diff=arguments.diff,
        changing=not arguments.check,
        next_steps=("areal-harness sync",) if behind else (),
        text="\n".join(lines) + "\n",
        data={
            "counts": dict(sorted(counts.items())),
            "files": [{"path": one.path, "state": one.state.value, "source": one.source} for one in states],
        },
    )


def _problem(states: Sequence[FileState], *, overwrite: bool) -> ToolError | None:
    foreign = [one.path for one in states if one.state is CopyState.FOREIGN]
    if foreign:
        return ConflictError(
            "is not a generated file; it was kept", where=", ".join(foreign), fix="move it away, or rename the source"
        )
    edited = [one for one in states if one.state in EDITED]
    if not edited or overwrite:
        return None
    sources = ", ".join(sorted({one.source for one in edited}))
    return EditedSinceError(
        "edited by hand; it was kept",
        where=", ".join(one.path for one in edited),
        fix=f"look with `areal-harness sync --check --diff`, move the edit to {sources}, then `sync --overwrite`",
    )
