"""Thousands of prompts with random latencies, faults and cuts, under every policy: nothing lost, nothing too old."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading

import pytest

from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor

CASES = list(itertools.product(["fifo", "deadline", "drop"], range(4)))
SAMPLE = {("fifo", 0), ("fifo", 3), ("deadline", 1), ("drop", 2)}


def assert_ledger_consistent(rollout, trained):
    counts = rollout.stats()
    ended = {key: value for key, value in counts.items() if key == "trained" or key.startswith("dropped/")}
    live = counts["in_flight"] + counts["finished"] + counts["in_training"]
    assert counts["admitted"] == sum(ended.values()) + live + counts["waiting"]
    assert counts["trained"] == len(trained)
    assert len(set(trained)) == len(trained)


@pytest.mark.sample(1)
@pytest.mark.fault(
    row=11,
    injected="random delays, faults and interruptions under every policy and bound",
    seen="no trained token is older than the bound; every prompt ends exactly once; batches are full",
)
@pytest.mark.parametrize(
    ("consume", "bound"),
    [case if case in SAMPLE else pytest.param(*case, marks=pytest.mark.exhaustive) for case in CASES],
)
def test_bound_ledger_and_batch_size_hold_under_faults_and_interruptions(world, consume, bound):
    chance = random.Random(f"{consume}{bound}")

    def engine_fault(request):
        if chance.random() < 0.02:
            raise world.FaultError(world.FaultKind.GENERATION_FAILED, "server lost")

    def workflow_fault(data):
        if chance.random() < 0.01:
            raise KeyError("a bug that shows up now and then")
        return "reject" if chance.random() < 0.01 else None

    config = RolloutConfig(
        batch_size=8,
        group_size=4,
        max_head_offpolicyness=bound,
        consume=consume,
        max_concurrent_prompts=chance.choice([0, 5, 13]),
        min_group_size=chance.choice([0, 3]),
        max_retries=1,
        filter_zero_variance=chance.random() < 0.5,
        surplus_prompts=chance.choice([0, 3, 9]),
    )
    engine = world.VirtualEngine(latency=world.random_latency(bound, 0.004), fault=engine_fault, num_tokens=3)
    workflow = world.OneCall(fault=workflow_fault, reward=lambda data, tokens: float(tokens[0] % 3))
    trained, steps = [], 25
    with RolloutExecutor(engine=engine, workflow=workflow, rows=world.Rows(77), config=config, seed=3) as rollout:
        rollout.start()
        for version in range(steps):
            batch = rollout.next_batch()
            assert batch.version == version
            assert len(batch.groups) == 8
            for group in batch.groups:
                assert 0 <= version - group.admitted_version <= bound
                minimum = config.min_group_size or config.group_size
                assert len(group.trajectories) >= minimum
                assert all(t.head_version >= group.admitted_version for t in group.trajectories)
                assert len({t.reward for t in group.trajectories}) > 1 or not config.filter_zero_variance
            trained += [group.ordinal for group in batch.groups]
            counts = rollout.stats()  # surplus is gone
            assert counts["in_flight"] + counts["finished"] + counts["in_training"] <= (bound + 1) * 8
            if config.max_concurrent_prompts:
                assert counts["in_flight"] <= config.max_concurrent_prompts
            json.dumps(rollout.state_dict())
            threading.Event().wait(chance.random() * 0.006)
            engine.publish(version + 1)
            rollout.advance(version + 1)
        assert_ledger_consistent(rollout, trained)
        assert rollout.stats()["interruptions"] > 0 or bound == 0
    if consume == "fifo":
        assert trained == sorted(trained)
    if consume != "drop":
        assert "dropped/stale" not in rollout.stats()


@pytest.mark.fault(
    row=11,
    injected="prompts that take longer than the bound allows, consume=drop",
    seen="dropped, counted, cancelled in the engine and replaced",
)
def test_drop_replaces_what_became_too_old_and_cancels_it_in_the_engine(world):
    slow = {3, 4}
    engine = world.VirtualEngine(latency=lambda request: 30.0 if request.input_ids[0] - 1 in slow else 0.001)
    config = RolloutConfig(batch_size=4, group_size=2, max_head_offpolicyness=1, consume="drop")
    with RolloutExecutor(engine=engine, workflow=world.OneCall(), rows=world.Rows(), config=config, seed=0) as rollout:
        rollout.start()
        trained = []
        for version in range(5):
            trained += [group.ordinal for group in rollout.next_batch().groups]
            engine.publish(version + 1)
            rollout.advance(version + 1)
        assert not slow & set(trained)
        # On a busy machine a quick prompt may become too old as well.
        assert rollout.stats()["dropped/stale"] >= 2
        assert engine.counts["abort_some"] >= 4


@pytest.mark.fault(
    row=11,
    injected="one straggler among fast prompts, consume=deadline",
    seen="others are trained first; at its bound it is waited for",
)
def test_deadline_takes_finished_prompts_early_but_waits_when_a_straggler_is_due(world):
    release = threading.Event()

    class Straggling(world.OneCall):
        async def arun_episode(self, engine, data):
            while data["id"] == 0 and not release.is_set():
                await asyncio.sleep(0.001)
            return await super().arun_episode(engine, data)

    engine = world.VirtualEngine(latency=lambda request: 0.001)
    config = RolloutConfig(batch_size=2, group_size=1, max_head_offpolicyness=1, consume="deadline")
    with RolloutExecutor(engine=engine, workflow=Straggling(), rows=world.Rows(), config=config, seed=0) as rollout:
        rollout.start()
        first = rollout.next_batch()
        assert 0 not in [group.ordinal for group in first.groups]
        engine.publish(1)
        rollout.advance(1)
        threading.Timer(0.1, release.set).start()
        second = rollout.next_batch()
        assert 0 in [group.ordinal for group in second.groups]
        assert second.staleness[1] >= 1
