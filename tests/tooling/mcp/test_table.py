"""The table of tools, and the schemas that follow from it and from the parsers of the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tooling.cli.parser import Parser
from tooling.mcp.tools.arguments import WITHHELD, arguments_of, description_of
from tooling.mcp.tools.call import ENVELOPE, input_schema, output_schema
from tooling.mcp.tools.records import NAME, Guard, Passing, Tool
from tooling.mcp.tools.table import ROWS, TOOLS, ProgramEntry, offered

ROOT = Path(__file__).resolve().parents[3]
BY_NAME = {tool.name: tool for tool in TOOLS}


def make_parser():
    """The parser of a program that is made up."""
    parser = Parser("x", "Does something,\nwell.\n\nAnd more.")
    parser.add_argument("pages", nargs="+", metavar="PAGE", help="what is read")
    parser.add_argument("range", nargs="?", metavar="FILE | BASE..HEAD", help="since when")
    parser.add_argument("old", metavar="OLD", help="its name")
    parser.add_argument("--from", action="append", default=[], metavar="OLD", help="compared with")
    parser.add_argument("--level", default="low", choices=["low", "high"], help="how much (default: %(default)s)")
    parser.add_argument("--when", metavar="{now,later}", help="when")
    parser.add_argument("--number", metavar="N", help="how many")
    parser.add_argument("--text", metavar="TEXT", help="any text")
    parser.add_argument("--no-lock", dest="lock", action="store_false", help="without a lock")
    parser.add_argument("--cache", type=Path, help="anywhere")
    parser.add_argument("--markdown", action="store_true", help="for people")
    return parser


def test_arguments_are_those_of_the_parser(monkeypatch):
    entry = ProgramEntry("", f"{__name__}:make_parser", has_commands=False)
    monkeypatch.setattr("tooling.mcp.tools.arguments.PROGRAMS", {"x": entry})
    tool = Tool(name="x", title="X", program="x", note="Carefully.", changes={"--text": {"name": "message"}})
    assert description_of(tool) == "Does something, well. Carefully."
    found = {each.name: each for each in arguments_of(tool)}
    assert list(found) == ["pages", "range", "old", "from", "level", "when", "number", "message", "no_lock"]
    assert [each.name for each in found.values() if each.required] == ["pages", "old"]
    assert [each.passing for each in found.values()][:4] == [*[Passing.WORD] * 3, Passing.OPTION]
    assert {name: each.guard for name, each in found.items() if each.guard} == {
        "pages": Guard.INSIDE, "range": Guard.REVISION,
    }  # fmt: skip
    assert (found["old"].pattern, found["from"].pattern, found["from"].type) == (NAME, "", "array")
    assert (found["level"].choices, found["level"].default) == (("low", "high"), "low")
    assert (found["level"].help, found["when"].choices) == ("how much (default: low)", ("now", "later"))
    assert (found["number"].type, found["no_lock"].type) == ("integer", "boolean")
    assert {"--cache", "--markdown"} <= set(WITHHELD)


def test_names_are_unique_and_say_what_a_preview_is():
    assert len(BY_NAME) == len(TOOLS)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in BY_NAME)
    for row in ROWS:
        assert bool(row.preview) == row.writes, "a tool that writes is looked at first"
        if row.preview:
            assert BY_NAME[row.preview].words[-1] == "--dry-run"
            assert not BY_NAME[row.preview].writes


@pytest.mark.sample(14)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_are_schemas_that_clients_take(tool):
    for schema in (input_schema(tool), output_schema(tool)):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert not {"oneOf", "anyOf", "allOf", "$ref"} & schema.keys()
    assert description_of(tool)
    assert all(each.get("description") for each in input_schema(tool)["properties"].values())
    assert not set(tool.fields) & set(ENVELOPE)
    Draft202012Validator(input_schema(tool)).validate(dict(tool.example))


def test_no_tool_writes_elsewhere_or_runs_foreign_code():
    options = {each.option for tool in TOOLS for each in arguments_of(tool)}
    assert not options & {"--cache", "--plan-out", "--trust-source", "--yes", "--no-push", "--write", "--repo"}


def test_without_leave_nothing_is_offered_that_writes():
    reading, writing = offered(writes=False), offered(writes=True)
    assert not any(tool.writes for tool in reading.tools.values())
    assert {tool.name for tool in TOOLS if tool.writes} == set(reading.withheld)
    assert set(writing.tools) == set(BY_NAME)
    assert "--allow-writes" in reading.withheld["new_apply"]
    assert "new_plan shows" in reading.withheld["new_apply"]


def test_a_preview_takes_nothing_that_only_writing_needs():
    writing, preview = ({each.name for each in arguments_of(BY_NAME[name])} for name in ("new_apply", "new_plan"))
    assert writing - preview == {"no_test", "test"}
    assert {"kind", "name", "answers", "rows", "from", "source", "like", "report", "analyze_only"} <= preview


def test_the_page_about_the_tools_names_all_of_them_and_no_others():
    rows = [line for line in (ROOT / "docs/mcp.md").read_text(encoding="utf-8").splitlines() if "| `areal-" in line]
    named = {name for row in rows for name in re.findall(r"`([a-z]+(?:_[a-z]+)*)`", row.rpartition("|")[0])}
    assert named == {*BY_NAME, "more"}
