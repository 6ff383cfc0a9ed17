"""Surplus prompts: started early, cancelled in the engine when a batch is complete, and without a say in what it is."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.infra.rollout.config import CurriculumConfig, RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor
from areal.infra.rollout.ledger import AdmissionPolicy, PromptLedger
from areal.infra.rollout.loop_thread import RolloutStoppedError
from areal.infra.rollout.schedule import PromptSchedule, RolloutSource, SourceExhaustedError

BATCH, GROUP = 4, 3


class Held:
    """The workflow of most tests here: the samples of rows in `rows` wait until they are released."""

    def __init__(self, world, rows=(), *, reward=None):
        class Workflow(world.OneCall):
            async def arun_episode(workflow, engine, data):
                while data["id"] in self.rows:
                    await asyncio.sleep(0.001)
                return await super().arun_episode(engine, data)

        self.rows = set(rows)
        self.workflow = Workflow(reward=reward)


def equal_in_every_third(data, tokens):
    """Rows 1, 4, 7, ... have no variance."""
    return 1.0 if data["id"] % 3 == 1 else float(tokens[0])


@pytest.fixture
def build(world):
    """Executor on a virtual engine; closed at the end of the test."""
    opened = []

    def make(workflow, *, engine, rows=None, **config):
        settings = {"batch_size": BATCH, "group_size": GROUP, "max_head_offpolicyness": 0} | config
        opened.append(
            RolloutExecutor(
                engine=engine,
                workflow=workflow,
                rows=rows or world.Rows(),
                config=RolloutConfig(**settings),
                seed=1,
            )
        )
        return opened[-1]

    yield make
    for rollout in opened:
        rollout.close()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def advance(rollout, engine):
    engine.publish(engine.version + 1)
    rollout.advance(engine.version)


def ordinals(batch):
    return [group.ordinal for group in batch.groups]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("surplus", "concurrent"), [(1, 0), (6, 0), (3, 2)])
def test_in_order_of_admission_batches_and_drops_are_those_of_a_run_without_surplus(world, build, surplus, concurrent):
    found = []
    for number in (0, surplus):
        # Other latencies, so that what finishes first differs, too.
        engine = world.VirtualEngine(latency=world.random_latency(number, 0.003))
        workflow = world.OneCall(reward=equal_in_every_third)
        config = {"surplus_prompts": number, "max_concurrent_prompts": concurrent, "filter_zero_variance": True}
        rollout = build(workflow, engine=engine, **config)
        rollout.start()
        for _ in range(5):
            batch = rollout.next_batch()
            if number:
                assert batch.cancelled.prompts == number
                assert rollout.stats()["waiting"] == number
                # How far ahead rows were drawn is no race: the order under a curriculum depends on it.
                assert rollout.stats()["admitted"] == ordinals(batch)[-1] + 1 + number
            found.append((world.content(batch.groups), batch.dropped, batch.staleness))
            advance(rollout, engine)
    assert found[:5] == found[5:]
    assert sum(dropped["zero_variance"] for _, dropped, _ in found[:5]) > 5


def test_a_complete_batch_ends_the_surplus_in_the_engine_and_it_comes_first_next_time(world, build):
    """0, 2, 3 and 5 are the batch, since 1 and 4 have no variance; 6, 7 and 8 are the surplus."""
    slow = {6, 7, 8}
    engine = world.VirtualEngine(latency=lambda request: 3600.0 if request.input_ids[0] - 1 in slow else 0.0)
    workflow = world.OneCall(reward=equal_in_every_third)
    rollout = build(workflow, engine=engine, surplus_prompts=3, filter_zero_variance=True)
    rollout.start()
    batch = rollout.next_batch()
    assert ordinals(batch) == [0, 2, 3, 5]
    until(lambda: engine.active == 0)  # before the update: nothing decodes for nobody
    assert engine.counts["abort_some"] == 9
    assert (batch.cancelled.prompts, batch.cancelled.samples) == (3, 0)
    metrics = batch.metrics()
    assert metrics["rollout/cancelled"] == 3
    assert metrics["rollout/cancelled_share"] == 3 / (4 + 2 + 3)
    assert batch.dropped == {"zero_variance": 2}
    asked = len(engine.requests)
    slow.clear()
    advance(rollout, engine)
    batch = rollout.next_batch()
    assert ordinals(batch) == [6, 8, 9, 11]
    assert [request.input_ids[0] - 1 for request in engine.requests[asked:]][::GROUP][:4] == [6, 7, 8, 9]
    assert {version for group in batch.groups for item in group.trajectories for version in item.versions[1:]} == {1}


def test_a_surplus_prompt_that_has_finished_counts_for_nothing_yet(world, build):
    """5 is waited for until 6, 7 and 8 are done, of which 7 has no variance: whether they were is a race."""
    held = Held(world, {5}, reward=equal_in_every_third)
    engine = world.VirtualEngine()
    rollout = build(held.workflow, engine=engine, surplus_prompts=3, filter_zero_variance=True)
    rollout.start()
    until(lambda: rollout.stats()["finished"] == 6)
    held.rows.clear()
    batch = rollout.next_batch()
    assert ordinals(batch) == [0, 2, 3, 5]
    assert batch.dropped == {"zero_variance": 2}
    assert (batch.cancelled.prompts, batch.metrics()["rollout/cancelled_samples"]) == (3, 9)
    advance(rollout, engine)
    batch = rollout.next_batch()
    assert ordinals(batch) == [6, 8, 9, 11]
    assert batch.dropped == {"zero_variance": 2}
    assert all(group.admitted_version == 1 for group in batch.groups)


def test_drop_trains_what_finishes_first_and_counts_the_slow_ones_that_it_gives_up(world, build):
    slow = {1, 3, 8}
    engine = world.VirtualEngine(latency=lambda request: 3600.0 if request.input_ids[0] - 1 in slow else 0.0)
    rollout = build(world.OneCall(), engine=engine, surplus_prompts=2, consume="drop")
    rollout.start()
    batch = rollout.next_batch()
    assert ordinals(batch) == [0, 2, 4, 5]
    until(lambda: engine.active == 0)
    assert batch.dropped == {"surplus": 2}
    assert batch.metrics()["rollout/cancelled_share"] == 2 / 6
    advance(rollout, engine)
    trained = ordinals(batch) + ordinals(rollout.next_batch())
    assert not slow & set(trained)
    assert rollout.stats()["dropped/surplus"] == 4
    assert rollout.stats()["trained"] + rollout.stats()["in_training"] == 8


def test_an_asynchronous_run_starts_surplus_only_while_the_trainer_waits(world, build):
    held = Held(world, {8})
    engine = world.VirtualEngine()
    rollout = build(held.workflow, engine=engine, surplus_prompts=2, max_head_offpolicyness=1)
    rollout.start()
    for _ in range(2):
        until(lambda: rollout.stats()["finished"] + rollout.stats()["in_flight"] == 8)
        until(lambda: rollout.stats()["finished"] >= 4)
        batch = rollout.next_batch()
        assert batch.cancelled.prompts == 0
        advance(rollout, engine)
    # 8 to 11 are next, and 8 is slow: 16 and 17 start meanwhile.
    waits = []

    def release_when_surplus_is_done():
        waits.append(rollout.stats()["admitted"])
        if rollout.stats()["finished"] == 9:
            held.rows.clear()
        return False

    batch = rollout.next_batch(release_when_surplus_is_done)
    assert ordinals(batch) == [8, 9, 10, 11]
    assert max(waits) == 18
    # 12 to 15 are those of the next batch: the bound admits them.
    assert (batch.cancelled.prompts, batch.cancelled.samples) == (2, 6)
    assert rollout.stats()["finished"] == 4
    asked = len(engine.requests)
    advance(rollout, engine)
    assert ordinals(rollout.next_batch()) == [12, 13, 14, 15]
    until(lambda: len(engine.requests) >= asked + 12)
    assert [request.input_ids[0] - 1 for request in engine.requests[asked : asked + 12 : GROUP]] == [16, 17, 18, 19]


def test_a_trainer_that_stops_waiting_leaves_no_surplus_behind_for_the_next_save(world, build):
    held = Held(world, {0})
    engine = world.VirtualEngine()
    rollout = build(held.workflow, engine=engine, surplus_prompts=2)
    rollout.start()
    with pytest.raises(RolloutStoppedError):
        rollout.next_batch(lambda: rollout.stats()["finished"] == 5)
    again = build(world.OneCall(), engine=world.VirtualEngine(), surplus_prompts=2)
    again.load_state_dict(rollout.state_dict())
    again.start()
    assert ordinals(again.next_batch()) == [0, 1, 2, 3]


def test_the_last_rows_of_a_source_are_trained_although_surplus_has_drawn_them(world, build):
    """6 rows, of which each may come once, are three batches of 2; 4 of surplus draw them all at the start."""
    source = RolloutSource(rows=world.Rows(6), workflow=world.OneCall())
    rows = PromptSchedule([source], curriculum=CurriculumConfig(max_reuse=1))
    engine = world.VirtualEngine()
    rollout = build(None, engine=engine, rows=rows, batch_size=2, surplus_prompts=4)
    rollout.start()
    trained = []
    for _ in range(3):
        trained += ordinals(rollout.next_batch())
        advance(rollout, engine)
    assert trained == list(range(6))
    with pytest.raises(SourceExhaustedError, match="used up: 6 prompts"):
        rollout.next_batch()


def test_under_deadline_a_surplus_prompt_waits_for_a_place_however_early_it_has_finished(world, build):
    """0 to 7 are admitted. 1 and 4 have no variance: 8 and 9 take their places. 10 to 12 are surplus, and end early."""
    held = Held(world, {0, 2, 3, 5, 6, 7}, reward=equal_in_every_third)
    engine = world.VirtualEngine()
    changes = {"consume": "deadline", "max_head_offpolicyness": 1, "filter_zero_variance": True}
    rollout = build(held.workflow, engine=engine, surplus_prompts=3, **changes)
    rollout.start()

    def release_two_when_all_others_have_ended():
        counts = rollout.stats()
        if (counts["in_flight"], counts["finished"]) == (6, 5):
            held.rows -= {0, 3}
        return False

    batch = rollout.next_batch(release_two_when_all_others_have_ended)
    assert ordinals(batch) == [0, 3, 8, 9]
    assert batch.dropped == {"zero_variance": 2}, "10 has no variance either, but has no say yet"
    assert (batch.cancelled.prompts, batch.cancelled.samples) == (3, 9)
    held.rows.clear()
    advance(rollout, engine)
    batch = rollout.next_batch()
    assert ordinals(batch)[:3] == [2, 5, 6], "their deadline is now; 7 has no variance"
    trained = [0, 3, 8, 9, *ordinals(batch)]
    for _ in range(3):
        advance(rollout, engine)
        batch = rollout.next_batch()
        assert max(batch.staleness) <= 1
        trained += ordinals(batch)
    assert len(set(trained)) == 20
    assert not {ordinal for ordinal in trained if ordinal % 3 == 1}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_under_deadline_the_answer_of_a_surplus_prompt_does_not_decide_whether_it_is_cancelled(data):
    """When and how a surplus prompt ends changes nothing about the batch and about what is cancelled with it."""
    size, bound, surplus = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2)), data.draw(st.integers(1, 4))
    config = RolloutConfig(
        batch_size=size, max_head_offpolicyness=bound, surplus_prompts=surplus, consume="deadline"
    )  # fmt: skip
    most = (bound + 1) * size
    ends = data.draw(st.permutations(range(most)))
    early = data.draw(st.sets(st.integers(most, most + surplus - 1)))
    outcomes = []
    for finished in (set(), early):
        policy, ledger = AdmissionPolicy(config), PromptLedger()
        for _ in range(policy.room(ledger, waiting=True)):
            ledger.admit(0)
        assert len(ledger.live) == most + surplus
        for ordinal in sorted(finished):
            ledger.finish(ordinal)
        batch = None
        for ordinal in ends:
            assert batch is None
            ledger.finish(ordinal)
            batch = policy.select(ledger, 0)
            if batch is not None:
                break
        ledger.take(batch)
        outcomes.append((batch, policy.surplus(ledger)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == tuple(range(most, most + surplus))
