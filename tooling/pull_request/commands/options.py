"""Holds the options and the printed parts that several commands of `areal-pr` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.parser import seconds
from tooling.pull_request.branch import ProposalOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.parser import Parser
    from tooling.pull_request.move import Recovery
    from tooling.pull_request.plan import Step


def add_proposal_options(parser: Parser) -> None:
    """Add the options that say what is proposed."""
    group = parser.add_argument_group("what is proposed")
    group.add_argument(
        "--base", default="", metavar="BRANCH", help="what to merge into; REMOTE/BRANCH where it is on another remote"
    )
    group.add_argument("--remote", default="", metavar="NAME", help="where to push (default: that of the branch)")
    group.add_argument("--title", default="", metavar="TEXT", help="type(scope): subject, for commit and request")
    group.add_argument("--no-squash", action="store_true", help="keep the commits as they are")
    group.add_argument("--no-rebase", action="store_true", help="stay where the branch began")
    group.add_argument("--audit", type=Path, metavar="FILE", help="JSON of `areal-upgrade-deps impact`")


def add_running_options(parser: Parser) -> None:
    """Add the options of commands that move the branch."""
    parser.add_argument("--dry-run", action="store_true", help="show the steps; change nothing")
    parser.add_argument("--wait", type=seconds, default=10.0, metavar="SECONDS", help="for another run to end")


def options_of(arguments: argparse.Namespace) -> ProposalOptions:
    """Return the options as a record; those that a command lacks have their defaults."""
    return ProposalOptions(
        base=arguments.base,
        remote=arguments.remote,
        title=arguments.title,
        draft=getattr(arguments, "draft", False),
        squash=not arguments.no_squash,
        rebase=not arguments.no_rebase,
        push=not getattr(arguments, "no_push", False),
        replace_body=getattr(arguments, "replace_body", False),
        refuse_untracked=getattr(arguments, "untracked", "warn") == "refuse",
        run_checks=getattr(arguments, "run_checks", False),
        audit=arguments.audit,
    )


def shown(steps: Sequence[Step], *, details: bool) -> str:
    """Format steps for people; with details, what each needs and how to undo it."""
    lines = []
    for each in steps:
        lines.append(f"{each.name:<13}{each.effect}")
        if details:
            lines.append(f"{'':13}  needs: {each.requires}")
            lines.append(f"{'':13}  undo:  {each.undo}")
    return "\n".join(lines)


def recovered(recovery: Recovery | None) -> tuple[str, ...]:
    """Say what came of an interrupted run, as warnings."""
    if recovery is None:
        return ()
    if recovery.note:
        return (f"an interrupted run was found: {recovery.note}",)
    what = "was completed" if recovery.completed else "was undone"
    kept = tuple(f"a file that neither side has was kept as {place}" for place in recovery.rescued)
    return (f"an interrupted run {what}: {recovery.reference} is at {recovery.commit[:12]}", *kept)


def recovery_fields(recovery: Recovery | None) -> dict[str, Any] | None:
    """Return the same for JSON."""
    if recovery is None:
        return None
    return {
        "reference": recovery.reference,
        "commit": recovery.commit,
        "completed": recovery.completed,
        "rescued": list(recovery.rescued),
        "note": recovery.note,
    }
