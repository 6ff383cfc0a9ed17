"""Tools of `areal-commit`."""

from __future__ import annotations

from typing import Final

from tooling.mcp.tools.records import NO_OPTION, TEXT_LENGTH, Check, Tool, option, switch, word

_COMMIT: Final = "tooling.commit.__main__:main"

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="commit_check",
        title="Check commit messages",
        help="Checks a message, or the commits of a range, against this repository's rules (Conventional Commits, "
        "scopes). Give message or range.",
        program="areal-commit",
        main=_COMMIT,
        words=("check",),
        parameters=(
            option("message", "--message", "The whole message.", length=TEXT_LENGTH),
            word("range", NO_OPTION, "A commit or BASE..HEAD.", check=Check.REVISION),
            switch("strict", "--strict", "Warnings count as errors."),
            switch("all", "--all", "Also commits older than the rules."),
        ),
        fields={"checked": "integer", "exempt": "integer", "messages": "array"},
        verdicts={10: "a message does not conform"},
        seconds=60,
        example={"message": "docs(harness): say how tools are called"},
    ),
    Tool(
        name="commit_suggest",
        title="Suggest a commit message",
        help="Suggests type, scope and a skeleton of the message from what is staged, with the evidence.",
        program="areal-commit",
        main=_COMMIT,
        words=("suggest",),
        parameters=(
            option("type", "--type", "This type, instead of the suggested one."),
            option("scope", "--scope", "This scope, instead of the suggested one; empty for none."),
        ),
        fields={
            "message": "string",
            "header": "string",
            "type": "object",
            "scope": "object",
            "files": "array",
            "symbols": "array",
        },
        seconds=60,
    ),
    Tool(
        name="commit_changelog",
        title="History as a list of changes",
        help="Lists the commits of a range as changes, breaking ones first. Default: since the latest tag.",
        program="areal-commit",
        main=_COMMIT,
        words=("changelog",),
        parameters=(word("range", NO_OPTION, "BASE..HEAD.", check=Check.REVISION),),
        fields={"range": "string", "entries": "array"},
        seconds=60,
        example={"range": "HEAD"},
    ),
)
