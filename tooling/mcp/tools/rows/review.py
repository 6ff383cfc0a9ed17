"""Tools of `areal-review`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tooling.mcp.tools.records import NAME, Check, Tool, option, switch, word

_REVIEW: Final = "tooling.review.__main__:main"

_QUICK: Final = switch("quick", "--quick", "Only the analysis: no rules.")
_FAIL_ON: Final = option(
    "fail_on",
    "--fail-on",
    "Lowest severity that makes the exit code 10.",
    choices=("low", "medium", "high", "critical", "never"),
)
_REVIEWED: Final = {
    "CHANGE_ANALYSIS_REPORT": "object",
    "findings": "array",
    "suppressed": "array",
    "not_reviewed": "array",
}
_FOUND: Final = {10: "there are findings at or above fail_on"}

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="review",
        title="Review a change",
        help="Reviews a branch, a commit or what is staged: risk with reasons, bugs that rules can prove, and passes "
        "with prompts for experts. Default: HEAD against main. Fetches and runs nothing.",
        program="areal-review",
        main=_REVIEW,
        parameters=(
            option("base", "--base", "Compare with what this and head share (default: main).", check=Check.REVISION),
            option("head", "--head", "Default: HEAD.", check=Check.REVISION),
            switch("staged", "--staged", "What the next commit would hold."),
            switch("worktree", "--worktree", "What differs on disk, new files included."),
            option("commit", "--commit", "One commit against its parent.", check=Check.REVISION),
            _QUICK,
            _FAIL_ON,
            option("baseline", "--baseline", "File with accepted findings.", check=Check.INSIDE),
        ),
        fields=_REVIEWED,
        verdicts=_FOUND,
        seconds=300,
        example={"commit": "HEAD"},
    ),
    Tool(
        name="review_pull_request",
        title="Review a pull request",
        help="Fetches a pull or merge request of the remote into refs of its own, and reviews it like `review`.",
        program="areal-review",
        main=_REVIEW,
        parameters=(
            replace(option("number", "--pr", "Its number."), type="integer", required=True),
            option("remote", "--remote", "Default: upstream, origin, or the first.", pattern=NAME),
            option("base", "--base", "A branch of the remote; default: the one it goes to.", check=Check.REVISION),
            _QUICK,
            _FAIL_ON,
        ),
        fields=_REVIEWED,
        network=True,
        verdicts=_FOUND,
        seconds=300,
        example={"number": 1},
    ),
    Tool(
        name="review_rules",
        title="Rules of the review",
        help="What a rule looks for, why, and how to fix what it finds; without a rule, all of them.",
        program="areal-review",
        main=_REVIEW,
        words=("explain",),
        parameters=(word("rule", NAME, "Id of a rule, as in a finding."),),
        fields={"rules": "array", "rule": "object"},
        seconds=60,
    ),
)
