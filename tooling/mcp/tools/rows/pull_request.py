"""Tools of `areal-pr`; they are offered where that command is installed, and found by its entry point.

None of them pushes: what leaves this machine is proposed by a person, or by an agent that is allowed to run `areal-pr`.
"""

from __future__ import annotations

from typing import Final

from tooling.mcp.tools.records import NAME, Check, Tool, option, switch

_BASE: Final = option("base", "--base", "What to merge into, BRANCH or REMOTE/BRANCH.", check=Check.REVISION)
_REMOTE: Final = option("remote", "--remote", "Where to push; default: the remote of the branch.", pattern=NAME)
_WISHES: Final = (
    _BASE,
    _REMOTE,
    option("title", "--title", "type(scope): subject, for commit and request."),
    switch("no_squash", "--no-squash", "Keep the commits as they are."),
    switch("no_rebase", "--no-rebase", "Stay where the branch began."),
    option("test_report", "--test-report", "JUnit XML of the tests that ran.", check=Check.INSIDE),
    option("audit", "--audit", "JSON of upgrade_impact.", check=Check.INSIDE),
)

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="pr_status",
        title="State of the branch",
        help="Says where the branch stands: commits, base, remote, pull request, backups, and what is in the way.",
        program="areal-pr",
        words=("status",),
        parameters=(_BASE, _REMOTE, switch("offline", "--offline", "Do not ask for the pull request.")),
        fields={"branch": "string", "tip": "string", "ready": "boolean", "obstacles": "array", "backups": "array"},
        network=True,
        example={"offline": True},
    ),
    Tool(
        name="pr_body",
        title="Text of a pull request",
        help="Title and text of the pull request that the branch would become: what changed, risk, tests, findings.",
        program="areal-pr",
        words=("body",),
        parameters=_WISHES,
        fields={"title": "string", "message": "string", "body": "string"},
        seconds=300,
    ),
    Tool(
        name="pr_plan",
        title="Preview: open a pull request",
        help="The steps that `areal-pr create` would take, each with what it needs, does and how it is taken back. "
        "Changes nothing; run that command to do it.",
        program="areal-pr",
        words=("create", "--dry-run"),
        parameters=_WISHES,
        fields={
            "branch": "string",
            "base": "string",
            "remote": "string",
            "before": "string",
            "after": "string",
            "rewritten": "boolean",
            "commits": "array",
            "title": "string",
            "message": "string",
            "body": "string",
            "steps": "array",
        },
        network=True,
        seconds=300,
    ),
)
