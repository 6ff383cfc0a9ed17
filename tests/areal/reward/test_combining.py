"""Weights and normalisation of reward components against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from areal.api import Provenance, StopReason, Trajectory, UsageError
from areal.reward.combining import standardised, with_normalised_rewards
from areal.reward.components import resolve_components, weighted_sum


def trajectory(group, reward, sample=0, **components):
    return Trajectory(
        tokens=[5, 11], loss_mask=[0, 1], logprobs=[0.0, -0.5], versions=[-1, 0], turn_ids=[-1, 0], reward=reward,
        stop_reason=StopReason.STOP, group_id=group, sample_index=sample, reward_components=components,
        provenance=Provenance(workflow="rlvr"),
    )  # fmt: skip


def batch(groups, columns, weights):
    """Trajectories whose rewards are the weighted sums of the columns."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    totals = [sum(weights[name] * value for name, value in row.items()) for row in rows]
    return [trajectory(g, t, i, **row) for i, (g, t, row) in enumerate(zip(groups, totals, rows, strict=True))]


def rewards(weights, normalize):
    return resolve_components({name: {"weight": w, "normalize": normalize[name]} for name, w in weights.items()})


@pytest.mark.parametrize("how", ["group", "batch"])
def test_each_component_is_normalised_before_it_is_weighted(how):
    random = np.random.default_rng(3)
    groups = [0, 0, 0, 0, 7, 7, 7, 2, 2]  # unequal sizes: samples were lost
    columns = {"right": random.integers(0, 2, 9).astype(float).tolist(), "length": random.normal(300, 80, 9).tolist()}
    columns["right"][:2] = [0.0, 1.0]
    weights = {"right": 1.0, "length": -0.25}
    found = with_normalised_rewards(rewards(weights, {"right": how, "length": how}), batch(groups, columns, weights))

    expected = np.zeros(9)
    for name, weight in weights.items():
        values = np.array(columns[name])
        for group in {how} if how == "batch" else set(groups):
            members = np.array([how == "batch" or g == group for g in groups])
            own = values[members]
            if own.std() > 0:
                expected[members] += weight * (own - own.mean()) / own.std(ddof=1)
    np.testing.assert_allclose([item.reward for item in found], expected, rtol=0, atol=1e-12)
    # What the samples were given stays on record.
    assert [dict(item.reward_components) for item in found] == [
        {"right": r, "length": n} for r, n in zip(*columns.values(), strict=True)
    ]


def test_combinations_with_equal_sums_stay_different():
    """GDPO's point: 0 + 1 and 1 + 0 of a frequent and a rare reward are not the same."""
    columns = {"often": [1.0, 1.0, 1.0, 0.0], "rare": [0.0, 0.0, 0.0, 1.0]}
    weights = {"often": 1.0, "rare": 1.0}
    raw = batch([0] * 4, columns, weights)
    assert {item.reward for item in raw} == {1.0}
    half = with_normalised_rewards(rewards(weights, {"often": "group", "rare": "none"}), raw)
    assert [item.reward for item in half] == pytest.approx([0.5, 0.5, 0.5, -0.5])


def test_one_component_may_be_normalised_and_another_not():
    columns, weights = {"a": [0.0, 10.0], "b": [0.25, 0.5]}, {"a": 2.0, "b": 4.0}
    found = with_normalised_rewards(rewards(weights, {"a": "group", "b": "none"}), batch([1, 1], columns, weights))
    step = 1 / np.sqrt(2)  # of two values, (x - mean) / std(ddof=1)
    assert [item.reward for item in found] == pytest.approx([-2 * step + 1.0, 2 * step + 2.0])


def test_values_without_others_to_differ_from_become_zero():
    assert standardised([3.0, 1.0, 1.0, 1.0, 0.1 + 0.2], [0, 1, 1, 1, 2]) == [0.0] * 5
    assert standardised([], []) == []
    third = 0.1
    assert standardised([third] * 3, ["a"] * 3) == [0.0] * 3  # the mean of 0.1 three times need not be 0.1


def test_without_normalisation_nothing_is_touched():
    items = [trajectory(0, 0.5, right=1.0), trajectory(0, 0.9)]  # as of a workflow that discounts
    assert with_normalised_rewards(resolve_components("right:right"), items) is items


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            trajectory(4, 0.45, 2, right=0.5),
            "2 of prompt 4 has the reward 0.45, and its components add up to 0.5",
        ),
        (trajectory(4, 0.0, 2), "has no value of right"),
    ],
)
def test_a_score_that_the_workflow_changed_cannot_be_normalised(item, message):
    with pytest.raises(UsageError, match="normalize needs samples whose reward is the weighted sum") as caught:
        with_normalised_rewards(rewards({"right": 1.0}, {"right": "group"}), [item])
    assert message in str(caught.value)
    assert "rlvr changes the score" in str(caught.value)
    assert "normalize: none" in caught.value.fix


def test_the_score_is_the_weighted_sum():
    components = resolve_components({"a": 1.0, "b": -0.25, "c": 0.0})
    assert weighted_sum(components, {"a": 1.0, "b": 2.0, "c": 99.0}) == 0.5
