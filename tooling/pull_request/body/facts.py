"""Everything that a pull request says, as values. Where something was not measured, that is a fact too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.pull_request.body.dependencies import changed_requirements, read_audit
from tooling.pull_request.body.junit import read_report
from tooling.pull_request.move.backups import backups

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.commit.message import Message
    from tooling.pull_request.body.dependencies import AuditRow, Requirement
    from tooling.pull_request.body.junit import TestReport
    from tooling.pull_request.git import Git
    from tooling.pull_request.history.outcome import Proposal
    from tooling.review.report.outcome import Outcome

_ISSUE: Final = re.compile(r"(?:[\w.-]+/[\w.-]+)?#\d+")
_CLOSES: Final = re.compile(r"close[sd]?|fix(?:e[sd])?|resolve[sd]?", re.IGNORECASE)
_REFERS: Final = re.compile(r"refs?|see(?:-also)?|related(?:-to)?|issues?|references?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Of one proposal."""

    proposal: Proposal
    message: Message
    """Of the newest commit: type, scope, words."""
    review: Outcome
    conforming: bool
    """Whether every message that is proposed conforms."""
    up_to_date: bool
    """Whether it stands on the newest commit of the base."""
    closes: tuple[str, ...]
    refers: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    audit: tuple[AuditRow, ...] | None
    """None: no report was given."""
    tests: TestReport | None
    """None: no report was given."""
    tests_outdated: bool
    """Whether the report is older than the newest commit."""
    merged_since: bool
    """Whether the proposal holds news of the base that the tests have not seen."""

    @property
    def breaking(self) -> tuple[str, ...]:
        """What users have to do, by the footers of all commits."""
        found = (parse(each.message) for each in self.proposal.commits)
        return tuple(dict.fromkeys(foot.value for each in found for foot in each.footers if foot.breaking))

    @property
    def announces_breaking(self) -> bool:
        """Whether any commit says that it breaks users."""
        return any(parse(each.message).breaking for each in self.proposal.commits)

    def paths(self, role: str) -> tuple[str, ...]:
        """Changed files of a role: "test", "docs", "code"."""
        return tuple(each.path for each in self.review.comparison.files if role_of(each.path) == role)


def measure(git: Git, proposal: Proposal, *, base_tip: str, test_report: Path | None, audit: Path | None) -> Facts:
    """Read everything. Raises UsageError for reports that cannot be read."""
    settings = read_commit_settings(git.root)
    messages = [parse(proposal.message)]
    if proposal.after == proposal.before:
        messages = [parse(each.message) for each in proposal.commits]
    tests = read_report(test_report) if test_report is not None else None
    outcome = _review(git, proposal)
    paths = [each.path for each in outcome.comparison.files]
    return Facts(
        proposal=proposal,
        message=parse(proposal.message),
        review=outcome,
        conforming=not any(p.severity == "error" for each in messages for p in problems(each, settings, final=True)),
        up_to_date=git.contains(proposal.after, base_tip),
        closes=_issues(proposal, _CLOSES),
        refers=_issues(proposal, _REFERS),
        requirements=changed_requirements(git, proposal.onto, proposal.after, paths),
        audit=read_audit(audit) if audit is not None else None,
        tests=tests,
        tests_outdated=tests is not None and tests.older_than(_written(git, proposal.before)),
        merged_since=git.tree(proposal.after) != git.tree(proposal.before),
    )


def _written(git: Git, tip: str) -> int:
    """When the files of a commit were first committed, in seconds since 1970: joining commits, which a backup tells of,
    makes no new files."""
    kept = [each.commit for each in backups(git)]
    output = git.run("log", "--no-walk=unsorted", "--no-show-signature", "--format=%T %ct", tip, *kept, "--").decode()
    rows = [line.split(" ") for line in output.splitlines()]
    return min(int(moment) for tree, moment in rows if tree == rows[0][0])


def _review(git: Git, proposal: Proposal) -> Outcome:
    """The review of what is proposed, next to the base that it is proposed for: exactly what the command finds."""
    from tooling.review.cli.arguments import parse as parse_words
    from tooling.review.cli.main import review

    words = ["--repo", os.fspath(git.readable), "--base", proposal.onto, "--head", proposal.after]
    return review(parse_words(words))[0]


def _issues(proposal: Proposal, token: re.Pattern[str]) -> tuple[str, ...]:
    """Issues that footers name by such a token, and "(#12)"-like words of the body after such a verb."""
    found: list[str] = []
    for commit in proposal.commits:
        message = parse(commit.message)
        for footer in message.footers:
            if token.fullmatch(footer.token):
                found += _ISSUE.findall(footer.value)
        text = "\n".join(line for _, line in message.body)
        found += re.findall(rf"\b(?:{token.pattern})\s+({_ISSUE.pattern})", text, re.IGNORECASE)
    return tuple(dict.fromkeys(found))
