"""Tools of `areal-harness`."""

from __future__ import annotations

from typing import Final

from tooling.mcp.tools.records import NO_OPTION, Check, Tool, switch, words

_HARNESS: Final = "tooling.harness.__main__:main"
_DIFF: Final = switch("diff", "--diff", "Show unified diffs in `plan`.")

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="harness_list",
        title="List skills and experts",
        help="Skills and experts of this repository, their size in tokens, and where each is compiled to.",
        program="areal-harness",
        main=_HARNESS,
        words=("list",),
        fields={"skills": "array", "experts": "array", "platforms": "array"},
        seconds=60,
    ),
    Tool(
        name="harness_check",
        title="Check skills and experts",
        help="Checks that every path, symbol, command and option that skills, experts and AGENTS.md mention exists.",
        program="areal-harness",
        main=_HARNESS,
        words=("check",),
        parameters=(
            words("pages", NO_OPTION, "Only these files, e.g. skills/add-reward/SKILL.md.", check=Check.INSIDE),
            switch("no_run", "--no-run", "Start no process: commands and options are not checked."),
        ),
        fields={"findings": "array", "judged": "object"},
        verdicts={10: "something that is mentioned does not exist"},
        seconds=300,
        example={"pages": ["AGENTS.md"], "no_run": True},
    ),
    Tool(
        name="harness_sync",
        preview="harness_sync_plan",
        title="Compile skills and experts",
        help="Writes every agent platform's copies of skills and experts; files of others and edits by hand are kept.",
        program="areal-harness",
        main=_HARNESS,
        words=("sync",),
        parameters=(switch("overwrite", "--overwrite", "Replace copies that were edited by hand, too."), _DIFF),
        fields={"counts": "object", "files": "array"},
        writes=True,
        destructive=True,
        idempotent=True,
    ),
)
