"""Measures everything that a pull request says; where something was not measured, that is a fact too.

Reports of tests (JUnit XML) and of audits are somebody's text: never trusted to be well-formed or small.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.commit.changes import role_of
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.pull_request.backups import backups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.commit.message import Message
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


_MAX_BYTES: Final = 100_000_000
_TESTS_FIX: Final = "make it with `pytest --junit-xml FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """Sums over all suites of one file."""

    name: str
    """File name only."""
    passed: int
    failed: tuple[str, ...]
    """Tests that failed or could not run, "module::test"."""
    skipped: tuple[tuple[str, int], ...]
    """Reason and number of tests, most frequent first."""
    seconds: float
    when: datetime | None
    """When the first suite began, or the file was written."""

    @property
    def total(self) -> int:
        """Tests that the file lists."""
        return self.passed + len(self.failed) + sum(number for _, number in self.skipped)

    def older_than(self, moment: int) -> bool:
        """Whether it was made before a moment (seconds since 1970): then it is about something else."""
        return self.when is None or self.when.timestamp() < moment


def read_report(path: Path) -> TestReport:
    """Read JUnit XML. Raises UsageError for anything else."""
    import xml.etree.ElementTree as Xml

    where = f"--test-report {path}"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError("is larger than 100 MB", where=where, fix=_TESTS_FIX)
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where, fix=_TESTS_FIX) from error
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise UsageError("declares a document type, which no test report does", where=where, fix=_TESTS_FIX)
    try:
        root = Xml.fromstring(content)
    except (Xml.ParseError, ValueError, LookupError) as error:
        raise UsageError(f"is not XML: {error}", where=where, fix=_TESTS_FIX) from error
    if root.tag not in {"testsuites", "testsuite"}:
        raise UsageError(f"is not a test report: its root is <{root.tag}>", where=where, fix=_TESTS_FIX)
    return _counted(root, path)


def _counted(root: Any, path: Path) -> TestReport:
    passed, failed, skipped, seconds = 0, list[str](), Counter[str](), 0.0
    for case in root.iter("testcase"):
        with suppress(ValueError):
            seconds += float(case.get("time") or 0.0)
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (mark := case.find("skipped")) is not None:
            skipped[" ".join((mark.get("message") or mark.text or "no reason given").split())] += 1
        else:
            passed += 1
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    for suite in root.iter("testsuite"):  # suites say when they began
        with suppress(ValueError):
            moment = datetime.fromisoformat(suite.get("timestamp") or "")
            when = moment if moment.tzinfo is not None else moment.astimezone(UTC)
            break
    reasons = tuple(sorted(skipped.items(), key=lambda item: (-item[1], item[0])))
    return TestReport(
        name=os.path.basename(path),
        passed=passed,
        failed=tuple(dict.fromkeys(failed)),
        skipped=reasons,
        seconds=seconds,
        when=when,
    )


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
        """Return the changed files of a role: "test", "docs", "code"."""
        return tuple(each.path for each in self.review.comparison.files if role_of(each.path) == role)


def measure(
    git: WorkTree, proposal: Proposal, *, base_tip: str, test_report: Path | None, audit: Path | None
) -> ProposalFacts:
    """Read everything. Raises UsageError for reports that cannot be read."""
    settings = read_commit_settings(git.root)
    messages = [parse(proposal.message)]
    if proposal.after == proposal.before:
        messages = [parse(each.message) for each in proposal.commits]
    tests = read_report(test_report) if test_report is not None else None
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
        tests=tests,
        tests_outdated=tests is not None and tests.older_than(_written(git, proposal.before)),
        merged_since=proposal.after_tree != proposal.before_tree,
    )


def _written(git: WorkTree, tip: str) -> int:
    """Return when the files of a commit were first committed, in seconds since 1970: joining commits, which a backup
    tells of, makes no new files."""
    kept = [each.commit for each in backups(git)]
    output = git.run("log", "--no-walk=unsorted", "--no-show-signature", "--format=%T %ct", tip, *kept, "--").decode()
    rows = [line.split(" ") for line in output.splitlines()]
    return min(int(moment) for tree, moment in rows if tree == rows[0][0])


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
