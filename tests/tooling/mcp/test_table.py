"""The table of tools is complete, and in step with what the commands say of themselves."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tooling.kit.template.kinds import discover
from tooling.mcp.tools.call import ENVELOPE, input_schema, output_schema
from tooling.mcp.tools.records import Passing
from tooling.mcp.tools.table import ROWS, every_tool, offered

ROOT = Path(__file__).resolve().parents[3]
TOOLS = offered(writes=True).tools
HERE = [TOOLS[row.name] for row in ROWS if row.name in TOOLS]
"""All rows, but for those of commands that are not installed."""
OURS = {"--help", "--json", "--repo", "--dry-run"}
"""Options that the server sets itself, or has no use for."""
PEOPLE = {
    "--version",
    "--verbose",
    "--wait",
    "--markdown",
    "--sarif",
    "--rdjson",
    "--github",
    "--as-baseline",
    "--message-only",
    "--title",
}
LEFT_OUT = {
    "areal-new": {"--plan-out": "writes anywhere", "--trust-source": "runs foreign code", "--matrix": "runs for hours",
                  "--wait": "its default is right", "--force": "of --plan-out"},
    "areal-upgrade-deps": {"--cache": "writes anywhere", "--wait": "its default is right",
                           "--summary": "its default is right"},
    "areal-audit": {"--cache": "writes anywhere", "--wait": "its default is right", "--check": "the default",
                    "--write": "that is audit_write", "--diff": "of audit_write"},
    "areal-harness": {"--wait": "its default is right", "--check": "that is harness_sync_plan"},
    "areal-pr": {"--wait": "its default is right", "--draft": "a person's", "--no-push": "a person's",
                 "--yes": "a person's", "--replace-body": "a person's", "--untracked": "its default is right"},
    "areal-docs": {"--check": "an agent reads the states"},
    "areal-commit": {"--all-types": "an agent sorts for itself"},
}  # fmt: skip


@functools.cache
def help_page(main, words):
    module, _, function = main.partition(":")
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        getattr(importlib.import_module(module), function)([*words, "--help"])
    return page.getvalue()


def pages_of(tool):
    """The help of a tool's command; of a tool for every kind, that of all kinds."""
    words = tuple(word for word in tool.words if not word.startswith("-"))
    if any(each.passing is Passing.COMMAND for each in tool.parameters):
        return "\n".join(help_page(tool.main, (kind,)) for kind in discover(None))
    return help_page(tool.main, words)


def options_in(page):
    """Those that are listed, not those that prose mentions."""
    listed = re.findall(r"^ {2}(?:-\w, )?(--[a-z][a-z-]*)(?:, (--[a-z][a-z-]*))?", page, flags=re.MULTILINE)
    return {option for both in listed for option in both if option}


@pytest.fixture(params=HERE, ids=lambda tool: tool.name)
def row(request):
    return request.param


def test_every_option_of_a_row_is_an_option_of_its_command(row):
    known = options_in(pages_of(row))
    assert {each.option for each in row.parameters if each.option} - known == set()
    assert {word for word in row.words if word.startswith("-")} - known == set()


def test_every_choice_of_a_row_is_a_choice_of_its_command(row):
    page = re.sub(r"\s+", "", pages_of(row))
    for each in row.parameters:
        if each.choices:
            listed = [{",".join(order), "|".join(order)} for order in (each.choices, each.choices[::-1])]
            assert any(text in page for texts in listed for text in texts), each.name


def test_a_row_that_writes_has_a_dry_run(row):
    if row.writes:
        assert row.preview, "a tool that writes is looked at first"
        assert "--dry-run" in options_in(pages_of(row))


def test_every_option_of_a_command_is_in_the_table_or_left_out_for_a_reason():
    missing = []
    questions = {option for kind in discover(None) for option in options_of_questions(kind)}
    for row in HERE:
        have = {each.option for each in row.parameters} | OURS | PEOPLE | set(LEFT_OUT.get(row.program, ()))
        others = {each.option for other in HERE if other.program == row.program for each in other.parameters}
        one_page = row.program in {"areal-upgrade-deps", "areal-review"}  # for all of its tools
        have |= others if one_page else set()
        missing += [f"{row.name}: {option}" for option in sorted(options_in(pages_of(row)) - have - questions)]
    assert missing == []


def options_of_questions(kind):
    page = help_page("tooling.new.command_line:main", (kind,))
    part = page.partition("questions of")[2].partition("options about")[0]
    exposed = {each.option for row in ROWS if row.name == "new_apply" for each in row.parameters}
    return options_in(part) - exposed


def test_names_are_unique_and_say_what_a_preview_is():
    names = [tool.name for tool in every_tool()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    for row in ROWS:
        if row.preview:
            assert TOOLS[row.preview].words[-1] == "--dry-run"
            assert not TOOLS[row.preview].writes


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_schemas_are_schemas_that_clients_take(tool):
    for schema in (input_schema(tool), output_schema(tool)):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert not {"oneOf", "anyOf", "allOf", "$ref"} & schema.keys()
    assert all(each.get("description") for each in input_schema(tool)["properties"].values())
    assert not set(tool.fields) & set(ENVELOPE)
    Draft202012Validator(input_schema(tool)).validate(dict(tool.example))


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_verdicts_are_exit_codes_that_the_command_documents(tool):
    codes = {int(code) for code in re.findall(r"^  (\d+) ", help_page(tool.main, ()), flags=re.MULTILINE)}
    assert set(tool.verdicts) <= codes
    assert codes, "every command documents its exit codes"


def test_without_leave_nothing_is_offered_that_writes():
    reading, writing = offered(writes=False), offered(writes=True)
    assert not any(tool.writes for tool in reading.tools.values())
    assert {tool.name for tool in every_tool() if tool.writes} <= set(reading.withheld)
    assert set(writing.tools) > set(reading.tools)
    assert "--allow-writes" in reading.withheld["new_apply"]
    assert "new_plan shows" in reading.withheld["new_apply"]


def test_a_preview_takes_nothing_that_only_writing_needs():
    writing, preview = ({each.name for each in TOOLS[name].parameters} for name in ("new_apply", "new_plan"))
    assert writing - preview == {"no_test", "test"}


def test_the_page_about_the_tools_names_all_of_them_and_no_others():
    rows = [line for line in (ROOT / "docs/mcp.md").read_text(encoding="utf-8").splitlines() if "| `areal-" in line]
    named = {name for row in rows for name in re.findall(r"`([a-z]+(?:_[a-z]+)*)`", row.rpartition("|")[0])}
    assert named == {tool.name for tool in every_tool()}
