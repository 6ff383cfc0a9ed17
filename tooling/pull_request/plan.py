"""Describes the steps of a run: what each needs, what it does and how to undo it. Making a plan changes nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tooling.review.report import finding_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.pull_request.backups import Backup
    from tooling.pull_request.branch import CheckedOutBranch, Target
    from tooling.pull_request.commits import Proposal
    from tooling.pull_request.facts import ProposalFacts
    from tooling.pull_request.service import ServiceAnswer

Name = Literal["fetch", "checks", "backup", "move", "push", "pull-request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step."""

    name: Name
    effect: str
    requires: str
    """What is checked again right before; if it does not hold, the step is not done."""
    undo: str
    command: str = ""
    """What it amounts to, for people."""

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {each: getattr(self, each) for each in ("name", "effect", "requires", "undo", "command")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What is to be pushed."""

    remote: str
    reference: str
    commit: str
    expected: str
    """What the remote has to have for history to be replaced there; "" where nothing is replaced."""

    def words(self) -> list[str]:
        """Arguments for git."""
        lease = [f"--force-with-lease={self.reference}:{self.expected}"] if self.expected else []
        return ["push", "--porcelain", *lease, "--", self.remote, f"{self.commit}:{self.reference}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalPlan:
    """A whole run."""

    branch: CheckedOutBranch
    target: Target
    proposal: Proposal
    answer: ServiceAnswer
    backup: Backup | None
    push: Push | None
    """What the remote lacks."""
    pushing: bool
    """Whether it is to be pushed in this run."""
    facts: ProposalFacts
    body: str
    steps: tuple[Step, ...]

    @property
    def replaces_published(self) -> bool:
        """Whether commits on the remote are replaced: that needs consent."""
        return self.pushing and self.push is not None and bool(self.push.expected)

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        existing = self.answer.existing
        return {
            "branch": self.branch.name,
            "base": f"{self.target.base_remote}/{self.target.base}",
            "base_commit": self.target.base_tip,
            "remote": self.target.remote,
            "before": self.proposal.before,
            "after": self.proposal.after,
            "rewritten": self.proposal.rewritten,
            "replaces_published": self.replaces_published,
            "commits": [{"hash": each.hash, "subject": each.subject} for each in self.proposal.commits],
            "title": self.proposal.title,
            "message": self.proposal.message,
            "body": self.body,
            "risk": self.facts.review.risk.level.name,
            "findings": [finding_object(each) for each in self.facts.review.open],
            "attested_checks": self.facts.checks.fields(),
            "backup": self.backup.id if self.backup else None,
            "existing": {"number": existing.number, "url": existing.url} if existing else None,
            "steps": [each.fields() for each in self.steps],
        }


def push_of(branch: CheckedOutBranch, target: Target, proposal: Proposal, *, extends: bool) -> Push | None:
    """Return what has to be pushed; None where the remote has it. extends: the remote's commits stay."""
    if target.theirs == proposal.after:
        return None
    return Push(
        remote=target.remote,
        reference=branch.reference,
        commit=proposal.after,
        expected="" if extends or not target.theirs else target.theirs,
    )


def fetch_step(target: Target, names: tuple[str, ...]) -> Step:
    """Describe the fetch, which is already done when the plan is shown, except in a dry run."""
    return Step(
        name="fetch",
        effect=f"{target.base_remote}/{target.base} is {target.base_tip[:12]} here too",
        requires="the remote can be reached",
        undo="none needed: only what is known of the remote changes",
        command=shlex.join(["git", "fetch", "--no-tags", target.base_remote, *names]),
    )


def checks_step(branch: CheckedOutBranch, command: Sequence[str]) -> Step:
    """Describe the run of the repository's checks, which nothing but a dry run leaves out."""
    return Step(
        name="checks",
        effect=f"`{shlex.join(command)}` passes on {branch.tip[:12]}, and that is attested",
        requires="no file differs from that commit, and the base has nothing that the branch lacks",
        undo="none needed: only the attestation beside git's own files changes",
        command=shlex.join(command),
    )


def backup_step(branch: CheckedOutBranch, backup: Backup) -> Step:
    """Describe the backup, made before the branch moves."""
    return Step(
        name="backup",
        effect=f"{branch.name} is kept as {backup.id} ({branch.tip[:12]})",
        requires="the reference is not there yet",
        undo=shlex.join(["git", "update-ref", "-d", backup.reference]),
        command=shlex.join(["git", "update-ref", backup.reference, branch.tip]),
    )


def move_step(branch: CheckedOutBranch, before: str, after: str, backup: Backup, what: str) -> Step:
    """Describe the move of branch, index and work tree."""
    return Step(
        name="move",
        effect=f"{what}; {branch.name} goes from {before[:12]} to {after[:12]}, with index and work tree",
        requires=f"{branch.name} is at {before[:12]}, nothing is uncommitted, no file is in the way",
        undo=f"areal-pr restore {backup.id}",
        command=shlex.join(["git", "update-ref", branch.reference, after, before]),
    )


def push_step(push: Push, theirs: str) -> Step:
    """Describe the push."""
    replaced = f", instead of {theirs[:12]}" if push.expected else ""
    undo = [f"--force-with-lease={push.reference}:{push.commit}", push.remote, f"{theirs}:{push.reference}"]
    return Step(
        name="push",
        effect=f"{push.remote} has {push.commit[:12]} as {push.reference.removeprefix('refs/heads/')}{replaced}",
        requires=f"the remote branch is {theirs[:12]}" if theirs else "the remote has no such branch",
        undo=shlex.join(["git", "push", *undo]),
        command=shlex.join(["git", *push.words()]),
    )
