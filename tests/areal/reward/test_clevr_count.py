"""Worked and hostile examples of clevr_count_reward."""

from __future__ import annotations

import asyncio
import time

import pytest

from areal.api import FaultError, FaultKind
from areal.reward import AsyncRewardWrapper
from areal.reward.clevr_count import clevr_count_reward

RIGHT = "there are [3]"
ANSWER = "3"


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("there are [3]", "3", 1.0),
        ("Let me think.\nthere are [3]", "3", 1.0),
        ("there are [3]\n", "3", 1.0),
        ("there are [4]\nthere are [3]", "3", 1.0),
        ("there are [3]\nthere are [4]", "3", 0.0),
        ("there are [3]", "4", 0.0),
        ("there are [4]", "3", 0.0),
        ("3", "3", 0.0),
        ("[03]", "3", 1.0),
        ("[3.0]", "3", 1.0),
        ("[ 3 ]", "[3]", 1.0),
        ("[3.5]", "3", 0.0),
        ("[-3]", "3", 0.0),
        ("[1][2][3]", "3", 1.0),
        ("[3][2][1]", "3", 0.0),
        ("[3, 4]", "3", 0.0),
        ("[three]", "3", 0.0),
        ("[[3]]", "3", 1.0),
        ("[]", "3", 0.0),
        ("[3", "3", 0.0),
        ("I do not know.", "3", 0.0),
        ("", "3", 0.0),
        (" \t\n", "3", 0.0),
        ("there are [\uff13]", "3", 0.0),
        ("there are [3]\n" + "-" * 5000, "3", 0.0),
    ],
)
def test_the_last_match_decides(completion, answer, expected):
    assert clevr_count_reward("question", completion, [1], [2], answer=answer, source="a book") == expected


def test_strict_wants_exactly_one_number():
    assert clevr_count_reward("question", "[1][2][3]", [1], [2], answer="3", strict=True) == 0.0
    assert clevr_count_reward("question", "it is [3]", [1], [2], answer="3", strict=True) == 1.0


@pytest.mark.parametrize(
    "row", [{"answer": "many"}, {"answer": "3.5"}, {}, {"answer": ""}, {"answer": " \n"}, {"answer": None}]
)
def test_a_row_without_answer_raises_instead_of_scoring(row):
    with pytest.raises(ValueError, match=r"answer is .*, expected a text"):
        clevr_count_reward("question", RIGHT, [1], [2], **row)


@pytest.mark.parametrize("text", ["a" * 200_000, " " * 200_000, "7" * 200_000, "(" * 200_000, RIGHT[:-1] * 20_000])
def test_long_hostile_text_costs_little_time(text):
    started = time.process_time()
    score = clevr_count_reward("question", text, [1], [2], answer=ANSWER)
    assert score in {0.0, 1.0}
    assert time.process_time() - started < 10


def test_it_runs_in_a_worker_process():
    async def outcomes():
        reward = AsyncRewardWrapper("areal.reward.clevr_count:clevr_count_reward", timeout_seconds=60)
        try:
            right = await reward("question", RIGHT, [1], [2], answer=ANSWER)
            wrong = await reward("question", "", [1], [2], answer=ANSWER)
            with pytest.raises(FaultError) as caught:
                await reward("question", RIGHT, [1], [2], answer="")
            return right, wrong, caught.value.kind
        finally:
            reward.close()

    assert asyncio.run(outcomes()) == (1.0, 0.0, FaultKind.REWARD_RAISED)
