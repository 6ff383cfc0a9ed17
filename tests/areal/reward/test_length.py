"""Lengths against what is wanted: each shape at its corners, against the published formulas."""

from __future__ import annotations

import math

import pytest

from areal.api import ConfigError, FaultError, FaultKind
from areal.reward.length import LengthReward


def score(length, *, text="", data=None, **options):
    return LengthReward(**options)("", text, [], [7] * length, **(data or {}))


@pytest.mark.parametrize(("length", "value"), [(100, 1.0), (50, 0.5), (150, 0.5), (0, 0.0), (250, 0.0)])
def test_target_falls_linearly_on_both_sides(length, value):
    assert score(length, shape="target", target=100) == pytest.approx(value)


def test_the_rows_target_goes_before_the_option():
    assert score(10, shape="target", target=100, data={"target_length": 10}) == 1.0
    assert score(10, shape="target", data={"target_length": 20}) == 0.5
    for data in ({}, {"target_length": -1}, {"target_length": "10"}):
        with pytest.raises(FaultError, match="target_length") as caught:
            score(10, shape="target", data=data)
        assert caught.value.kind is FaultKind.DATA_INVALID


@pytest.mark.parametrize(("length", "value"), [(0, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (101, -1.0), (999, -1.0)])
def test_linear_is_the_overlong_punishment_of_dapo(length, value):
    assert score(length, shape="linear", max_length=100, buffer=20) == pytest.approx(value)


@pytest.mark.parametrize(
    ("length", "right", "wrong"), [(0, 2.0, -10.0), (50, 1.5, -5.0), (25, None, None), (100, -9, -9)]
)
def test_cosine_pays_short_right_answers_and_long_wrong_ones(length, right, wrong):
    options = {"shape": "cosine", "max_length": 100, "correct_by": "exact", "exceeded": -9}
    if right is None:
        right = 1 + (2 - 1) / 2 * (1 + math.cos(math.pi / 4))
        wrong = 0 + (-10 - 0) / 2 * (1 + math.cos(math.pi / 4))
    assert score(length, text="42", data={"answer": "42"}, **options) == pytest.approx(right)
    assert score(length, text="41", data={"answer": "42"}, **options) == pytest.approx(wrong)
    with pytest.raises(ValueError, match="no answer"):
        score(length, text="42", **options)


def test_cosine_without_a_judge_takes_every_answer_as_right():
    assert score(0, shape="cosine", max_length=10, correct=[1, 0]) == 1.0


def test_units():
    options = {"shape": "target", "target": 4, "text": "four words of text"}
    assert [score(2, unit=unit, **options) for unit in ("words", "tokens", "characters")] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shape": "round"}, "shape is 'round'"),
        ({"shape": "target", "unit": "lines"}, "unit 'lines'"),
        ({"shape": "target", "target": -1}, "target is -1"),
        ({"shape": "cosine"}, "max_length is 0"),
        ({"shape": "linear", "max_length": 10}, "buffer is 0"),
        ({"shape": "linear", "max_length": 10, "buffer": 11}, "buffer is 11"),
        ({"shape": "cosine", "max_length": 10, "wrong": [1]}, "pairs"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        LengthReward(**options)
