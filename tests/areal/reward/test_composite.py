"""Weighted sums of real rewards."""

from __future__ import annotations

import math

import pytest

from areal.api import FaultError, FaultKind, RegistryError
from areal.reward.composite import weighted_sum

TEXT = "She has 72."


def short(prompt, completions, prompt_ids, completion_ids, **data):
    return len(completions) < 20


def undefined(prompt, completions, prompt_ids, completion_ids, **data):
    return math.nan


@pytest.fixture
def own(monkeypatch):
    """Paths of this file's rewards, as a user would write them."""
    import sys

    monkeypatch.setitem(sys.modules, "own_rewards", sys.modules[__name__])
    return "own_rewards"


@pytest.mark.parametrize(
    ("parts", "normalised", "expected"),
    [
        ({"gsm8k": 1.0}, False, 1.0),
        ({"gsm8k": 1.0, "exact": 0.5}, False, 1.0),
        ({"gsm8k": 1.0, "own_rewards:short": 0.5}, False, 1.5),
        ({"gsm8k": 1.0, "own_rewards:short": 1.0, "exact": 2.0}, True, 0.5),
        ({"gsm8k": 1.0, "own_rewards:short": -0.25}, False, 0.75),
        ({"gsm8k": 3.0, "own_rewards:short": -1.0}, True, 0.5),
    ],
)
def test_scores_add_up_by_weight(own, parts, normalised, expected):
    total = weighted_sum(parts, "q", TEXT, [1], [2], {"answer": "72"}, normalised=normalised)
    assert total == pytest.approx(expected)


def test_a_failing_part_fails_the_whole(own):
    with pytest.raises(ValueError, match="expected a text with a number"):
        weighted_sum({"own_rewards:short": 1.0, "gsm8k": 1.0}, "q", TEXT, [1], [2], {"answer": "none"})
    with pytest.raises(FaultError, match="part 'own_rewards:undefined' returned nan") as caught:
        weighted_sum({"gsm8k": 1.0, "own_rewards:undefined": 0.0}, "q", TEXT, [1], [2], {"answer": "72"})
    assert caught.value.kind is FaultKind.REWARD_INVALID
    with pytest.raises(RegistryError, match="unknown reward 'gsm9k'"):
        weighted_sum({"gsm9k": 1.0}, "q", TEXT, [1], [2], {"answer": "72"})
