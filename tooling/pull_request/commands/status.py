"""Says where the branch stands: commits, base, remote, pull request, backups, and whether a run was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError
from tooling.cli.git import find_repository
from tooling.cli.report import Report, aligned
from tooling.pull_request import service
from tooling.pull_request.backups import backups, load_record
from tooling.pull_request.branch import (
    ProposalOptions,
    current_branch,
    refuse_changes,
    refuse_operations,
    target_offline,
)
from tooling.pull_request.commits import commits_since
from tooling.pull_request.git import WorkTree

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser
    from tooling.pull_request.branch import CheckedOutBranch


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--base", default="", metavar="BRANCH", help="the base (default: that of the remote)")
    parser.add_argument("--remote", default="", metavar="NAME", help="the remote (default: that of the branch)")
    parser.add_argument("--offline", action="store_true", help="do not ask `gh` for the pull request")


def run(arguments: argparse.Namespace) -> Report:
    """Look, and change nothing."""
    git = WorkTree.of(find_repository(arguments.repo))
    branch = current_branch(git)
    data: dict[str, Any] = {"branch": branch.name, "tip": branch.tip, "ready": True}
    rows, steps = [("branch", f"{branch.name} at {branch.tip[:12]}")], list[str]()
    data["interrupted"] = load_record(git.repository) is not None
    if data["interrupted"]:
        rows.append(("interrupted", "an earlier run stopped while the branch moved"))
        steps.append("run `areal-pr create`, which goes on, or `areal-pr restore`, which undoes it")
    _obstacles(git, data, rows)
    _distances(git, branch, ProposalOptions(base=arguments.base, remote=arguments.remote), data, rows, arguments)
    kept = backups(git, branch.name)
    data["backups"] = [each.id for each in kept]
    rows.append(("backups", f"{len(kept)}, newest {kept[0].id}" if kept else "none"))
    return Report(command="areal-pr status", changing=False, text=aligned(rows), next_steps=tuple(steps), data=data)


def _obstacles(git: WorkTree, data: dict[str, Any], rows: list[tuple[str, str]]) -> None:
    """Collect what `create` would refuse."""
    data["obstacles"] = []
    for look in (lambda: refuse_operations(git.repository), lambda: refuse_changes(git, refuse_untracked=False)):
        try:
            found = look()
        except ToolError as error:
            data["ready"] = False
            data["obstacles"].append({"error": error.message, "fix": error.fix})
            rows.append(("obstacle", str(error)))
        else:
            rows += [("note", each) for each in found or ()]


def _distances(
    git: WorkTree,
    branch: CheckedOutBranch,
    options: ProposalOptions,
    data: dict[str, Any],
    rows: list[tuple[str, str]],
    arguments: argparse.Namespace,
) -> None:
    """Compare with base, remote and pull request, by what was fetched last."""
    try:
        goal = target_offline(git, branch, options)
    except ToolError as error:
        data["ready"] = False
        data["obstacles"].append({"error": error.message, "fix": error.fix})
        rows.append(("obstacle", str(error)))
        return
    ahead = len(commits_since(git, goal.base_tip, branch.tip))
    behind = len(commits_since(git, branch.tip, goal.base_tip))
    data |= {"base": f"{goal.base_remote}/{goal.base}", "ahead": ahead, "behind": behind}
    rows.append(("base", f"{goal.base_remote}/{goal.base}: {ahead} commits ahead, {behind} behind, as fetched last"))
    state = "different: history was rewritten"
    if not goal.theirs:
        state = "not pushed yet"
    elif goal.theirs == branch.tip:
        state = "the same"
    elif git.is_ancestor(goal.theirs, branch.tip):
        state = "behind this branch"
    elif git.is_ancestor(branch.tip, goal.theirs):
        state = "ahead of this branch"
    data["remote"] = {"name": goal.remote, "commit": goal.theirs or None, "state": state}
    rows.append(("remote", f"{goal.remote}: {state}"))
    if not arguments.offline:
        answer = service.look_up(git.root, branch, goal)
        open_ = answer.existing
        data["pull_request"] = {"number": open_.number, "url": open_.url, "draft": open_.draft} if open_ else None
        rows.append(("request", open_.url if open_ else answer.why or "none is open"))
