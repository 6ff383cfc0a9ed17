"""The form of completions: tags in order, exactly once, and regular expressions."""

from __future__ import annotations

import pytest

from areal.api import ConfigError
from areal.reward.format import FormatReward

RIGHT = "<think>6*7</think> <answer>42</answer>"


def score(completion, **options):
    return FormatReward(**options)("", completion, [], [], answer="42")


@pytest.mark.parametrize(
    ("completion", "all_tags", "fraction"),
    [
        (RIGHT, 1.0, 1.0),
        (f"\nWell: {RIGHT}\n", 1.0, 1.0),
        ("<answer>42</answer> <think>6*7</think>", 0.0, 0.5),
        ("<think>6*7</think> <answer>42</answer> <answer>43</answer>", 0.0, 0.5),
        ("<think>6*7 <answer>42</answer></think>", 0.0, 0.5),
        ("<think> </think> <answer>42</answer>", 0.0, 0.5),
        ("</think>x<think> <answer>42</answer>", 0.0, 0.5),
        ("<think>6*7</think> <answer>42", 0.0, 0.5),
        ("42", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("<think>" * 10**5, 0.0, 0.0),
    ],
)
def test_tags_stand_once_in_order_with_something_inside(completion, all_tags, fraction):
    assert score(completion, tags=["think", "answer"]) == all_tags
    assert score(completion, tags=["think", "answer"], scoring="fraction") == fraction


def test_nothing_else_and_an_opened_first_tag():
    assert score(RIGHT, tags=["think", "answer"], nothing_else=True) == 1.0
    assert score(f"Well: {RIGHT}", tags=["think", "answer"], nothing_else=True) == 0.0
    assert score(f"{RIGHT} Done.", tags=["think", "answer"], nothing_else=True) == 0.0
    opened = RIGHT.removeprefix("<think>")
    assert score(opened, tags=["think", "answer"], opened=True, nothing_else=True) == 1.0
    assert score(opened, tags=["think", "answer"]) == 0.0
    assert score(RIGHT, tags=["think", "answer"], opened=True) == 0.0


@pytest.mark.parametrize(
    ("completion", "value"),
    [("a\nb\nANSWER: 42", 1.0), (" ANSWER: 42\n", 1.0), ("ANSWER: x", 0.0), ("ANSWER: 4 2", 0.0)],
)
def test_a_pattern_covers_the_whole_text(completion, value):
    assert score(completion, pattern=r"(?:.*\n)?ANSWER: \d+") == value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "expected one of them"),
        ({"tags": ["a"], "pattern": "a"}, "expected one of them"),
        ({"tags": ["<a>"]}, "without brackets"),
        ({"tags": ["a", "a"]}, "different names"),
        ({"tags": ["a"], "scoring": "some"}, "scoring is 'some'"),
        ({"pattern": "("}, "not a regular expression"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        FormatReward(**options)
