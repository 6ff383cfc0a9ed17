"""Reviews a change: its options, the phases, and what is printed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tooling.cli.errors import FindingError, UsageError, exit_codes_help
from tooling.cli.parser import Parser, add_common
from tooling.cli.report import Report
from tooling.review.records import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.review.policy import Policy
    from tooling.review.report import ReviewResult
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.git import ReviewedClone

PROGRAM = "areal-review"
EXIT_CODES = (0, 1, 2, 10, 11, 130)
_DESCRIPTION = """\
Reviews a change without writing or running anything: whose code it is, how risky and why, which bugs rules can prove,
and prompts with which an agent goes on. Only what is new is reported. Needs no network, except for --pr, which fetches
two commits under refs/areal-review/ and touches nothing else."""
_EPILOG = """\
A finding is suppressed by a comment on its line or the one above:
    # review: ignore[RULE] reason of ten characters or more
Settings: [tool.areal.review] in pyproject.toml, read from the base (see tooling/review/policy.py)."""
THRESHOLDS = (*(each.name.lower() for each in Severity), "never")


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    made = Parser(
        PROGRAM,
        _DESCRIPTION,
        usage=f"{PROGRAM} [--base REV] [--head REV] [options]\n"
        f"       {PROGRAM} --staged | --worktree | --commit REV | --pr N [options]\n       {PROGRAM} explain [RULE]",
        epilog=f"{_EPILOG}\n\n{exit_codes_help(EXIT_CODES)}",
    )
    made.add_argument(
        "words", nargs="*", metavar="explain [RULE]", help="say what a rule looks for; without RULE, list all"
    )
    what = made.add_argument_group("what is reviewed")
    what.add_argument(
        "--base",
        metavar="REV",
        help="compare with what REV and head share (default: main); with --pr, a branch of the remote",
    )
    what.add_argument("--head", metavar="REV", help="default: HEAD")
    one = what.add_mutually_exclusive_group()
    one.add_argument("--staged", action="store_true", help="what the next commit would hold")
    one.add_argument("--worktree", action="store_true", help="what differs on disk, new files included")
    one.add_argument("--commit", metavar="REV", help="one commit against its parent")
    one.add_argument("--pr", type=_number, metavar="N", help="pull or merge request N of the remote")
    what.add_argument(
        "--remote", metavar="NAME", help="where --pr fetches from (default: upstream, origin, or the first)"
    )
    what.add_argument("--quick", action="store_true", help="stop after the analysis: no rules")
    shown = made.add_argument_group("how it is shown")
    form = shown.add_mutually_exclusive_group()
    form.add_argument("--sarif", action="store_true", help="SARIF 2.1.0")
    form.add_argument("--rdjson", action="store_true", help="reviewdog's diagnostic format")
    form.add_argument("--github", action="store_true", help="annotations of GitHub workflow commands")
    form.add_argument("--markdown", action="store_true", help="a comment for a pull request")
    form.add_argument("--as-baseline", action="store_true", help="print a baseline that accepts all findings of now")
    judged = made.add_argument_group("what fails")
    judged.add_argument("--fail-on", choices=THRESHOLDS, help="lowest severity that fails (default: policy, else high)")
    judged.add_argument("--baseline", type=Path, metavar="FILE", help="accepted findings, as --as-baseline prints them")
    add_common(made, repo="a repository, bare or not (default: the current folder)")
    return made


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < int(word) < 10**9:
        raise argparse.ArgumentTypeError(f"{word!r} is not the number of a pull request")
    return int(word)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Raises UsageError, also for options that would be ignored."""
    arguments = make_parser().read(words)
    forms = [f"--{name}" for name in ("sarif", "rdjson", "github", "markdown") if getattr(arguments, name)]
    if arguments.json and forms:
        raise UsageError(f"--json and {forms[0]} are two forms of output", where=forms[0], fix="leave one of them out")
    if arguments.words and (arguments.words[0] != "explain" or len(arguments.words) > 2):
        raise UsageError(
            "is not a command",
            where=arguments.words[0],
            fix=f"write `{PROGRAM} explain RULE`, or name revisions by --base",
        )
    alone = [f"--{name}" for name in ("staged", "worktree", "commit", "pr") if getattr(arguments, name)]
    other = [f"--{name}" for name in ("base", "head") if getattr(arguments, name)]
    if alone == ["--pr"]:
        other = [each for each in other if each == "--head"]
    elif arguments.remote:
        raise UsageError("only --pr fetches from a remote", where="--remote", fix="leave it out, or add --pr N")
    if alone and other:
        raise UsageError(f"{alone[0]} does not take {other[0]}", where=other[0], fix="leave one of them out")
    return arguments


def run(arguments: argparse.Namespace, stream: TextIO) -> Report:
    """Review, and print the result in the form that was asked for."""
    if arguments.words:
        from tooling.review.commands.explain import explain

        return explain(arguments.words[1:])
    from tooling.cli.toml import version
    from tooling.review import report
    from tooling.review.findings import baseline

    result, policy = review(arguments)
    threshold = arguments.fail_on or policy.fail_on
    least = len(Severity) + 1 if threshold == "never" else Severity[threshold.upper()]
    failed = any(each.rule.severity >= least for each in result.open)
    status = FindingError.exit_code if failed else 0
    raw = ""
    if arguments.rdjson:
        raw = json.dumps(report.rdjson(result), indent=1) + "\n"
    elif arguments.sarif:
        raw = json.dumps(report.sarif(result, tool_version=version()), indent=1) + "\n"
    elif arguments.as_baseline:
        raw = baseline(result.findings)
    elif arguments.github:
        raw = report.github(result)
    if arguments.rdjson or arguments.sarif or arguments.as_baseline or arguments.github:
        stream.write(raw)
        return Report(command=PROGRAM, exit_code=status, changing=False)
    text = report.markdown(result) if arguments.markdown else report.text(result, quick=arguments.quick)
    return Report(command=PROGRAM, exit_code=status, changing=False, data=report.fields(result), text=text)


def review(arguments: argparse.Namespace) -> tuple[ReviewResult, Policy]:
    """Run all phases. Raises UsageError for a change or settings that make no sense."""
    from tooling.review.analysis import assess, passes, users
    from tooling.review.findings import find, read_baseline
    from tooling.review.policy import read_policy, touched
    from tooling.review.report import ReviewResult
    from tooling.review.repository.git import ReviewedClone

    git = ReviewedClone.open(arguments.repo)
    comparison = _comparison(git, arguments)
    policy = read_policy(comparison.base)
    known = comparison.base.text(policy.baseline) if policy.baseline else ""
    if arguments.baseline is not None:
        if not arguments.baseline.is_file():
            fix = "make it with --as-baseline"
            raise UsageError("no such file", where=f"--baseline {arguments.baseline}", fix=fix)
        known = arguments.baseline.read_text(encoding="utf-8")
    accepted = read_baseline(known or "")
    findings, silent = ((), ()) if arguments.quick else find(comparison, policy, accepted)
    domains = touched(comparison, policy.domains)
    risk = assess(comparison, domains, findings)
    used = users(comparison)
    made = passes(comparison, domains, risk, findings, used)
    notes = (*_unread(comparison, policy), *silent)
    return ReviewResult(comparison, domains, risk, made, findings, notes, used), policy


def _comparison(git: ReviewedClone, arguments: argparse.Namespace) -> Comparison:
    from tooling.review.repository import comparison as made
    from tooling.review.repository.pull_request import fetch

    if (arguments.staged or arguments.worktree) and git.bare:
        raise UsageError("a bare repository has no work tree", where=f"--repo {arguments.repo}", fix="name a commit")
    if arguments.pr:
        request = fetch(git, arguments.pr, remote=arguments.remote or "", base=arguments.base or "")
        comparison = made.between(git, request.base, request.head)
        chosen = "" if request.told else " (the remote's default branch: `gh` named no other)"
        comparison.title = f"pull request {request.number} onto {request.base_name}{chosen}"
        return comparison
    if arguments.staged:
        return made.staged(git)
    if arguments.worktree:
        return made.work_tree(git)
    if arguments.commit:
        return made.commit_alone(git, arguments.commit)
    if arguments.base:
        return made.between(git, arguments.base, arguments.head or "HEAD")
    from tooling.review.policy import read_policy
    from tooling.review.repository.side import Side

    head = git.commit("HEAD")
    named = read_policy(Side(git, head)).base if head is not None else ""
    known = (each for each in (named, "main", "origin/main", "master", "origin/master") if each and git.commit(each))
    base = next(known, None)
    if base is None:
        raise UsageError("no branch `main` to compare with", where="--base", fix="name the base: --base REV")
    return made.between(git, base, arguments.head or "HEAD")


def _unread(comparison: Comparison, policy: Policy) -> tuple[str, ...]:
    """List what no rule looked at, with the reason."""
    notes = [f"{path}: its content is not in this clone" for path in comparison.absent]
    for file in comparison.files:
        if file.status == "D":
            continue
        if not policy.reads(file.path):
            notes.append(f"{file.path}: excluded by the policy")
        elif comparison.head.text(file.path) is None:
            notes.append(f"{file.path}: binary, a link, a submodule or very large")
        elif file.path.endswith(".py") and comparison.head.module(file.path) is None:
            notes.append(f"{file.path}: no Python that can be parsed, or nested too deep")
    return tuple(notes)
