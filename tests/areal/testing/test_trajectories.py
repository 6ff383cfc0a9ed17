"""The check of trajectories finds each single lie, and accepts what the engine really did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from areal.api import NO_VERSION, GenerationConfig
from areal.testing.episodes import run_episodes, run_while_updating
from areal.testing.memorised import memorised_engine
from areal.testing.trajectories import assert_trajectory_consistent
from areal.workflow.multi_turn import MultiTurnWorkflow

DIALOGUES = [("8*9=", "71<eos>", "?", "72<eos>")]
ROW = {"messages": "8*9=", "answer": "72"}
FIRST, SECOND = 4, 8
"""Where the first and the second answer begin."""


async def exact(prompt, completions, prompt_ids, completion_ids, /, *, answer):
    return float(completions == answer)


def workflow(tokenizer, **changes):
    gconfig = GenerationConfig(**{"max_new_tokens": 8, "greedy": True} | changes)
    return MultiTurnWorkflow(exact, gconfig, tokenizer, max_turns=2, feedback="?")


@pytest.fixture
def policy():
    with memorised_engine(DIALOGUES) as made:
        yield made


@pytest.fixture
def honest(policy):
    (trajectory,) = run_episodes(workflow(policy.tokenizer), policy.engine, [ROW])
    return trajectory


def test_a_real_trajectory_is_accepted(policy, honest):
    assert honest.text["completion"] == "71<eos>?72<eos>"
    assert_trajectory_consistent(honest, policy.models)


def test_a_trajectory_of_several_versions_is_checked_against_each(policy):
    (trajectory,) = run_while_updating(workflow(policy.tokenizer), policy, [ROW], every_steps=2)
    assert len(set(trajectory.versions) - {NO_VERSION}) > 1
    assert_trajectory_consistent(trajectory, policy.models)
    mixed_up = dict.fromkeys(policy.models, policy.models[0])
    with pytest.raises(AssertionError, match="a forward of that version gives"):
        assert_trajectory_consistent(trajectory, mixed_up)


def test_sampling_at_a_temperature_is_recomputed_at_that_temperature(policy):
    (trajectory,) = run_episodes(workflow(policy.tokenizer, greedy=False, temperature=1.3), policy.engine, [ROW])
    assert_trajectory_consistent(trajectory, policy.models, temperature=1.3)
    with pytest.raises(AssertionError, match="log-probability"):
        assert_trajectory_consistent(trajectory, policy.models)


def changed(trajectory, field, index, value):
    values = list(getattr(trajectory, field))
    values[index] = value
    return replace(trajectory, **{field: values})


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("logprobs", FIRST, -0.5, "token 4 .*-0.5"),
        ("logprobs", 0, -0.5, "token 0 was not sampled, yet"),
        ("versions", SECOND - 1, 0, "token 7 was not sampled, yet"),
        ("turn_ids", 1, 0, "token 1 was not sampled, yet"),
        ("versions", FIRST, 3, r"token 4 has version 3; published were \[0\]"),
        ("turn_ids", SECOND, 0, "token 8 continues turn 0 after tokens that were not sampled"),
        ("turn_ids", FIRST, 1, "token 4 has turn 1 after turn -1"),
        ("turn_ids", FIRST + 1, 1, "turn 1 begins at token 5, right after a sampled token of turn 0"),
        ("loss_mask", FIRST, 0, "token 4 was not sampled, yet"),
        ("tokens", 1, 9, "token 4 .*a forward of that version gives"),
    ],
)
def test_each_lie_is_named_with_its_token(policy, honest, field, index, value, message):
    with pytest.raises(AssertionError, match=message):
        assert_trajectory_consistent(changed(honest, field, index, value), policy.models)


def test_versions_never_go_back(policy, honest):
    policy.publish()
    back = changed(honest, "versions", FIRST, 1)
    with pytest.raises(AssertionError, match="token 5 has version 0 after one of version 1"):
        assert_trajectory_consistent(back, policy.models)


def test_a_trajectory_without_sampled_tokens_is_no_trajectory(policy, honest):
    empty = replace(
        honest,
        loss_mask=[0] * len(honest.tokens),
        logprobs=[0.0] * len(honest.tokens),
        versions=[NO_VERSION] * len(honest.tokens),
        turn_ids=[NO_VERSION] * len(honest.tokens),
    )
    with pytest.raises(AssertionError, match="no token of the trajectory was sampled"):
        assert_trajectory_consistent(empty, policy.models)
