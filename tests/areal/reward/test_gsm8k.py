"""Worked examples of the GSM8K reward, hostile ones included."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from areal.reward.gsm8k import gsm8k_reward

WHOLE = Path(__file__).parents[4] / "shared" / "data" / "gsm8k" / "test.jsonl"


def score(completion, answer, **options):
    return gsm8k_reward("question", completion, [1], [2], answer=answer, **options)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"... so \boxed{72}.", "72", 1.0),
        (r"\boxed{71} no, \boxed{72}", "72", 1.0),
        (r"\boxed{72} no, \boxed{71}", "72", 0.0),
        (r"\boxed{\text{72 clips}}", "72", 1.0),
        (r"\boxed{$1,080}", "1080", 1.0),
        (r"\boxed{1{,}080}", "1,080", 1.0),
        (r"72 \boxed{", "72", 0.0),
        (r"72 \boxed{}", "72", 0.0),
        ("She sold 72.\n#### 72", "72", 1.0),
        ("#### 71\n#### 72 dollars", "72", 1.0),
        ("72 ####", "72", 0.0),
        ("#### $72.00", "72", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("The answer is 72 clips, sold in May", "72", 1.0),
        ("72 then 48", "72", 0.0),
        ("0.50", ".5", 1.0),
        ("50%", "50", 1.0),
        ("-5", "-5", 1.0),
        ("-$5", "-5", 1.0),
        ("\N{MINUS SIGN}5", "-5", 1.0),
        ("it is 12-5", "5", 1.0),
        ("1,080", "#### 1,080", 1.0),
        ("1,08", "108", 0.0),
        ("109,200,000", "109200000", 1.0),
        ("no number here", "72", 0.0),
        ("", "72", 0.0),
        ("1/2", "0.5", 0.0),
        ("1e2", "100", 0.0),
        ("nan", "72", 0.0),
        ("inf", "72", 0.0),
        ("\uff17\uff12", "72", 0.0),
        ("\u0667\u0662", "72", 0.0),
        ("7" * 100_000, "72", 0.0),
        (r"\boxed{" * 2000 + "72", "72", 0.0),
    ],
)
def test_the_final_number_decides(completion, answer, expected):
    assert score(completion, answer) == expected


def test_strict_scores_only_marked_answers():
    assert score("The answer is 72", "72", strict=True) == 0.0
    assert score("#### 72", "72", strict=True) == 1.0
    assert score(r"\boxed{72}", "72", strict=True) == 1.0


@pytest.mark.parametrize("row", [{}, {"answer": ""}, {"answer": "none"}, {"answer": None}])
def test_a_row_without_number_raises_instead_of_scoring(row):
    with pytest.raises(ValueError, match="expected a text with a number"):
        gsm8k_reward("q", "72", [1], [2], **row)


@pytest.mark.parametrize("text", ["1," * 200_000, "-" * 400_000, "####" * 100_000, r"\boxed{" * 100_000, "{" * 400_000])
def test_long_hostile_text_costs_little_time(text):
    started = time.process_time()
    assert score(text, "72") == 0.0
    assert time.process_time() - started < 10


@pytest.mark.skipif(not WHOLE.is_file(), reason="the whole GSM8K is not beside the repository")
def test_real_solutions_score_one_and_others_solutions_rarely():
    solutions = [json.loads(line)["answer"] for line in WHOLE.read_text(encoding="utf-8").splitlines()]
    answers = [solution.rpartition("#### ")[2] for solution in solutions]
    assert all(score(s, a) == 1.0 for s, a in zip(solutions, answers, strict=True))
    shifted = [score(s, a) for s, a in zip(solutions, answers[1:] + answers[:1], strict=True)]
    assert sum(shifted) < 0.05 * len(shifted)
