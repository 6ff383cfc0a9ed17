"""Arguments as records, and what several commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.pull_request.create import Reports
from tooling.pull_request.situation import Wishes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.pull_request.move.moving import Recovery
    from tooling.pull_request.plan import Step


def wishes_of(arguments: argparse.Namespace) -> Wishes:
    """What was asked for."""
    return Wishes(
        base=arguments.base,
        remote=arguments.remote,
        title=arguments.title,
        draft=getattr(arguments, "draft", False),
        squash=not arguments.no_squash,
        rebase=not arguments.no_rebase,
        push=not getattr(arguments, "no_push", False),
        replace_body=getattr(arguments, "replace_body", False),
        refuse_untracked=getattr(arguments, "untracked", "warn") == "refuse",
    )


def reports_of(arguments: argparse.Namespace) -> Reports:
    """Files with facts."""
    return Reports(tests=arguments.test_report, audit=arguments.audit)


def shown(steps: Sequence[Step], *, details: bool) -> str:
    """Steps for people; with details, what each needs and how it is taken back."""
    lines = []
    for each in steps:
        lines.append(f"{each.name:<13}{each.effect}")
        if details:
            lines.append(f"{'':13}  needs: {each.requires}")
            lines.append(f"{'':13}  undo:  {each.undo}")
    return "\n".join(lines)


def recovered(recovery: Recovery | None) -> tuple[str, ...]:
    """What came of an interrupted run, as warnings."""
    if recovery is None:
        return ()
    if recovery.note:
        return (f"an interrupted run was found: {recovery.note}",)
    what = "was ended" if recovery.completed else "was taken back"
    kept = tuple(f"a file that neither side has was kept as {place}" for place in recovery.rescued)
    return (f"an interrupted run {what}: {recovery.reference} is at {recovery.commit[:12]}", *kept)


def recovery_fields(recovery: Recovery | None) -> dict[str, Any] | None:
    """The same for JSON."""
    if recovery is None:
        return None
    return {
        "reference": recovery.reference,
        "commit": recovery.commit,
        "completed": recovery.completed,
        "rescued": list(recovery.rescued),
        "note": recovery.note,
    }
