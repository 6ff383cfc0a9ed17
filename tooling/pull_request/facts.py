"""Measures everything that a pull request says; where something was not measured, that is a fact too.

A report of an audit is somebody's text: never trusted to be well-formed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.commit.changes import role_of
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.pull_request.checks import judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.commit.message import Message
    from tooling.pull_request.checks import ChecksVerdict
    from tooling.pull_request.commits import Proposal
    from tooling.pull_request.git import WorkTree
    from tooling.review.report import ReviewResult


_REQUIREMENT: Final = re.compile(
    r"""^(?P<sign>[+-])\s*["']?(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:\[[^\]]*\])?\s*
    (?P<range>(?:===|[<>=!~]=|[<>])\s*[^"'#;\s]+(?:\s*,\s*(?:[<>=!~]=|[<>])\s*[^"'#;\s,]+)*)""",
    re.VERBOSE,
)
_AUDIT_FIX: Final = "make it with `areal-upgrade-deps impact PACKAGE==VERSION --json > FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One that changed. Example: Requirement(file="constraints.txt", name="torch", before="==2.9", after="==2.10")."""

    file: str
    name: str
    before: str
    """"" for a new one."""
    after: str
    """"" for one that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One package of an audit."""

    distribution: str
    before: str
    after: str
    worst: str
    """The worst severity, "" for none."""
    findings: int
    unjudged: int
    """Uses that the audit could not judge."""


def changed_requirements(git: WorkTree, before: str, after: str, paths: Sequence[str]) -> tuple[Requirement, ...]:
    """Lines of manifests and locks that name another range than before."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for path in [each for each in paths if role_of(each) == "build"]:
        arguments = (
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "-U0",
            before,
            after,
            "--",
            f":(top,literal){path}",
        )
        for line in git.run("diff", *arguments).decode(errors="replace").splitlines():
            match = _REQUIREMENT.match(line)
            if match is not None and not line.startswith(("+++", "---")):
                sides = found.setdefault((path, match["name"].lower()), {})
                sides[match["sign"]] = match["range"].strip()
    rows = [
        Requirement(file=path, name=name, before=sides.get("-", ""), after=sides.get("+", ""))
        for (path, name), sides in found.items()
    ]
    return tuple(each for each in rows if each.before != each.after)


def read_audit(path: Path) -> tuple[AuditRow, ...]:
    """Read the packages of a report of `areal-upgrade-deps`. Raises UsageError for anything else."""
    where = f"--audit {path}"
    try:
        audits = json.loads(path.read_bytes())["audits"]
        return tuple(
            AuditRow(
                distribution=str(audit["distribution"]),
                before=str(audit["old_version"] or ""),
                after=str(audit["new_version"] or ""),
                worst=str(audit["worst"] or ""),
                findings=sum(int(number) for number in audit["counts"].values()),
                unjudged=int(audit["unresolved"]) + sum(int(each["count"]) for each in audit["open"]),
            )
            for audit in audits
        )
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where, fix=_AUDIT_FIX) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"is not a report of an audit ({error})", where=where, fix=_AUDIT_FIX) from error


_ISSUE: Final = re.compile(r"(?:[\w.-]+/[\w.-]+)?#\d+")
_CLOSES: Final = re.compile(r"close[sd]?|fix(?:e[sd])?|resolve[sd]?", re.IGNORECASE)
_REFERS: Final = re.compile(r"refs?|see(?:-also)?|related(?:-to)?|issues?|references?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ProposalFacts:
    """What is known of one proposal."""

    proposal: Proposal
    message: Message
    """Of the newest commit: type, scope, words."""
    review: ReviewResult
    conforming: bool
    """Whether every message that is proposed conforms."""
    up_to_date: bool
    """Whether it stands on the newest commit of the base."""
    closes: tuple[str, ...]
    refers: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    audit: tuple[AuditRow, ...] | None
    """None: no report was given."""
    checks: ChecksVerdict

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
        """Return the changed files of a role: "test", "docs", "code"."""
        return tuple(each.path for each in self.review.comparison.files if role_of(each.path) == role)


def measure(git: WorkTree, proposal: Proposal, *, base_tip: str, audit: Path | None) -> ProposalFacts:
    """Read everything. Raises UsageError for an audit that cannot be read."""
    settings = read_commit_settings(git.root)
    messages = [parse(proposal.message)]
    if proposal.after == proposal.before:
        messages = [parse(each.message) for each in proposal.commits]
    # The review of what is proposed, next to the base that it is proposed for: exactly what the command finds
    from tooling.review.commands.review import parse as parse_words
    from tooling.review.commands.review import review

    words = ["--repo", os.fspath(git.readable), "--base", proposal.onto, "--head", proposal.after]
    outcome = review(parse_words(words))[0]
    paths = [each.path for each in outcome.comparison.files]
    return ProposalFacts(
        proposal=proposal,
        message=parse(proposal.message),
        review=outcome,
        conforming=not any(p.severity == "error" for each in messages for p in problems(each, settings, final=True)),
        up_to_date=proposal.onto == base_tip or git.is_ancestor(base_tip, proposal.after),
        closes=_issues(proposal, _CLOSES),
        refers=_issues(proposal, _REFERS),
        requirements=changed_requirements(git, proposal.onto, proposal.after, paths),
        audit=read_audit(audit) if audit is not None else None,
        checks=judge(git, proposal),
    )


def _issues(proposal: Proposal, token: re.Pattern[str]) -> tuple[str, ...]:
    """Return issues that footers name by such a token, and "(#12)"-like words of the body after such a verb."""
    found: list[str] = []
    for commit in proposal.commits:
        message = parse(commit.message)
        for footer in message.footers:
            if token.fullmatch(footer.token):
                found += _ISSUE.findall(footer.value)
        text = "\n".join(line for _, line in message.body)
        found += re.findall(rf"\b(?:{token.pattern})\s+({_ISSUE.pattern})", text, re.IGNORECASE)
    return tuple(dict.fromkeys(found))
