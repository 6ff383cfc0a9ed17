"""Makes a plan, shows it and applies it. `observe` is called before every change, so that a test can kill the process
there."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.lock import repository_lock
from tooling.pull_request import backups, checks, move, service
from tooling.pull_request.backups import PushRecord, load_record, state_folder, write_state
from tooling.pull_request.body import fill, find_template, untouched
from tooling.pull_request.branch import (
    CheckedOutBranch,
    ProposalOptions,
    Target,
    current_branch,
    refuse_changes,
    refuse_elsewhere,
    refuse_moved,
    refuse_operations,
    target,
    target_offline,
)
from tooling.pull_request.commits import propose
from tooling.pull_request.facts import measure
from tooling.pull_request.git import RemoteError, WorkTree
from tooling.pull_request.plan import (
    ProposalPlan,
    Step,
    backup_step,
    checks_step,
    fetch_step,
    move_step,
    push_of,
    push_step,
)
from tooling.pull_request.remote import complete, fetch, once_here, refuse_strangers, without_secrets
from tooling.review.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tooling.cli.git import Repository
    from tooling.pull_request.commits import Proposal
    from tooling.pull_request.facts import ProposalFacts
    from tooling.pull_request.move import Recovery

    Observe = Callable[[str], None]
    Consent = Callable[[ProposalPlan], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a run."""

    plan: ProposalPlan
    url: str = ""
    next_steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recovery: Recovery | None = None


class ConsentError(UsageError):
    """History on the remote would be replaced, and nobody said yes."""

    code = "consent"


def ignore(step: str) -> None:
    """Observe nothing: the observer of everyday use."""


@contextlib.contextmanager
def at_work(
    repository: Repository, *, dry_run: bool, wait_seconds: float
) -> Iterator[tuple[WorkTree, Recovery | None]]:
    """Lock this work tree and recover from an interrupted run; in a dry run, yield a git that writes nothing that
    stays."""
    if dry_run:
        if load_record(repository) is not None:
            raise ConflictError(
                "an earlier run was interrupted while the branch moved",
                where=os.fspath(repository.root),
                fix="run it without --dry-run: it first completes or undoes what was begun; or `areal-pr restore`",
            )
        with WorkTree.rehearsing(repository) as git:
            yield git, None
        return
    with repository_lock(repository, wait_seconds=wait_seconds):
        git = WorkTree.of(repository)
        yield git, move.recover(git)


def make_plan(git: WorkTree, options: ProposalOptions, *, rehearsal: bool) -> tuple[ProposalPlan, list[str]]:
    """Do everything up to the first change of the branch; also return warnings. Raises what forbids to go on."""
    refuse_operations(git.repository)
    branch = current_branch(git)
    refuse_elsewhere(git, branch)
    warnings = refuse_changes(git, refuse_untracked=options.refuse_untracked)
    goal = target(git, branch, options)
    mine, theirs = ((branch.name,), (goal.theirs,)) if goal.theirs else ((), ())
    if goal.remote == goal.base_remote:
        names = tuple(dict.fromkeys((goal.base, *mine)))
        fetch(git, goal.remote, names, (goal.base_tip, *theirs), rehearsal=rehearsal)
    else:
        fetch(git, goal.base_remote, (goal.base,), (goal.base_tip,), rehearsal=rehearsal)
        if mine:
            fetch(git, goal.remote, mine, theirs, rehearsal=rehearsal)
    kept = [each.commit for each in backups.backups(git, branch.name)]
    if goal.theirs:
        known = (*once_here(git, branch.reference, branch.tip), *kept)
        refuse_strangers(git, branch.name, goal.remote, goal.theirs, known)
    proposal = propose(git, branch.tip, goal, options)
    move.refuse_losses(git, proposal.before, proposal.after)
    complete(git, goal.base_remote, proposal.onto, proposal.after)
    if options.run_checks:
        checks.refuse_unfit(git, proposal)
    facts = measure(git, proposal, base_tip=goal.base_tip, audit=options.audit)
    found = [each for each in facts.review.open if each.rule.severity >= Severity.HIGH]
    warnings += [f"areal-review: {each.place.path}:{each.place.line}: {each.place.message}" for each in found]
    if rehearsal and options.run_checks:
        warnings.append("--run-checks: nothing was run, since this is a dry run")
    answer = service.look_up(git.root, branch, goal)
    return _planned(git, branch, goal, facts, answer, options), warnings


def body_offline(git: WorkTree, options: ProposalOptions) -> tuple[Proposal, str]:
    """Return the proposal and its text by what was fetched last."""
    branch = current_branch(git)
    goal = target_offline(git, branch, options)
    proposal = propose(git, branch.tip, goal, options)
    facts = measure(git, proposal, base_tip=goal.base_tip, audit=options.audit)
    return proposal, fill(find_template(git, goal.base_tip, proposal.after), facts)


def create(
    repository: Repository,
    options: ProposalOptions,
    *,
    dry_run: bool,
    consent: Consent,
    wait_seconds: float = 10.0,
    observe: Observe = ignore,
) -> Done:
    """Plan, ask where it has to be asked, and do it."""
    with at_work(repository, dry_run=dry_run, wait_seconds=wait_seconds) as (git, recovery):
        observe("fetch")
        plan, warnings = make_plan(git, options, rehearsal=dry_run)
        if dry_run:
            return Done(plan=plan, warnings=tuple(warnings))
        if not consent(plan):
            raise ConsentError(
                f"commits that {plan.target.remote} has would be replaced, and nobody agreed",
                where=f"{plan.target.remote}/{plan.branch.name}",
                fix="look at --dry-run, then add --yes; nothing was changed",
            )
        if options.run_checks:
            observe("checks")
            checks.run_checks(git, plan.branch)
            facts = replace(plan.facts, checks=checks.judge(git, plan.proposal))
            plan = _planned(git, plan.branch, plan.target, facts, plan.answer, options)
        if plan.backup is not None:
            refuse_moved(git, plan.branch)
            observe("backup")
            backups.write(git, plan.backup)
            checks.follow(git, plan.facts.checks, plan.proposal.after)
            move.move(git, _record(plan.branch, plan.proposal.after, plan.backup), observe)
        _push(git, plan, observe)
        observe("pull request")
        url, steps = _publish(git, plan, options)
        stale = move.moved_submodules(git, plan.proposal.before, plan.proposal.after)
        if stale:
            steps = (shlex.join(["git", "submodule", "update", "--init", "--", *stale]), *steps)
        observe("end")
        return Done(plan=plan, url=url, next_steps=steps, warnings=tuple(warnings), recovery=recovery)


def restore(
    repository: Repository, wanted: str, *, dry_run: bool, wait_seconds: float = 10.0, observe: Observe = ignore
) -> tuple[tuple[Step, ...], backups.Backup, Recovery | None]:
    """Bring the branch that is checked out back to a backup; what it is now is kept as another one."""
    with at_work(repository, dry_run=dry_run, wait_seconds=wait_seconds) as (git, recovery):
        refuse_operations(repository)
        branch = current_branch(git)
        refuse_elsewhere(git, branch)
        refuse_changes(git, refuse_untracked=False)
        found = backups.find(git, wanted, branch)
        if found.commit == branch.tip:
            return (), found, recovery
        move.refuse_losses(git, branch.tip, found.commit)
        fresh = backups.reserve(branch)
        what = f"back to {found.id}"
        steps = (backup_step(branch, fresh), move_step(branch, branch.tip, found.commit, fresh, what))
        if not dry_run:
            observe("backup")
            backups.write(git, fresh)
            move.move(git, _record(branch, found.commit, fresh), observe)
            observe("end")
        return steps, found, recovery


def _planned(
    git: WorkTree,
    branch: CheckedOutBranch,
    goal: Target,
    facts: ProposalFacts,
    answer: service.ServiceAnswer,
    options: ProposalOptions,
) -> ProposalPlan:
    existing, proposal = answer.existing, facts.proposal
    if existing is not None and existing.base != goal.base and not options.base:
        fix = f"add --base {existing.base}, or --base {goal.base} to change it"
        raise UsageError(f"#{existing.number} is open against {existing.base!r}", where="--base", fix=fix)
    backup = backups.reserve(branch) if proposal.rewritten else None
    extends = not goal.theirs or git.is_ancestor(goal.theirs, proposal.after)
    push = push_of(branch, goal, proposal, extends=extends)
    steps = [fetch_step(goal, (goal.base,))]
    if options.run_checks:
        steps.append(checks_step(branch, facts.checks.command))
    if backup is not None:
        what = f"{len(proposal.commits)} commits become one" if proposal.joined else "its commits are replayed"
        where = f" on {goal.base_remote}/{goal.base}" if options.rebase else ""
        moved = move_step(branch, proposal.before, proposal.after, backup, what + where)
        steps += [backup_step(branch, backup), moved]
    if push is not None and options.push:
        steps.append(push_step(push, goal.theirs))
    plan = ProposalPlan(
        branch=branch,
        target=goal,
        proposal=proposal,
        answer=answer,
        backup=backup,
        push=push,
        pushing=options.push,
        facts=facts,
        body=fill(find_template(git, goal.base_tip, proposal.after), facts),
        steps=tuple(steps),
    )
    step = _service_step(plan, options) if options.push else None
    return replace(plan, steps=(*steps, step)) if step is not None else plan


def _service_step(plan: ProposalPlan, options: ProposalOptions) -> Step | None:
    existing = plan.answer.existing
    words = _service_words(plan, options)
    if existing is not None:
        if not words:
            return None
        effect, undo = f"#{existing.number} has the new title, base or text", "the service keeps earlier texts"
    else:
        kind = "draft" if options.draft else "pull request"
        effect = f"a {kind} against {plan.target.base}: {plan.proposal.title}"
        undo = "gh pr close NUMBER"
    if not plan.answer.usable:
        effect, undo = f"the text is kept for a pull request by hand ({plan.answer.why})", "none needed"
    return Step(
        name="pull-request",
        effect=effect,
        requires="the branch is pushed",
        undo=undo,
        command=service.shown(words) if plan.answer.usable else "",
    )


def _service_words(plan: ProposalPlan, options: ProposalOptions) -> list[str]:
    """Return arguments for gh; empty where an open pull request stays as it is."""
    existing, goal, title = plan.answer.existing, plan.target, plan.proposal.title
    if existing is None:
        return service.create_words(plan.branch, goal, title, draft=options.draft)
    new_title = title if options.title and title != existing.title else ""
    base = goal.base if existing.base != goal.base else ""
    # A text that somebody edited is kept, unless asked otherwise.
    same = existing.body.replace("\r\n", "\n").strip() == plan.body.strip()
    body = not same and (options.replace_body or not existing.body.strip() or untouched(existing.body))
    if not (new_title or base or body):
        return []
    return service.edit_words(existing.number, goal, title=new_title, body=body, base=base)


def _record(branch: CheckedOutBranch, after: str, backup: backups.Backup) -> PushRecord:
    return PushRecord(reference=branch.reference, before=branch.tip, after=after, backup=backup.id)


def _push(git: WorkTree, plan: ProposalPlan, observe: Observe) -> None:
    push = plan.push
    if push is None or not plan.pushing:
        return
    observe("push")
    done = git.attempt(*push.words(), hooks=True)
    if done.status != 0:
        lines = done.output.decode(errors="replace").splitlines()
        rejected = "; ".join(line.split("\t")[-1] for line in lines if line.startswith("!"))
        said = without_secrets(f"{rejected} {done.complaint}".strip())
        where = f"{plan.target.remote}/{plan.branch.name}"
        way_back = f"; `areal-pr restore {plan.backup.id}` brings your branch back" if plan.backup else ""
        if "stale info" in said or "fetch first" in said or "non-fast-forward" in said:
            what = "somebody pushed to it meanwhile; nothing there was replaced"
            raise ConflictError(what, where=where, fix=f"run it again, it says what is new there{way_back}")
        fix = f"put right what it says and run it again: only the rest is done{way_back}"
        raise RemoteError(f"the push was refused: {said}", where=where, fix=fix)
    observe("upstream")
    name = plan.branch.name
    if not git.setting(f"branch.{name}.merge"):
        # So that `git pull` and `git status` know the remote branch.
        git.attempt("config", f"branch.{name}.remote", push.remote)
        git.attempt("config", f"branch.{name}.merge", plan.branch.reference)


def _publish(git: WorkTree, plan: ProposalPlan, options: ProposalOptions) -> tuple[str, tuple[str, ...]]:
    """Open or update the pull request; return its address, and what is left to do."""
    existing = plan.answer.existing
    if not plan.pushing:
        return "", (shlex.join(["git", *plan.push.words()]),) if plan.push is not None else ()
    if not plan.answer.usable:
        # The text is kept beside git's own files: nothing of it is ever committed.
        place = state_folder(git.repository) / "body.md"
        write_state(git.repository, place.name, plan.body.encode("utf-8", errors="replace"))
        return "", service.by_hand(plan.branch, plan.target, plan.proposal.title, place, draft=options.draft)
    words = _service_words(plan, options)
    url = service.perform(git.root, words, plan.body) if words else ""
    steps = list[str]()
    if existing is not None and not words and existing.body.replace("\r\n", "\n").strip() != plan.body.strip():
        steps.append(f"#{existing.number} has a text that somebody edited; it was kept (--replace-body replaces it)")
    return (existing.url if existing is not None else url), tuple(steps)
