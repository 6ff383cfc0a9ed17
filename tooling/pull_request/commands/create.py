"""Brings the branch onto its base, joins its commits into one, pushes it, and opens or updates the pull request.

  areal-pr create --dry-run             every step with what it needs, what it does and how to undo it
  areal-pr create --draft
  areal-pr create --yes                 agree that commits on the remote are replaced (asked at a terminal)
  areal-pr create --no-push             make the commit, and stop there
  areal-pr create --run-checks          run the repository's checks first; if they fail, nothing is moved or pushed

The checks are the command `checks` of [tool.areal.pr] in pyproject.toml. What came of them is attested for exactly this
commit: only that ticks the box about tests, here and in `areal-pr body`, until a commit or a file changes.

Conflicts are found before anything changes. The old branch is kept: `areal-pr restore` brings it back. A run that was
killed is completed or undone by the next one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.parser import one_of
from tooling.cli.report import Report, printable, say
from tooling.pull_request.commands.options import (
    add_proposal_options,
    add_running_options,
    options_of,
    recovered,
    recovery_fields,
    shown,
)
from tooling.pull_request.create import create

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser
    from tooling.pull_request.create import Done
    from tooling.pull_request.plan import ProposalPlan


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add_proposal_options(parser)
    parser.add_argument("--draft", action="store_true", help="open it as a draft")
    parser.add_argument("--no-push", action="store_true", help="stop when the commit is made")
    parser.add_argument(
        "--run-checks", action="store_true", help="run the repository's checks, and go on only if they pass"
    )
    parser.add_argument("--yes", action="store_true", help="agree that commits on the remote are replaced")
    parser.add_argument(
        "--replace-body", action="store_true", help="also where somebody edited the text of the open pull request"
    )
    parser.add_argument(
        "--untracked",
        type=one_of("warn", "refuse"),
        default="warn",
        metavar="{warn,refuse}",
        help="what files mean that git does not know (default: warn)",
    )
    add_running_options(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Do it, or show what would be done."""
    done = create(
        find_repository(arguments.repo),
        options_of(arguments),
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


def _consent(plan: ProposalPlan, *, agreed: bool) -> bool:
    """Tell whether commits on the remote may be replaced: by option, or asked at the terminal."""
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
