"""Metrics of reward components and recorded numbers, and the warning about rewards that say nothing."""

from __future__ import annotations

import logging

import pytest

from areal.api import RewardUse, StopReason, Trajectory
from areal.infra.metrics import names
from areal.infra.metrics.live_view import format_step
from areal.infra.metrics.samples import (
    VarianceWatch,
    component_means,
    recorded_metrics,
    reward_metrics,
    sample_metrics,
    use_metrics,
)


def trajectory(group, sample, reward=0.0, *, components=(), stats=()):
    return Trajectory(
        tokens=[5, 11], loss_mask=[0, 1], logprobs=[0.0, -0.5], versions=[-1, 0], turn_ids=[-1, 0], reward=reward,
        stop_reason=StopReason.STOP, group_id=group, sample_index=sample, reward_components=dict(components),
        stats=dict(stats),
    )  # fmt: skip


def test_denominators_are_the_samples_that_have_a_value():
    batch = [
        trajectory(0, 0, components={"right": 1.0, "short": 0.5}, stats={"calls": 3.0}),
        trajectory(0, 1, components={"right": 0.0}),
        trajectory(1, 0, components={"right": 1.0}, stats={"calls": 5.0}),
        # One episode that branched: two trajectories, one sample.
        trajectory(1, 0, components={"right": 0.0}, stats={"calls": 5.0}),
    ]
    assert sample_metrics(batch) == {
        "reward/right/mean": 0.5, "reward/right/std": 0.5, "reward/short/mean": 0.5, "reward/short/std": 0.0,
        "stats/calls": 4.0, "stats/calls/count": 2.0, "stats/calls/min": 3.0, "stats/calls/max": 5.0,
    }  # fmt: skip
    assert sample_metrics([]) == {}


def test_seconds_are_those_of_a_call_and_failures_are_counted():
    uses = {"judge": RewardUse(calls=4, failures=1, seconds=6.0)}
    assert use_metrics(uses) == {"reward/judge/failures": 1.0, "reward/judge/seconds": 1.5}


def test_what_a_loader_recorded_counts_by_value():
    assert recorded_metrics({"words": [1.0, 3.0]})["stats/words"] == 2.0
    assert recorded_metrics({"words": [1.0, 3.0]})["stats/words/count"] == 2.0


def test_rewards_are_summarised_as_the_learner_does():
    batch = [trajectory(0, 0, 1.0), trajectory(0, 1, 0.0)]
    assert reward_metrics(batch) == {"reward/mean": 0.5, "reward/std": 0.5, "reward/min": 0.0, "reward/max": 1.0}


def test_the_view_shows_components_where_there_are_several():
    one = {names.REWARD_MEAN: 0.5, "reward/right/mean": 0.5, names.LENGTH_MEAN: 7.0}
    assert format_step(3, 10, one) == "step 3/10  reward 0.500  length 7.0"
    assert format_step(3, 10, one | {"reward/short/mean": 0.25}) == (
        "step 3/10  reward 0.500  right 0.500  short 0.250  length 7.0"
    )
    assert component_means(one) == {"right": 0.5}


def metrics(share, low, high):
    return {names.ZERO_VARIANCE_SHARE: share, names.REWARD_MIN: low, names.REWARD_MAX: high}


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_first_step_without_differences_is_reported_at_once_and_then_rarely(warned):
    watch = VarianceWatch(compares_groups=True)
    watch.note(1, metrics(0.75, 0.0, 1.0))
    assert warned() == []
    for step in range(2, 120):
        watch.note(step, metrics(1.0, 0.0, 0.0))
    assert len(warned()) == 3
    assert warned()[0].startswith("step 2: in every group all samples have the same reward")
    assert "the reward is the constant 0; the first such step so far; metric reward/zero_variance_share" in warned()[0]
    assert [text.split(":")[0] for text in warned()] == ["step 2", "step 11", "step 101"]
    assert "100 such steps so far" in warned()[2]


def test_the_reason_names_constant_components_and_groups_that_differ(warned):
    means = {"reward/right/mean": 0.0, "reward/short/mean": 1.0}
    parts = means | {"reward/right/std": 0.0, "reward/short/std": 0.0}
    VarianceWatch(compares_groups=True).note(1, metrics(1.0, 0.2, 0.2) | parts)
    assert "the reward is the constant 0.2, components: right 0, short 1" in warned()[0]
    VarianceWatch(compares_groups=True).note(1, metrics(1.0, 0.0, 1.0))
    assert "groups differ from each other, from 0 to 1" in warned()[1]


def test_an_algorithm_that_does_not_compare_groups_learns_from_differences_between_them(warned):
    watch = VarianceWatch(compares_groups=False)
    watch.note(1, metrics(1.0, 0.0, 1.0))
    assert warned() == []
    watch.note(2, metrics(1.0, 1.0, 1.0))
    assert "the reward is the constant 1" in warned()[0]


def test_groups_of_one_sample_teach_only_what_does_not_compare_them(warned):
    VarianceWatch(compares_groups=False).note(1, {names.REWARD_MIN: 0.0, names.REWARD_MAX: 1.0})
    assert warned() == []
    VarianceWatch(compares_groups=True).note(1, {names.REWARD_MIN: 0.0, names.REWARD_MAX: 1.0})
    assert "groups have one sample" in warned()[0]
