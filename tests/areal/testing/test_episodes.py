"""The helpers that run episodes notice workflows that block, wait for each other, or are too short to be updated."""

from __future__ import annotations

import asyncio
import time

import pytest

from areal.api import FaultError, FaultKind, GenerationConfig, RolloutError, RolloutWorkflow
from areal.testing.episodes import assert_episodes_overlap, run_episodes, run_in_executor, run_while_updating
from areal.testing.memorised import memorised_engine
from areal.testing.trajectories import assert_trajectory_consistent
from areal.workflow.rlvr import RLVRWorkflow

ROWS = [{"messages": f"{left}*9=", "answer": str(left * 9)} for left in range(2, 6)]
DIALOGUES = [(row["messages"], f"{row['answer']}<eos>") for row in ROWS]
GREEDY = GenerationConfig(max_new_tokens=8, greedy=True)


async def exact(prompt, completions, prompt_ids, completion_ids, /, *, answer):
    return float(completions == answer)


@pytest.fixture
def policy():
    with memorised_engine(DIALOGUES) as made:
        yield made


class Wrapped(RolloutWorkflow):
    """Another workflow with something around each of its episodes."""

    def __init__(self, inner):
        self.inner = inner
        self.lock = asyncio.Lock()

    async def arun_episode(self, engine, data):
        return await self.inner.arun_episode(engine, data)


class Blocking(Wrapped):
    async def arun_episode(self, engine, data):
        time.sleep(0.3)
        return await super().arun_episode(engine, data)


class OneAfterAnother(Wrapped):
    async def arun_episode(self, engine, data):
        async with self.lock:
            return await super().arun_episode(engine, data)


class Refusing(Wrapped):
    async def arun_episode(self, engine, data):
        if data["answer"] == "18":
            return None
        trajectory = await super().arun_episode(engine, data)
        return [trajectory, trajectory]


def test_trajectories_come_in_the_order_of_the_rows(policy):
    trajectories = run_episodes(RLVRWorkflow(exact, GREEDY, policy.tokenizer), policy.engine, ROWS)
    assert [trajectory.text["completion"] for trajectory in trajectories] == ["18", "27", "36", "45"]


def test_episodes_may_give_nothing_or_several_trajectories(policy):
    workflow = Refusing(RLVRWorkflow(exact, GREEDY, policy.tokenizer))
    assert len(run_episodes(workflow, policy.engine, ROWS[:2])) == 2


def test_a_fault_of_an_episode_is_raised(policy):
    with pytest.raises(FaultError, match="no column 'messages'"):
        run_episodes(RLVRWorkflow(exact, GREEDY, policy.tokenizer), policy.engine, [{"answer": "1"}])


def test_weights_change_in_the_middle_of_generations(policy):
    workflow = RLVRWorkflow(exact, GREEDY, policy.tokenizer)
    trajectories = run_while_updating(workflow, policy, ROWS, every_steps=1)
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 4
    for trajectory in trajectories:
        assert trajectory.versions[-3:] == sorted(set(trajectory.versions[-3:])), "each token has a version of its own"
        assert_trajectory_consistent(trajectory, policy.models)


def test_updates_that_never_happened_are_a_failure(policy):
    with pytest.raises(AssertionError, match="ended within 50 decode steps, before any update"):
        run_while_updating(RLVRWorkflow(exact, GREEDY, policy.tokenizer), policy, ROWS[:1], every_steps=50)


def test_a_good_workflow_overlaps(policy):
    assert_episodes_overlap(lambda reward: RLVRWorkflow(reward, GREEDY, policy.tokenizer), policy.engine, ROWS[0])


@pytest.mark.exhaustive
def test_blocking_and_waiting_workflows_are_found_out(policy):
    def build(kind):
        return lambda reward: kind(RLVRWorkflow(reward, GREEDY, policy.tokenizer))

    with pytest.raises(AssertionError, match="the event loop stood still"):
        assert_episodes_overlap(build(Blocking), policy.engine, ROWS[0], longest_pause=0.2, episodes=2)
    with pytest.raises(AssertionError, match="only 1 of 3 episodes reached the reward"):
        assert_episodes_overlap(build(OneAfterAnother), policy.engine, ROWS[0], episodes=3, seconds=2.0)


def test_the_executor_groups_samples_and_reports_failures(policy):
    groups = run_in_executor(RLVRWorkflow(exact, GREEDY, policy.tokenizer), policy.engine, ROWS, group_size=3)
    assert [len(group.trajectories) for group in groups] == [3] * len(ROWS)
    assert {item.sample_index for item in groups[0].trajectories} == {0, 1, 2}

    async def broken(*_, **__):
        raise FaultError(FaultKind.REWARD_INVALID, "no such judge")

    with pytest.raises(RolloutError, match="no such judge"):
        run_in_executor(RLVRWorkflow(broken, GREEDY, policy.tokenizer), policy.engine, ROWS)
