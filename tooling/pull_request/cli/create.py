"""`areal-pr create`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report, printable, say
from tooling.pull_request.cli.wishes import recovered, recovery_fields, reports_of, shown, wishes_of
from tooling.pull_request.create import create

if TYPE_CHECKING:
    import argparse

    from tooling.pull_request.create import Done
    from tooling.pull_request.plan import Plan


def run(arguments: argparse.Namespace) -> Report:
    """Do it, or show what would be done."""
    done = create(
        find_repository(arguments.repo),
        wishes_of(arguments),
        reports_of(arguments),
        dry_run=arguments.dry_run,
        consent=lambda plan: _consent(plan, agreed=arguments.yes),
        wait_seconds=arguments.wait,
    )
    return Report(
        command="areal-pr create",
        dry_run=arguments.dry_run,
        changing=False,
        next_steps=done.next_steps,
        warnings=(*recovered(done.recovery), *done.warnings),
        text=_text(done, dry_run=arguments.dry_run),
        data={**done.plan.fields(), "url": done.url or None, "recovery": recovery_fields(done.recovery)},
    )


def _consent(plan: Plan, *, agreed: bool) -> bool:
    """Whether commits on the remote may be replaced: said beforehand, or at the terminal."""
    if agreed or not plan.replaces_published:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(shown(plan.steps, details=False))
    sys.stderr.write(printable(f"Replace {plan.target.theirs[:12]} on {plan.target.remote}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _text(done: Done, *, dry_run: bool) -> str:
    plan = done.plan
    lines = [shown(plan.steps, details=dry_run)]
    if dry_run:
        lines += ["", "message:", *(f"    {line}" for line in plan.proposal.message.rstrip().split("\n"))]
    elif plan.backup is not None:
        lines.append(f"backup       areal-pr restore {plan.backup.id}")
    if done.url:
        lines.append(done.url)
    return "\n".join(lines)
