"""Tool calls are read strictly: one call in the format, or an error that tells the model what to change."""

from __future__ import annotations

import json

import pytest

from areal.api import ConfigError
from areal.workflow.tool_calls import ToolCall, ToolError, check_arguments, check_parameters, read_call

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "exact": {"type": "boolean"},
        "factor": {"type": "number"},
        "extra": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}


def call(body):
    return f"Let me see.\n<tool_call>\n{body}\n</tool_call>"


def test_a_call_is_read():
    assert read_call(call('{"name": "weather", "arguments": {"city": "Köln", "days": 2}}')) == ToolCall(
        "weather", {"city": "Köln", "days": 2}
    )


def test_what_follows_the_call_does_not_matter():
    assert read_call('<tool_call>{"name": "a", "arguments": {}}</tool_call>\n').name == "a"


@pytest.mark.parametrize("text", ["", "The answer is 72.", '{"name": "a", "arguments": {}}', "<tool>a</tool>"])
def test_text_without_a_call_is_an_answer(text):
    assert read_call(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}', "not closed"),
        ('{"name": "a", "arguments": {}}</tool_call>', "without <tool_call> before it"),
        ('</tool_call><tool_call>{"name": "a", "arguments": {}}</tool_call>', "without <tool_call> before it"),
        (call('{"name": "a", "arguments": {}}') * 2, "one call at a time"),
        (call("calculator(8*9)"), "not valid JSON: Expecting value"),
        (call("{'name': 'a', 'arguments': {}}"), "not valid JSON"),
        (call('{"name": "a", "arguments": {"x": NaN}}'), "not valid JSON: NaN"),
        (call('{"name": "a", "arguments": {"x": -Infinity}}'), "not valid JSON: -Infinity"),
        (call('{"name": "a", "name": "b", "arguments": {}}'), "a key twice"),
        (call('{"name": "a", "arguments": {"x": {"y": 1, "y": 2}}}'), "a key twice"),
        (call('{"name": "a"}'), 'exactly "name" and "arguments"'),
        (call('{"name": "a", "arguments": {}, "id": 1}'), 'exactly "name" and "arguments"'),
        (call('["a", {}]'), 'exactly "name" and "arguments"'),
        (call('{"name": 1, "arguments": {}}'), '"name" must be a string'),
        (call('{"name": "a", "arguments": "{}"}'), '"arguments" an object'),
        (call("[" * 9000), "not valid JSON"),
        (call('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}"), "not valid JSON"),
        (call(" " * 30_000), "at most 20000 are allowed"),
    ],
)
def test_anything_else_is_an_error_for_the_model(text, message):
    with pytest.raises(ToolError, match=message):
        read_call(text)


def test_arguments_that_fit_pass():
    good = {"city": "Köln", "days": 2, "unit": "C", "exact": True, "factor": 1, "extra": ["a"]}
    assert check_arguments(SCHEMA, good) is None
    assert check_arguments(SCHEMA, {"city": ""}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": 5}, "'city' must be of type string"),
        ({"days": "2"}, "'days' must be of type integer"),
        ({"days": 2.0}, "'days' must be of type integer"),
        ({"days": True}, "'days' must be of type integer"),
        ({"factor": False}, "'factor' must be of type number"),
        ({"exact": 1}, "'exact' must be of type boolean"),
        ({"extra": "a"}, "'extra' must be of type array"),
        ({"unit": "K"}, r"'unit' must be one of \[\"C\", \"F\"\]"),
        ({"ctiy": "Bonn"}, "unknown argument 'ctiy'; there are city, days"),
        ({"city": None}, "'city' must be of type string"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ToolError, match=message):
        check_arguments(SCHEMA, {"city": "Köln"} | changes)
    with pytest.raises(ToolError, match="'city' is missing"):
        check_arguments(SCHEMA, {name: value for name, value in changes.items() if name != "city"})


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "array"},
        {"additionalProperties": True},
        {"oneOf": []},
        {"required": ["town"]},
        {"properties": {"city": {"type": "string", "pattern": "a"}}},
        {"properties": {"city": {}}},
        {"properties": {"city": {"type": ["string", "null"]}}},
    ],
)
def test_schemas_that_would_not_be_enforced_are_refused(changes):
    assert check_parameters("weather", json.loads(json.dumps(SCHEMA))) is None
    with pytest.raises(ConfigError, match="tool 'weather'"):
        check_parameters("weather", SCHEMA | changes)
