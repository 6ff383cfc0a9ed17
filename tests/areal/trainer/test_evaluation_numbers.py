"""Numbers of evaluations against counting by hand: pass@k, majority vote, intervals, comparisons, answers."""

from __future__ import annotations

import math
from itertools import combinations, product
from random import Random

import pytest

from areal.api import RegistryError
from areal.trainer.evaluation.answers import answer_rule, majority_at_k
from areal.trainer.evaluation.samples import EvalSample, SetResult, pass_at_k
from areal.trainer.evaluation.statistics import compare, estimate
from areal.trainer.evaluation_config import EvalSetConfig, metrics_of, sizes


@pytest.mark.parametrize("passed", range(6))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_the_share_of_draws_with_a_passing_sample(passed, k):
    rewards = [1] * passed + [0] * (5 - passed)
    draws = list(combinations(rewards, k))
    assert pass_at_k(5, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="pass@4 of 1 passed in 3 samples"):
        pass_at_k(3, 1, 4)


def vote_by_hand(answers, rewards, draw):
    """Expected reward of the winner among the samples `draw`, ties shared."""
    counts = {answer: sum(answers[i] == answer for i in draw) for answer in {answers[i] for i in draw} - {None}}
    means = {
        answer: sum(r for a, r in zip(answers, rewards, strict=True) if a == answer) / answers.count(answer)
        for answer in set(answers)
    }
    if not counts:
        return means[None]
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    return sum(means[answer] for answer in winners) / len(winners)


@pytest.mark.parametrize("seed", range(12))
def test_majority_at_k_is_the_mean_over_all_draws(seed):
    random = Random(seed)
    answers = [random.choice(["a", "b", "c", "d", None]) for _ in range(7)]
    rewards = [random.choice([0.0, 0.5, 1.0]) for _ in answers]
    for k in (1, 3, 4, 7):
        draws = list(combinations(range(7), k))
        expected = sum(vote_by_hand(answers, rewards, draw) for draw in draws) / len(draws)
        assert majority_at_k(answers, rewards, k) == pytest.approx(expected)


def test_a_majority_beats_the_mean_and_ties_are_shared():
    assert majority_at_k(["7", "7", "8"], [1.0, 1.0, 0.0], 3) == 1.0
    assert majority_at_k(["7", "8"], [1.0, 0.0], 2) == 0.5
    assert majority_at_k([None, None, "7"], [0.0, 0.0, 1.0], 3) == 1.0, "who gives no answer abstains"


def test_many_samples_are_still_counted_exactly():
    answers = [str(min(index, 9)) for index in range(64)]
    rewards = [float(answer == "9") for answer in answers]
    assert majority_at_k(answers, rewards, 64) == 1.0
    assert 0.9 < majority_at_k(answers, rewards, 4) < 1.0


def test_an_interval_covers_the_truth_as_often_as_it_says():
    random = Random(0)
    covered = 0
    for seed in range(60):
        found = estimate([float(random.random() < 0.3) for _ in range(60)], seed=seed)
        covered += found.low <= 0.3 <= found.high
    assert covered >= 51, "95 % of 60 are 57"
    again = [estimate([0.0, 1.0, 1.0, math.nan], seed=5) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].rows == 3


def test_one_row_has_no_interval_and_none_no_mean():
    assert math.isnan(estimate([1.0], seed=0).low)
    assert math.isnan(estimate([math.nan], seed=0).mean)


def test_few_rows_are_permuted_exactly():
    first, second = [0.0] * 6, [1.0, 0.5, 1.0, -0.25, 0.0, 1.0]
    signs = list(product((1, -1), repeat=6))
    sums = [abs(sum(s * d for s, d in zip(sign, second, strict=True))) for sign in signs]
    expected = sum(value >= 3.25 - 1e-9 for value in sums) / len(signs)
    found = compare(first, second, seed=0)
    assert found.p_permutation == pytest.approx(expected)
    assert (found.better, found.worse, found.rows) == (4, 1, 6)
    assert found.p_sign == pytest.approx(2 * (1 + 5) / 32)


def test_random_permutations_agree_with_the_sign_test_where_every_change_is_equal():
    first = [0.0] * 30 + [1.0] * 12 + [0.5] * 40
    second = [1.0] * 30 + [0.0] * 12 + [0.5] * 40
    found = compare(first, second, seed=3)
    assert found.p_permutation == pytest.approx(found.p_sign, abs=0.004)
    assert found.difference == pytest.approx(18 / 82)
    assert found.low < found.difference < found.high
    assert compare(first, first, seed=3).p_permutation == 1.0


def test_rows_that_only_one_side_has_are_left_out():
    found = compare([math.nan, 0.0, 1.0], [1.0, 1.0, 1.0], seed=0)
    assert (found.rows, found.difference) == (2, 0.5)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare([math.nan], [1.0], seed=0)


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("auto", r"so \boxed{1,080}.", "1080"),
        ("auto", "work\n#### $72.00", "72"),
        ("auto", "She has 72 clips.", "72"),
        ("auto", "Paris", "Paris"),
        ("auto", "  ", None),
        ("auto", r"\boxed{x + 1}", "x+1"),
        ("auto", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", "72", None),
        ("number", "no digits", None),
        ("number", "-0.50", "-0.5"),
        ("text", " a b ", "a b"),
        ("string:capwords", "a b", "A B"),
    ],
)
def test_answers_are_found_and_numbers_written_alike(rule, text, expected):
    assert answer_rule(rule)(text) == expected


def test_an_unknown_rule_is_refused_with_the_nearest():
    with pytest.raises(RegistryError, match="did you mean 'boxed'"):
        answer_rule("boxd")


def test_a_result_has_the_metrics_that_its_configuration_promises():
    row = tuple(
        EvalSample(row=0, sample=index, seed=index, reward=float(index < 2), answer=str(index < 2), length=3)
        for index in range(6)
    )
    lost = tuple(EvalSample(row=1, sample=index, seed=index, reward=None, fault="rejected") for index in range(6))
    result = SetResult(name="test", k=6, pass_reward=1.0, rows=(row, lost))
    assert sizes(6) == (1, 2, 4, 6)
    assert set(result.values) == set(metrics_of(EvalSetConfig(samples=6)))
    metrics = result.metrics()
    assert metrics["eval/test/rows"] == 1
    assert metrics["eval/test/faults"] == 6
    assert metrics["eval/test/avg@6"] == pytest.approx(1 / 3), "a lost sample is no score of 0"
    assert metrics["eval/test/pass@6"] == 1.0
    assert metrics["eval/test/maj@6"] == 0.0
