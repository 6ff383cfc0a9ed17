"""`areal-review`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from tooling.cli.errors import UsageError
from tooling.cli.report import Report, aligned
from tooling.cli.run import run_cli
from tooling.cli.suggest import did_you_mean
from tooling.review.cli.arguments import FOUND, PROGRAM, parse, parser
from tooling.review.records import Severity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.review.policy import Policy
    from tooling.review.report.outcome import Outcome
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.git import Git

_MACHINE: Final = ("--json", "--sarif", "--rdjson", "--github", "--markdown", "--as-baseline")
"""Options with which stdout is for a program."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        parser().print_help()
        return 0
    return run_cli(PROGRAM, words, lambda stream: _run(parse(words), stream), machine=_MACHINE)


def _run(arguments: argparse.Namespace, stream: TextIO) -> Report:
    if arguments.words:
        return explain(arguments.words[1:])
    outcome, policy = review(arguments)
    threshold = arguments.fail_on or policy.fail_on
    least = len(Severity) + 1 if threshold == "never" else Severity[threshold.upper()]
    failed = any(each.rule.severity >= least for each in outcome.open)
    status = FOUND if failed else 0
    raw = _raw(outcome, arguments)
    if raw is not None:
        stream.write(raw)
        return Report(command=PROGRAM, exit_code=status, changing=False)
    return Report(
        command=PROGRAM, exit_code=status, changing=False, data=_data(outcome), text=_text(outcome, arguments)
    )


def _data(outcome: Outcome) -> dict[str, Any]:
    from tooling.review.report.outcome import fields

    return fields(outcome)


def _text(outcome: Outcome, arguments: argparse.Namespace) -> str:
    from tooling.review.report.written import markdown, text

    return markdown(outcome) if arguments.markdown else text(outcome, quick=arguments.quick)


def _raw(outcome: Outcome, arguments: argparse.Namespace) -> str | None:
    """Output in a form of its own, instead of a report."""
    from tooling.cli.toml import version
    from tooling.review.baseline import baseline
    from tooling.review.report.machine import github, rdjson, sarif

    if arguments.rdjson:
        return json.dumps(rdjson(outcome), indent=1) + "\n"
    if arguments.sarif:
        return json.dumps(sarif(outcome, tool_version=version()), indent=1) + "\n"
    if arguments.as_baseline:
        return baseline(outcome.findings)
    return github(outcome) if arguments.github else None


def review(arguments: argparse.Namespace) -> tuple[Outcome, Policy]:
    """All phases."""
    from tooling.review.baseline import read_baseline
    from tooling.review.domains import touched
    from tooling.review.neighbours import users
    from tooling.review.passes import passes
    from tooling.review.policy import read_policy
    from tooling.review.report.outcome import Outcome
    from tooling.review.repository.git import Git
    from tooling.review.review import find
    from tooling.review.risk import assess

    git = Git(arguments.repo)
    comparison = _comparison(git, arguments)
    policy = read_policy(comparison.base)
    accepted = read_baseline(_baseline_text(comparison, policy, arguments.baseline))
    findings = () if arguments.quick else find(comparison, policy, accepted)
    domains = touched(comparison, policy.domains)
    risk = assess(comparison, domains, findings)
    used = users(comparison)
    made = passes(comparison, domains, risk, findings, used)
    return Outcome(comparison, domains, risk, made, findings, _unread(comparison, policy), used), policy


def _baseline_text(comparison: Comparison, policy: Policy, given: Path | None) -> str:
    if given is not None:
        if not given.is_file():
            raise UsageError("no such file", where=f"--baseline {given}", fix="make it with --as-baseline")
        return given.read_text(encoding="utf-8")
    return (comparison.base.text(policy.baseline) or "") if policy.baseline else ""


def _comparison(git: Git, arguments: argparse.Namespace) -> Comparison:
    from tooling.review.repository import comparison as made

    if (arguments.staged or arguments.worktree) and git.bare:
        raise UsageError("a bare repository has no work tree", where=f"--repo {arguments.repo}", fix="name a commit")
    if arguments.pr:
        return _requested(git, arguments)
    if arguments.staged:
        return made.staged(git)
    if arguments.worktree:
        return made.work_tree(git)
    if arguments.commit:
        return made.commit_alone(git, arguments.commit)
    return made.between(git, arguments.base or _default_base(git), arguments.head or "HEAD")


def _requested(git: Git, arguments: argparse.Namespace) -> Comparison:
    from tooling.review.repository.comparison import between
    from tooling.review.repository.pull_request import fetch

    request = fetch(git, arguments.pr, remote=arguments.remote or "", base=arguments.base or "")
    comparison = between(git, request.base, request.head)
    chosen = "" if request.told else " (the remote's default branch: `gh` told no other)"
    comparison.title = f"pull request {request.number} onto {request.base_name}{chosen}"
    return comparison


def _default_base(git: Git) -> str:
    from tooling.review.policy import read_policy
    from tooling.review.repository.side import Side

    head = git.commit("HEAD")
    named = read_policy(Side(git, head)).base if head is not None else ""
    known = (each for each in (named, "main", "origin/main", "master", "origin/master") if each and git.commit(each))
    base = next(known, None)
    if base is None:
        raise UsageError("no branch `main` to compare with", where="--base", fix="name the base: --base REV")
    return base


def _unread(comparison: Comparison, policy: Policy) -> tuple[str, ...]:
    """What no rule looked at, with the reason."""
    notes = [f"{path}: its content is not in this clone" for path in comparison.absent]
    for file in comparison.files:
        if file.status == "D":
            continue
        if not policy.reads(file.path):
            notes.append(f"{file.path}: excluded by the policy")
        elif comparison.head.text(file.path) is None:
            notes.append(f"{file.path}: binary, a link, a submodule or very large")
        elif file.path.endswith(".py") and comparison.head.module(file.path) is None:
            notes.append(f"{file.path}: no Python that can be parsed")
    return tuple(notes)


def explain(words: Sequence[str]) -> Report:
    """What a rule looks for; all rules without a name."""
    from tooling.review.report import reference
    from tooling.review.rules.catalogue import RULES

    command = f"{PROGRAM} explain"
    if not words:
        rows = [reference.row(rule) for rule in RULES.values()]
        lines = aligned([(each["id"], each["severity"], f"{each['family']}: {each['title']}") for each in rows])
        return Report(command=command, changing=False, text=lines + "\n", data={"rules": rows})
    rule = RULES.get(words[0])
    if rule is None:
        fix = did_you_mean(words[0], RULES) or f"`{command}` lists all"
        raise UsageError(f"no rule {words[0]!r}", where="explain", fix=fix)
    return Report(command=command, changing=False, text=reference.text(rule), data={"rule": reference.fields(rule)})
