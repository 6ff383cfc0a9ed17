"""Whole runs in an environment: rewards of turns reach the update, and they are what is learned from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import runs

sys.path.append(str(Path(__file__).parent))

CHARACTERS = "0123456789+-*/="


def rewards(folder):
    """Mean reward of every step of the run in a folder."""
    (file,) = folder.rglob("metrics.jsonl")
    found = (json.loads(line) for line in file.read_text().splitlines())
    return [record["reward/mean"] for record in found if "reward/mean" in record]


def learn(tmp_path, *, advantage, steps=25, **options):
    config = runs.tiny(
        tmp_path,
        total_train_steps=steps,
        workflow="environment",
        workflow_options={"environment": "seven:Seven", **options},
        reward="unscored",
        gconfig__max_new_tokens=8,
        gconfig__stop=list(CHARACTERS),
        rollout__group_size=8,
        actor__lr=1e-2,
        objective__advantage=advantage,
    )
    summary, _ = runs.train(config)
    assert summary["steps"] == steps
    return rewards(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "advantage", runs.sample_of(["turn_return", "outcome_plus_turn", "grpo", "reinforce_pp"], "turn_return")
)
def test_a_run_learns_from_the_rewards_of_turns(tmp_path, advantage):
    means = learn(tmp_path, advantage=advantage)

    assert sum(means[:2]) / 2 < 1.0
    assert sum(means[-3:]) / 3 > 2.0, f"{means}: of 3 at best"


@pytest.mark.exhaustive
def test_nothing_is_learned_when_the_reward_does_not_depend_on_what_was_seen(tmp_path):
    means = learn(tmp_path, advantage="turn_return", environment_options={"shuffled": True})

    assert sum(means[-3:]) / 3 < 1.0, f"{means}: chance is below 0.3"


@pytest.mark.exhaustive
def test_an_environment_in_processes_gives_the_same_run(tmp_path):
    here = learn(tmp_path / "here", advantage="turn_return", steps=3)
    there = learn(tmp_path / "there", advantage="turn_return", steps=3, host={"kind": "subprocess"})

    assert here == there
