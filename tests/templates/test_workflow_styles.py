"""Every style of `areal-new workflow`: gates, answers that are refused, and what a module holds."""

from __future__ import annotations

import ast
import re

import pytest
from styled_units import assert_fits_elsewhere, assert_passes_the_gates, generated, module_of
from workflow_units import FEEDBACK, UNITS

from tooling.cli.errors import UsageError

LONG = "a_rather_long_name_for_a_workflow_of_ours_as_long_as_allowed"


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", UNITS)
def test_every_style_passes_the_gates_and_is_the_same_each_time(name):
    assert_passes_the_gates("workflow", name, UNITS[name])


STYLES = [
    pytest.param(style, marks=pytest.mark.exhaustive)
    for style in ("single_turn", "multi_turn", "vision", "vision_tokens")
]


@pytest.mark.parametrize("style", ["tool_use", *STYLES])
def test_long_names_and_other_packages_pass_the_gates_too(style, tmp_path):
    for package in ("areal", "my_company.agents"):
        assert_fits_elsewhere("workflow", LONG, package, tmp_path, style=style)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("plain_answer", ["turns", "feedback", "tool", "image", "FaultKind"]),
        ("second_try", ["tool", "image"]),
        ("with_tools", ["turn_discount", "FEEDBACK", "image_tokenizer"]),
        ("with_images", ["turns", "feedback", "tools"]),
        ("with_pixels", ["turns", "feedback", "tools", "image_tokenizer"]),
    ],
)
def test_a_module_holds_nothing_of_other_styles(name, absent):
    module = module_of("workflow", name, UNITS[name])
    assert [word for word in absent if re.search(rf"\b{word}\b", module)] == []


def test_answers_are_data_whatever_they_hold():
    module = module_of("workflow", "odd_words", UNITS["odd_words"])
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse(module).body
        if isinstance(node, ast.Assign)
    }
    assert values == {"FEEDBACK": FEEDBACK}
    tools = module_of("workflow", "with_tools", {"style": "tool_use", "tools": "a.b:C, my_tools:SEARCH"})
    assert 'TOOLS = ("a.b:C", "my_tools:SEARCH")' in tools


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"style": "multi_turns"}, "multi_turn"),
        ({"style": "multi_turn", "max_turns": 1}, "use --style single_turn"),
        ({"style": "multi_turn", "max_turns": 101}, "expected 2 .. 100"),
        ({"style": "multi_turn", "turn_discount": 1.01}, "expected 0 .. 1"),
        ({"style": "multi_turn", "feedback": " \n"}, "without it the model would only continue"),
        ({"style": "multi_turn", "feedback": "a " * 200}, "at most 300 characters"),
        ({"style": "multi_turn", "feedback": "a" * 61}, "words of at most 60 characters"),
        ({"style": "tool_use", "max_calls": 0}, "expected 1 .. 100"),
        ({"style": "tool_use", "tools": "calculator"}, '"calculator" is not "module:object"'),
        ({"style": "tool_use", "tools": "a.b:C,"}, '"" is not "module:object"'),
        ({"style": "tool_use", "tools": "a..b:C"}, '"a..b:C" is not "module:object"'),
        ({"style": "tool_use", "tools": 'a:C",__import__("os").abort(),"'}, 'is not "module:object"'),
        ({"style": "vision_tokens", "image_tokenizer": "a-b:C"}, 'expected "module:object"'),
        ({"style": "vision_tokens", "image_tokenizer": 'a:C"\nimport os'}, 'expected "module:object"'),
    ],
)
def test_answers_that_make_no_sense_are_refused(answers, message):
    with pytest.raises(UsageError) as caught:
        generated("workflow", "refused", **answers)
    assert message in str(caught.value)
