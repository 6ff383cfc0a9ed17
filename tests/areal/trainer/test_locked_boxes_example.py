"""The example of the locked boxes: its environment keeps its contract, its controls give nothing away, it learns."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from areal.algorithm.advantages import GRPO, reward_batch
from areal.api import ActionCall, AssistantTurn
from areal.environment.check import check_environment
from areal.environment.config import HostConfig

ROOT = Path(__file__).parents[3]
NAME = "examples.environment.locked_boxes:LockedBoxes"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def opened(key):
    return AssistantTurn(text="", calls=(ActionCall(name="open", arguments={"key": key}),))


async def played(shown, depth, seed):
    """Follow what is shown; return the contents that were seen, and which digits are rewarded."""
    from examples.environment.locked_boxes import LockedBoxes

    seen, right = [], []
    for digit in "0123456789":
        environment = LockedBoxes(shown).create()
        first = await environment.reset({"depth": depth}, seed)
        count, key = first.messages[0]["content"]
        assert int(count) == depth
        seen = []
        for _ in range(depth):
            (message,) = (await environment.step(opened(key))).observation.messages
            key = message["content"]
            seen.append(key)
        last = await environment.step(AssistantTurn(text=digit))
        assert last.terminated
        if last.reward:
            right.append(digit)
    return seen, right


def test_the_environment_keeps_its_contract():
    checks = check_environment(NAME, {}, HostConfig(), row={"depth": 2}, answers=["7"])
    assert [result for result in asyncio.run(checks) if not result.ok or result.detail] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_who_follows_the_keys_finds_the_digit_and_nothing_else_does(depth):
    counts = {"true": 0, "other": 0, "nothing": 0}
    for seed in range(100):
        for shown in counts:
            seen, right = asyncio.run(played(shown, depth, seed))
            assert len(right) == 1
            counts[shown] += seen[-1] == right[0]
            assert len(seen) == depth
            # The control looks like the task: keys, then a digit.
            form = [key.isdecimal() for key in seen] if shown != "nothing" else [False] * depth
            assert form == [False] * (depth - 1) + [shown != "nothing"]
    assert counts["true"] == 100
    assert counts["nothing"] == 0
    assert counts["other"] < 25, "one in ten by chance"


def test_a_look_up_too_many_ends_the_episode_without_reward():
    from examples.environment.locked_boxes import LockedBoxes

    async def play():
        environment = LockedBoxes().create()
        first = await environment.reset({"depth": 1}, 5)
        key = first.messages[0]["content"][1]
        found = (await environment.step(opened(key))).observation.messages[0]["content"]
        assert found.isdecimal()
        last = await environment.step(opened(key))
        assert (last.terminated, last.reward) == (True, 0.0)
        with pytest.raises(RuntimeError, match="over"):
            await environment.step(AssistantTurn(text=found))

    asyncio.run(play())


def test_demonstrations_show_the_form_and_seldom_the_order():
    from examples.environment.locked_boxes import demonstration

    draw = random.Random(0)
    solved = dict.fromkeys((1, 2, 3), 0)
    for index in range(900):
        depth = 1 + index % 3
        messages = demonstration(draw, depth)
        assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * depth, "assistant"]
        digits = [message["content"] for message in messages if message["role"] == "tool"]
        solved[depth] += digits[-1].isdecimal()
    assert solved[1] == 300
    assert 30 < solved[2] < 90
    assert solved[3] < 35


def test_shuffled_rewards_stay_in_their_group():
    from examples.environment.learn import ShuffledGRPO

    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    groups = torch.tensor([7, 9, 7, 9, 7, 9])
    batch = reward_batch(rewards, groups, mask=torch.ones(6, 2))
    plain, shuffled = (made.estimate(batch).advantages for made in (GRPO(), ShuffledGRPO()))
    # Within 7: samples 0, 2, 4 get those of 4, 0, 2; within 9: samples 1, 3, 5 those of 5, 1, 3.
    assert torch.equal(shuffled, plain[[4, 5, 0, 1, 2, 3]])


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_it_learns_to_follow_the_keys_and_the_controls_do_not(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "examples.environment.learn", "--seed", "10", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trained"]["3"] >= 0.8
    assert max(found[name]["3"] for name in ("shuffled", "other", "nothing")) <= 0.3
