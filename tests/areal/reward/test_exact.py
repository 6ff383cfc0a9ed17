"""Worked examples of the exact reward."""

from __future__ import annotations

import pytest

from areal.reward.exact import exact_reward


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("72", "72", 1.0),
        ("72", 72, 1.0),
        (" 72", "72", 0.0),
        ("72 ", "72", 0.0),
        ("072", "72", 0.0),
        ("72<eos>", "72", 0.0),
        ("72<pad>", "72", 0.0),
        ("", "72", 0.0),
        ("7\u200b2", "72", 0.0),
        ("\uff17\uff12", "72", 0.0),
    ],
)
def test_only_the_very_text_scores(completion, answer, score):
    assert exact_reward("8*9=", completion, [1], [2], answer=answer, expression="8*9") == score


@pytest.mark.parametrize("row", [{}, {"answer": ""}, {"answer": None}])
def test_a_row_without_answer_raises_instead_of_scoring(row):
    with pytest.raises(ValueError, match="no answer to compare with"):
        exact_reward("8*9=", "", [1], [2], **row)
