"""The options of `areal-review`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tooling.cli.errors import UsageError
from tooling.review.records import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "areal-review"
FOUND = 10
EXIT_CODES = {
    0: "nothing new at or above --fail-on",
    1: "a bug of the tool, or the disk refused",
    2: "wrong arguments or settings, no repository, no such revision",
    FOUND: "new findings at or above --fail-on",
    130: "interrupted",
}
THRESHOLDS = (*(each.name.lower() for each in Severity), "never")


class _Parser(argparse.ArgumentParser):
    """Errors become UsageError, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Of `areal-review`."""
    made = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--base REV] [--head REV] [options]\n"
        f"       {PROGRAM} --staged | --worktree | --commit REV | --pr N [options]\n       {PROGRAM} explain [RULE]",
        description="Reviews a change without writing or running anything: whose code it is, how risky and why, which\n"
        "bugs rules can prove, and prompts with which an agent goes on. Only what is new is reported. Needs no\n"
        "network, except for --pr, which fetches two commits under refs/areal-review/ and touches nothing else.",
        epilog="A finding is suppressed by a comment on its line or the one above:\n"
        "    # review: ignore[RULE] reason of ten characters or more\n"
        "Settings: [tool.areal.review] in pyproject.toml, read from the base (see tooling/review/policy.py).\n\n"
        "exit codes:\n" + "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
    what.add_argument(
        "--repo", type=Path, default=Path(), metavar="PATH", help="a repository, bare or not (default: here)"
    )
    what.add_argument("--quick", action="store_true", help="stop after the analysis: no rules")
    shown = made.add_argument_group("how it is shown")
    form = shown.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object, with CHANGE_ANALYSIS_REPORT and prompts")
    form.add_argument("--sarif", action="store_true", help="SARIF 2.1.0")
    form.add_argument("--rdjson", action="store_true", help="reviewdog's diagnostic format")
    form.add_argument("--github", action="store_true", help="annotations of GitHub workflow commands")
    form.add_argument("--markdown", action="store_true", help="a comment for a pull request")
    form.add_argument("--as-baseline", action="store_true", help="print a baseline that accepts all findings of now")
    judged = made.add_argument_group("what fails")
    judged.add_argument("--fail-on", choices=THRESHOLDS, help="lowest severity that fails (default: policy, else high)")
    judged.add_argument("--baseline", type=Path, metavar="FILE", help="accepted findings, as --as-baseline prints them")
    return made


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < int(word) < 10**9:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of a pull request")
    return int(word)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError, also for options that would be ignored."""
    arguments = parser().parse_intermixed_args(words)
    if arguments.words and (arguments.words[0] != "explain" or len(arguments.words) > 2):
        raise UsageError(
            "is no command",
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
