"""Lists the tools: which commands agents may call, what these write, and how long they may take.

Names, types and help of the arguments come from the commands' parsers (`tooling.mcp.tools.arguments`); a row says what
no parser knows. Of a tool that writes, the table offers two: itself, and a preview that is the same command with
--dry-run. So a client can be allowed to call the one without asking, and never the other. No tool of `areal-pr` pushes:
what leaves this machine is proposed by a person, or by an agent that is allowed to run `areal-pr`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tooling.mcp.tools.records import Passing, Tool, ToolArgument
from tooling.new.command_line import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """How a program is called from Python. Both are names, "module:object"."""

    main: str
    """Runs a command line, and returns the exit code."""
    parser: str
    """Returns the parser of a command, or of the whole program."""
    has_commands: bool = True


PROGRAMS: Final[Mapping[str, ProgramEntry]] = {
    "areal-audit": ProgramEntry(
        "tooling.upgrade.commands.audit:main", "tooling.upgrade.commands.audit:make_parser", has_commands=False
    ),
    "areal-commit": ProgramEntry("tooling.commit.__main__:main", "tooling.commit.__main__:PROGRAM.parser"),
    "areal-docs": ProgramEntry("tooling.documentation.__main__:main", "tooling.documentation.__main__:PROGRAM.parser"),
    "areal-harness": ProgramEntry("tooling.harness.__main__:main", "tooling.harness.__main__:PROGRAM.parser"),
    "areal-new": ProgramEntry("tooling.new.command_line:main", "tooling.new.command_line:command_parser"),
    "areal-pr": ProgramEntry("tooling.pull_request.__main__:main", "tooling.pull_request.__main__:PROGRAM.parser"),
    "areal-review": ProgramEntry(
        "tooling.review.__main__:main", "tooling.review.commands.review:make_parser", has_commands=False
    ),
    "areal-upgrade-deps": ProgramEntry("tooling.upgrade.__main__:main", "tooling.upgrade.__main__:make_parser"),
}
DRY_RUN: Final = "--dry-run"
_KIND: Final = ToolArgument(
    name="kind",
    help="Kind of the unit: reward, dataset, workflow, environment, model, ... (see new_kinds).",
    passing=Passing.COMMAND,
    pattern=f"^(?!({'|'.join(sorted(COMMANDS))})$)[a-z][a-z0-9_-]*$(?!\\n)",  # never another command of `areal-new`
    required=True,
)
_CHANGED: Final = {
    "applied": "boolean",
    "unit": "object|null",
    "tests": "array",
    "proofs": "array",
    "kept": "array",
    "conflicts": "array",
    "references": "array",
    "commit": "string",
    "backup": "string|null",
}
_LISTS_OF_AUDIT: Final = "audits checklists declarations findings fixed not_fixed resolution sources versions"
_AUDITED: Final = dict.fromkeys(_LISTS_OF_AUDIT.split(), "array")
_BREAKS: Final = {10: "the audit found something; `worst` of each says whether it breaks"}
_REVIEWED: Final = {
    "CHANGE_ANALYSIS_REPORT": "object",
    "findings": "array",
    "suppressed": "array",
    "not_reviewed": "array",
}
_FOUND: Final = {10: "there are findings at or above fail_on"}
_PROPOSED: Final = {"title": "string", "message": "string", "body": "string"}
_DIGITS: Final = {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}}
_REQUESTS: Final = {"requests": {"required": True}}

ROWS: Final[tuple[Tool, ...]] = (
    # ------------------------------------------------------------------------------------------------------ areal-new
    Tool(
        name="new_kinds",
        title="List the kinds of units",
        program="areal-new",
        words=("kinds",),
        fields={"kinds": "array"},
        seconds=60,
    ),
    Tool(
        name="new_schema",
        title="Questions of a kind",
        note="Ask before new_plan and new_apply.",
        program="areal-new",
        words=("schema",),
        fields={"schema": "object"},
        seconds=60,
        example={"kind": "reward"},
    ),
    Tool(
        name="new_explain",
        title="Explain a unit",
        note="For a unit that does not exist yet, it says what would be generated.",
        program="areal-new",
        words=("explain",),
        fields={"explanation": "object"},
        example=_DIGITS,
    ),
    Tool(
        name="new_status",
        title="State of generated units",
        note="Says of each whether it is proven.",
        program="areal-new",
        words=("status",),
        fields={"units": "array"},
    ),
    Tool(
        name="new_apply",
        preview="new_plan",
        title="Generate a unit",
        help="Generates a reward, dataset, workflow, model family or another kind with its test, registers it, runs "
        "the test. Its files are all written or none; a call that ends before the test leaves the unit unproven: "
        "new_prove. Look at new_plan first; new_undo reverts it.",
        program="areal-new",
        extra=(_KIND,),
        changes={"--kind": {"name": "rows"}},
        without=("--force",),
        fields=_CHANGED,
        writes=True,
        seconds=900,
        example=_DIGITS,
    ),
    Tool(
        name="new_update",
        preview="new_update_plan",
        title="Update units",
        note="With all, every unit; conflict markers are left where both sides changed the same lines.",
        program="areal-new",
        words=("update",),
        without=("--force",),
        fields=_CHANGED,
        writes=True,
        destructive=True,
        idempotent=True,
        seconds=900,
        example={"all": True},
    ),
    Tool(
        name="new_rename",
        preview="new_rename_plan",
        title="Rename a unit",
        program="areal-new",
        words=("rename",),
        without=("--force",),
        fields=_CHANGED,
        writes=True,
        seconds=900,
        example={"kind": "model", "old": "qwen2", "new": "qwen2_base"},
    ),
    Tool(
        name="new_prove",
        preview="new_prove_plan",
        title="Prove units",
        note="Finishes what an interrupted or cancelled call left unproven.",
        program="areal-new",
        words=("prove",),
        fields=_CHANGED,
        writes=True,
        idempotent=True,
        seconds=900,
        example={"all": True},
    ),
    Tool(
        name="new_undo",
        preview="new_undo_plan",
        title="Remove a unit",
        note="Edited files are kept.",
        program="areal-new",
        words=("undo",),
        fields=_CHANGED,
        writes=True,
        destructive=True,
        example={"kind": "model", "name": "qwen3_moe"},
    ),
    Tool(
        name="new_recover",
        preview="new_recover_plan",
        title="Roll back an interrupted run",
        note="Only needed when another tool says so.",
        program="areal-new",
        words=("recover",),
        fields={"recovered": "array"},
        writes=True,
        destructive=True,
        idempotent=True,
    ),
    # -------------------------------------------------------------------------------- areal-upgrade-deps, areal-audit
    Tool(
        name="upgrade_impact",
        title="What an upgrade would break",
        program="areal-upgrade-deps",
        words=("impact",),
        changes={**_REQUESTS, "--from": {"name": "old"}},
        fields=_AUDITED,
        network=True,
        verdicts=_BREAKS,
        seconds=900,
        example={"requests": ["transformers==5.0.0"]},
    ),
    Tool(
        name="upgrade_latest",
        title="Newest versions that fit",
        program="areal-upgrade-deps",
        words=("latest",),
        fields={"packages": "array"},
        network=True,
        verdicts=_BREAKS,
        seconds=900,
    ),
    Tool(
        name="upgrade",
        preview="upgrade_plan",
        title="Move a dependency",
        note="Look at upgrade_plan first.",
        program="areal-upgrade-deps",
        changes={**_REQUESTS, "--from": {"name": "old"}},
        fields=_AUDITED,
        writes=True,
        destructive=True,
        idempotent=True,
        network=True,
        verdicts=_BREAKS,
        seconds=1800,
        example={"requests": ["transformers==5.23.0"], "offline": True},
    ),
    Tool(
        name="audit",
        title="Check the checklists of dependencies",
        program="areal-audit",
        without=("--diff",),
        fields={"packages": "array"},
        network=True,
        verdicts={10: "a checklist is missing, stale or wrong"},
        seconds=600,
    ),
    Tool(
        name="audit_write",
        preview="audit_plan",
        title="Put the checklists right",
        help="Writes what the checklists of dependencies lack or have wrong; notes of people are kept.",
        program="areal-audit",
        words=("--write",),
        fields={"packages": "array"},
        writes=True,
        idempotent=True,
        network=True,
        verdicts={10: "some checklists could not be put right"},
        seconds=600,
    ),
    # --------------------------------------------------------------------------------------------------- areal-review
    Tool(
        name="review",
        title="Review a change",
        help="Reviews a branch, a commit or what is staged: risk with reasons, bugs that rules can prove, and passes "
        "with prompts for experts. Default: HEAD against main. Fetches and runs nothing.",
        program="areal-review",
        without=("words", "--pr", "--remote"),
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
        only=("--pr", "--remote", "--base", "--quick", "--fail-on"),
        changes={"--pr": {"name": "number", "required": True}},
        fields=_REVIEWED,
        network=True,
        verdicts=_FOUND,
        seconds=300,
        example={"number": 1},
    ),
    Tool(
        name="review_rules",
        title="Rules of the review",
        help="Says what a rule looks for, why, and how to fix what it finds; without a rule, lists all of them.",
        program="areal-review",
        words=("explain",),
        only=("words",),
        changes={"words": {"name": "rule", "type": "string", "help": "id of a rule, as in a finding"}},
        fields={"rules": "array", "rule": "object"},
        seconds=60,
    ),
    # --------------------------------------------------------------------------------------------------- areal-commit
    Tool(
        name="commit_check",
        title="Check commit messages",
        note="Give message or range.",
        program="areal-commit",
        words=("check",),
        changes={"target": {"name": "range", "help": "a commit or BASE..HEAD"}},
        fields={"checked": "integer", "exempt": "integer", "messages": "array"},
        verdicts={10: "a message does not conform"},
        seconds=60,
        example={"message": "docs(harness): say how tools are called"},
    ),
    Tool(
        name="commit_suggest",
        title="Suggest a commit message",
        program="areal-commit",
        words=("suggest",),
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
        program="areal-commit",
        words=("changelog",),
        without=("--title",),
        fields={"range": "string", "entries": "array"},
        seconds=60,
        example={"range": "HEAD"},
    ),
    # -------------------------------------------------------------------------------------------------- areal-harness
    Tool(
        name="harness_list",
        title="List skills and experts",
        program="areal-harness",
        words=("list",),
        fields={"skills": "array", "experts": "array", "platforms": "array"},
        seconds=60,
    ),
    Tool(
        name="harness_check",
        title="Check skills and experts",
        program="areal-harness",
        words=("check",),
        fields={"findings": "array", "judged": "object"},
        verdicts={10: "something that is mentioned does not exist"},
        seconds=300,
        example={"pages": ["AGENTS.md"], "no_run": True},
    ),
    Tool(
        name="harness_sync",
        preview="harness_sync_plan",
        title="Compile skills and experts",
        program="areal-harness",
        words=("sync",),
        fields={"counts": "object", "files": "array"},
        writes=True,
        destructive=True,
        idempotent=True,
    ),
    # ----------------------------------------------------------------------------------------------------- areal-docs
    Tool(
        name="docs_zh_check",
        title="Check translated pages",
        program="areal-docs",
        words=("zh-check",),
        fields={"pages": "array"},
        example={"pages": ["docs/concepts.md"]},
    ),
    Tool(
        name="docs_zh_tasks",
        title="What is left to translate",
        note="When it is translated: docs_zh_mark.",
        program="areal-docs",
        words=("zh-plan",),
        fields={"tasks": "array"},
    ),
    Tool(
        name="docs_zh_mark",
        preview="docs_zh_mark_plan",
        title="Mark translated pages",
        note="Refused where headings or structure differ.",
        program="areal-docs",
        words=("zh-mark",),
        writes=True,
        idempotent=True,
        example={"pages": ["docs/concepts.md"]},
    ),
    # ------------------------------------------------------------------------------------------------------- areal-pr
    Tool(
        name="pr_status",
        title="State of the branch",
        program="areal-pr",
        words=("status",),
        fields={"branch": "string", "tip": "string", "ready": "boolean", "obstacles": "array", "backups": "array"},
        network=True,
        example={"offline": True},
    ),
    Tool(
        name="pr_body",
        title="Text of a pull request",
        program="areal-pr",
        words=("body",),
        fields=_PROPOSED,
        seconds=300,
    ),
    Tool(
        name="pr_plan",
        title="Preview: open a pull request",
        help="Lists the steps that `areal-pr create` would take, each with what it needs, does and how it is reverted. "
        "Changes nothing; run that command to do it.",
        program="areal-pr",
        words=("create", DRY_RUN),
        fields=_PROPOSED
        | dict.fromkeys(("branch", "base", "remote", "before", "after"), "string")
        | {"rewritten": "boolean", "commits": "array", "steps": "array"},
        network=True,
        seconds=300,
    ),
)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one server, by name, and those that it does not have."""

    tools: dict[str, Tool]
    withheld: dict[str, str]
    """Why, and what to do, by name."""


def _with_previews() -> Iterator[Tool]:
    for tool in ROWS:
        if tool.preview:
            yield replace(
                tool,
                name=tool.preview,
                preview="",
                previews=tool.name,
                title=f"Preview: {tool.title[0].lower()}{tool.title[1:]}",
                words=(*tool.words, DRY_RUN),
                writes=False,
                destructive=False,
            )
        yield tool


TOOLS: Final = tuple(_with_previews())
"""All rows, each after its preview."""


def family_of(tool: Tool) -> str:
    """Return the first word of a tool's name: "new", "upgrade", ..."""
    return tool.name.partition("_")[0]


def offered(*, writes: bool, only: Sequence[str] = ()) -> OfferedTools:
    """Return the tools that can be called here. writes: also those that change files; only: of these families."""
    tools, withheld = dict[str, Tool](), dict[str, str]()
    for tool in TOOLS:
        if only and family_of(tool) not in only:
            withheld[tool.name] = f"this server was started with --only {','.join(only)}"
        elif tool.writes and not writes:
            shown = f"{tool.preview} shows what it would do"
            withheld[tool.name] = f"it writes, and this server was started without --allow-writes; {shown}"
        else:
            tools[tool.name] = tool
    return OfferedTools(tools, withheld)
