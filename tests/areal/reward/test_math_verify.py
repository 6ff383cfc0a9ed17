"""Worked examples of the math-verify reward; what would hang the library scores 0 without being evaluated."""

from __future__ import annotations

import threading
import time

import pytest

from areal.reward.math_verify import math_verify_reward


def score(completion, answer):
    return math_verify_reward("question", completion, [1], [2], answer=answer)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 1/2", "0.5", 1.0),
        (r"\boxed{\frac{1}{3}}", r"\frac{2}{6}", 1.0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
        (r"\boxed{\{1, 2\}}", r"\{2, 1\}", 1.0),
        (r"\boxed{1,080}", "1080", 1.0),
        (r"\boxed{71} no, \boxed{72}", "72", 1.0),
        (r"\boxed{72} no, \boxed{71}", "72", 0.0),
        ("The answer is 73", "72", 0.0),
        (r"\boxed{}", "72", 0.0),
        (r"72 \boxed{", "72", 0.0),
        ("", "72", 0.0),
        ("no number", "72", 0.0),
        (r"\boxed{1/0}", "72", 0.0),
        ("nan", "72", 0.0),
        ("1" * 20_000, "72", 0.0),
        ("(" * 5_000, "72", 0.0),
        (r"\boxed{" + "{" * 5_000 + "}" * 5_000 + "}", "72", 0.0),
        (r"10^{100000000} aside, \boxed{72}", "72", 1.0),
    ],
)
def test_mathematical_equality_decides(completion, answer, expected):
    assert score(completion, answer) == expected


@pytest.mark.parametrize(
    "completion",
    [
        "$9^{9^{9}}$",
        r"\boxed{9^{9^9}}",
        "9**9**9",
        "10^100000000",
        r"\boxed{10^{-99999999}}",
        r"\boxed{99999999!}",
        r"\boxed{9!!!!!!}",
        r"$\sum_{i=1}^{99999999} i^{0.5}$",
        r"$\binom{99999999}{4444444}$",
    ],
)
def test_explosive_answers_score_zero_quickly(completion):
    score("1", "1")  # the first call imports the library
    started = time.process_time()
    assert score(completion, "72") == 0.0
    assert time.process_time() - started < 10


def test_it_works_outside_the_main_thread():
    scores = []
    thread = threading.Thread(target=lambda: scores.append(score(r"\boxed{72}", "72")))
    thread.start()
    thread.join()
    assert scores == [1.0]


@pytest.mark.parametrize("row", [{}, {"answer": ""}, {"answer": None}, {"answer": "}{"}])
def test_a_row_without_mathematics_raises_instead_of_scoring(row):
    with pytest.raises(ValueError, match="expected something that parses"):
        math_verify_reward("q", "72", [1], [2], **row)
