"""Worked and hostile examples of geometry3k_reward."""

from __future__ import annotations

import asyncio
import time

import pytest

from areal.api import FaultError, FaultKind
from areal.reward import AsyncRewardWrapper
from areal.reward.geometry3k import geometry3k_reward


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 1/2", "0.5", 0.0),
        (r"\boxed{2\sqrt{221}}", r"2 \sqrt { 221 }", 1.0),
        (r"\boxed{221}", r"2 \sqrt { 221 }", 0.0),
        (r"\boxed{29.73}", r"2 \sqrt { 221 }", 0.0),
        (r"\boxed{45^\circ}", "45", 1.0),
        (r"\boxed{45}", r"45 ^ { \circ }", 1.0),
        (r"\boxed{45\degree}", "45", 1.0),
        (r"\boxed{12 \text{ cm}}", "12", 1.0),
        (r"\boxed{12 \text{ cm}^2}", "13", 0.0),
        (r"\boxed{6\pi}", r"6 \pi", 1.0),
        (r"\boxed{C}", "C", 1.0),
        (r"\boxed{B}", "C", 0.0),
        (r"\boxed{C}", "45", 0.0),
        (r"\boxed{72}", r"\boxed{72}", 1.0),
        (r"\boxed{3.0}", "3", 1.0),
        (r"\boxed{" + "1" * 2000 + "}", "1", 0.0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
        (r"\boxed{\{1, 2\}}", r"\{2, 1\}", 1.0),
        (r"\boxed{1,080}", 1080, 1.0),
        (r"\boxed{71}, no, \boxed{72}", "72", 1.0),
        (r"\boxed{72}, no, \boxed{71}", "72", 0.0),
        (r"\boxed{0.4}", "0.5", 0.0),
        (r"\boxed{}", "72", 0.0),
        (r"72 \boxed{", "72", 0.0),
        ("", "72", 0.0),
        (" \n", "72", 0.0),
        ("nan", "72", 0.0),
        (r"\boxed{1/0}", "72", 0.0),
    ],
)
def test_mathematical_equality_decides(completion, answer, expected):
    assert geometry3k_reward("question", completion, [1], [2], answer=answer, source="a book") == expected


@pytest.mark.parametrize("row", [{}, {"answer": ""}, {"answer": None}, {"answer": "}{"}])
def test_a_row_without_mathematics_raises_instead_of_scoring(row):
    with pytest.raises(ValueError, match="expected something that parses"):
        geometry3k_reward("question", r"\boxed{72}", [1], [2], **row)


@pytest.mark.parametrize("text", [r"\boxed{9^{9^{9}}}", r"\boxed{99999999!}", "(" * 5_000, "1" * 20_000])
def test_explosive_text_scores_zero_quickly(text):
    geometry3k_reward("question", "1", [1], [2], answer="1")  # the first call imports the library
    started = time.process_time()
    assert geometry3k_reward("question", text, [1], [2], answer="72") == 0.0
    assert time.process_time() - started < 10


def test_it_runs_in_a_worker_process():
    async def outcomes():
        reward = AsyncRewardWrapper("areal.reward.geometry3k:geometry3k_reward", timeout_seconds=60)
        try:
            right = await reward("question", r"\boxed{72}", [1], [2], answer="72")
            wrong = await reward("question", r"\boxed{71}", [1], [2], answer="72")
            with pytest.raises(FaultError) as caught:
                await reward("question", r"\boxed{72}", [1], [2], answer="")
            return right, wrong, caught.value.kind
        finally:
            reward.close()

    assert asyncio.run(outcomes()) == (1.0, 0.0, FaultKind.REWARD_RAISED)
