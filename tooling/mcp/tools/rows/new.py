"""Tools of `areal-new`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tooling.mcp.tools.records import NAME, Check, Parameter, Passing, Tool, option, switch, while_writing, word
from tooling.new.command_line import COMMANDS

_NEW: Final = "tooling.new.command_line:main"
_KINDS: Final = f"^(?!({'|'.join(sorted(COMMANDS))})$)[a-z][a-z0-9_-]*$(?!\\n)"
"""A kind, never another command of `areal-new`."""
_DIFF: Final = switch("diff", "--diff", "Show unified diffs in `plan`.")
_KIND: Final = word("kind", _KINDS, "Kind of the unit: reward, dataset, workflow, model, ... (see new_kinds).")
_NAME: Final = word("name", NAME, "Name of the unit, e.g. gsm8k-hard.")
_UNIT: Final = (replace(_KIND, required=True), replace(_NAME, required=True))
_ANSWERS: Final = Parameter(
    name="answers",
    help="Answers to the questions of the kind, as new_schema describes them; what is left out has its default.",
    passing=Passing.INPUT,
    option="--answers",
    type="object",
)
_TEST: Final = while_writing(
    option("test", "--test", "Run the unit's tests after writing, or before, on a copy.", choices=("after", "staged"))
)
_NO_TEST: Final = while_writing(switch("no_test", "--no-test", "Run no tests."))
_CHANGED: Final = {
    "applied": "boolean",
    "unit": "object|null",
    "tests": "array",
    "kept": "array",
    "conflicts": "array",
    "references": "array",
    "commit": "string",
    "backup": "string|null",
}

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="new_kinds",
        title="List the kinds of units",
        help="Lists what areal-new can generate here (rewards, datasets, workflows, model families, ...).",
        program="areal-new",
        main=_NEW,
        words=("kinds",),
        fields={"kinds": "array"},
        seconds=60,
    ),
    Tool(
        name="new_schema",
        title="Questions of a kind",
        help="JSON schema of the `answers` that a kind takes. Ask before new_plan and new_apply.",
        program="areal-new",
        main=_NEW,
        words=("schema",),
        parameters=(replace(_KIND, required=True),),
        fields={"schema": "object"},
        seconds=60,
        example={"kind": "reward"},
    ),
    Tool(
        name="new_explain",
        title="Explain a unit",
        help="Says for each file of a unit what it is for, which contract it meets and what is left to do in it; for a "
        "unit that does not exist yet, what would be generated.",
        program="areal-new",
        main=_NEW,
        words=("explain",),
        parameters=(replace(_KIND, required=True), _NAME, _ANSWERS),
        fields={"explanation": "object"},
        example={"kind": "reward", "name": "digits", "answers": {"style": "boxed"}},
    ),
    Tool(
        name="new_status",
        title="State of generated units",
        help="Compares generated units with their files, registry entries and templates.",
        program="areal-new",
        main=_NEW,
        words=("status",),
        parameters=(_KIND, _NAME),
        fields={"units": "array"},
    ),
    Tool(
        name="new_apply",
        preview="new_plan",
        title="Generate a unit",
        help="Generates a reward, dataset, workflow, model family or another kind with its test, registers it, runs "
        "the test. All or nothing. Look at new_plan first; new_undo takes it back.",
        program="areal-new",
        main=_NEW,
        parameters=(
            replace(_KIND, passing=Passing.COMMAND, required=True),
            _NAME,
            _ANSWERS,
            option("rows", "--kind", "dataset: what the rows are for.", choices=("rl", "sft", "preference", "both")),
            option(
                "from",
                "--from",
                "dataset: file or folder with rows to inspect. model: model_type of the installed transformers, folder "
                "of a checkpoint, or config.json. Paths lie inside the repository.",
                check=Check.INSIDE,
            ),
            option("split", "--split", "dataset: split of the folder to inspect."),
            option(
                "source", "--source", "model: modeling file of an unknown type; read, never run.", check=Check.INSIDE
            ),
            option("like", "--like", "model: write this family under the new name, unproven.", pattern=NAME),
            option("report", "--report", "model: a saved report of an analysis.", check=Check.INSIDE),
            switch("analyze_only", "--analyze-only", "model: only analyse the architecture; writes nothing."),
            switch("no_register", "--no-register", "Leave registries and documents alone."),
            _DIFF,
            _TEST,
            _NO_TEST,
        ),
        fields=_CHANGED,
        writes=True,
        seconds=900,
        example={"kind": "reward", "name": "digits", "answers": {"style": "boxed"}},
    ),
    Tool(
        name="new_update",
        preview="new_update_plan",
        title="Update units",
        help="Brings a unit (or, with all, every unit) to its template as it is now, or gives it other answers; edits "
        "are merged, and conflict markers left where both changed the same lines.",
        program="areal-new",
        main=_NEW,
        words=("update",),
        parameters=(
            _KIND,
            _NAME,
            switch("all", "--all", "Every unit (of the kind, when one is given)."),
            _ANSWERS,
            _DIFF,
            _TEST,
            _NO_TEST,
        ),
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
        help="Renames a unit: files, symbols, registry entry, test, documents; lists other places that name it.",
        program="areal-new",
        main=_NEW,
        words=("rename",),
        parameters=(
            replace(_KIND, required=True),
            word("old", NAME, "Its name.", required=True),
            word("new", NAME, "Its new name.", required=True),
            switch("references", "--references", "Also change files elsewhere where the name is certain to be meant."),
            _DIFF,
            _TEST,
            _NO_TEST,
        ),
        fields=_CHANGED,
        writes=True,
        seconds=900,
        example={"kind": "model", "old": "qwen2", "new": "qwen2_base"},
    ),
    Tool(
        name="new_undo",
        preview="new_undo_plan",
        title="Remove a unit",
        help="Removes a generated unit: its untouched files, registry entries and document lines; keeps edited files.",
        program="areal-new",
        main=_NEW,
        words=("undo",),
        parameters=(
            *_UNIT,
            switch("force", "--force", "Remove edited files too; a backup is kept in the git directory."),
            _DIFF,
        ),
        fields=_CHANGED,
        writes=True,
        destructive=True,
        example={"kind": "model", "name": "qwen3_moe"},
    ),
    Tool(
        name="new_recover",
        preview="new_recover_plan",
        title="Roll back an interrupted run",
        help="Rolls back a run that was killed while it wrote. Only needed when another tool says so.",
        program="areal-new",
        main=_NEW,
        words=("recover",),
        fields={"recovered": "array"},
        writes=True,
        destructive=True,
        idempotent=True,
    ),
)
