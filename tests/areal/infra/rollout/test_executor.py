"""The executor as a trainer uses it: reproducible, resumable, honest about failure, and gone after close."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time

import pytest

from areal.api import CheckpointError, ConfigError, DataError, RolloutError, RolloutWorkflow, UsageError
from areal.dataset.loading import ShuffledRows
from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor
from areal.utils import stats


@pytest.fixture
def build(world):
    """Executor on a virtual engine; closed at the end of the test."""
    opened = []

    def make(*, engine=None, workflow=None, rows=None, seed=1, **config):
        rollout = RolloutExecutor(
            engine=engine or world.VirtualEngine(),
            workflow=workflow or world.OneCall(),
            rows=rows or world.Rows(),
            config=RolloutConfig(**{"batch_size": 4, "group_size": 3, "max_head_offpolicyness": 0, **config}),
            seed=seed,
            dataset_name="toy",
            workflow_name="one_call",
            engine_name="virtual",
        )
        opened.append(rollout)
        return rollout

    yield make
    for rollout in opened:
        rollout.close()


def train(rollout, engine, steps, first=0):
    """Run `steps` training steps; returns the batches."""
    batches = []
    for version in range(first, first + steps):
        batches.append(rollout.next_batch())
        engine.publish(version + 1)
        rollout.advance(version + 1)
    return batches


def groups_of(batches):
    return [group for batch in batches for group in batch.groups]


# -- reproducibility ---------------------------------------------------------------------------------------------------


def test_with_bound_zero_batches_equal_those_of_a_plain_synchronous_loop(world, build):
    """The reference is a loop without any of this machinery; the latencies shuffle the order of completion."""
    from areal.infra.rollout.episode import EpisodeJob, EpisodeRunner

    async def plain_loop():
        runner = EpisodeRunner(world.VirtualEngine(), seed=1, max_retries=0)
        content = []
        for ordinal in range(20):
            jobs = [
                EpisodeJob(stream="train", ordinal=ordinal, sample_index=i, data={"id": ordinal}, admitted_version=0)
                for i in range(3)
            ]
            outcomes = [await runner.run(world.OneCall(), job) for job in jobs]
            content.append((ordinal, [(t.sample_index, t.tokens, t.reward) for o in outcomes for t in o.trajectories]))
        return content

    for consume in ("fifo", "deadline", "drop"):
        engine = world.VirtualEngine(latency=world.random_latency(0, 0.003))
        rollout = build(engine=engine, consume=consume)
        rollout.start()
        batches = train(rollout, engine, 5)
        assert world.content(groups_of(batches)) == asyncio.run(plain_loop())
        assert all(batch.staleness == {0: 4} for batch in batches)


def test_requests_reach_the_engine_in_order_of_prompt_and_sample_wave_by_wave(world, build):
    engine = world.VirtualEngine(latency=world.random_latency(1, 0.003))
    rollout = build(engine=engine)
    rollout.start()
    train(rollout, engine, 3)
    rollout.next_batch()
    assert [request.input_ids[0] - 1 for request in engine.requests[:48]] == [n for n in range(16) for _ in range(3)]


def test_nothing_runs_while_the_trainer_trains_with_bound_zero(world, build):
    engine = world.VirtualEngine(latency=lambda request: 0.002)
    rollout = build(engine=engine)
    rollout.start()
    for version in range(3):
        rollout.next_batch()
        asked = len(engine.requests)
        time.sleep(0.03)
        assert (engine.active, len(engine.requests)) == (0, asked)
        engine.publish(version + 1)
        rollout.advance(version + 1)


def test_progress_counts_the_samples_of_the_next_batch_one_by_one(world, build):
    engine = world.VirtualEngine(latency=lambda request: 3600.0 if len(engine.requests) == 12 else 0.0)
    rollout = build(engine=engine)
    assert rollout.batch_progress() == (0, 12)
    rollout.start()
    while rollout.batch_progress() != (11, 12):  # the twelfth never ends
        time.sleep(0.001)
    assert engine.active == 1


def test_samples_of_a_prompt_differ_and_another_seed_gives_other_samples(world, build):
    contents = []
    for seed in (1, 1, 2):
        rollout = build(seed=seed)
        rollout.start()
        batch = rollout.next_batch()
        assert len({tuple(t.tokens) for t in batch.groups[0].trajectories}) == 3
        contents.append(world.content(batch.groups))
    assert contents[0] == contents[1] != contents[2]


def test_trajectories_carry_identity_and_provenance(world, build):
    rows = ShuffledRows([{"id": index} for index in range(50)], seed=5)
    rollout = build(rows=rows)
    rollout.start()
    for group in rollout.next_batch().groups:
        assert [t.sample_index for t in group.trajectories] == [0, 1, 2]
        for trajectory in group.trajectories:
            assert trajectory.group_id == group.ordinal
            source = trajectory.provenance
            assert (source.dataset, source.workflow, source.engine) == ("toy", "one_call", "virtual")
            assert source.row == trajectory.tokens[0] - 1 == rows.row_index(group.ordinal)


# -- resume ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    row=30,
    injected="a run cut between batches and resumed, with prompts in flight and finished",
    seen="the samples trained are exactly those of an uninterrupted run: none lost, none twice",
)
@pytest.mark.parametrize("bound", [0, 2])
def test_a_resumed_run_trains_exactly_the_samples_of_an_uninterrupted_one(world, build, bound):
    def run(cuts):
        state, batches, version = None, [], 0
        for steps in cuts:
            engine = world.VirtualEngine(latency=world.random_latency(version, 0.004), version=version)
            rollout = build(engine=engine, max_head_offpolicyness=bound)
            if state is not None:
                rollout.load_state_dict(state)
            rollout.start()
            batches += train(rollout, engine, steps, first=version)
            version += steps
            state = json.loads(json.dumps(rollout.state_dict()))
            rollout.close()
        assert state["ledger"]["num_trained"] == len(groups_of(batches))
        return world.content(groups_of(batches))

    assert run([3, 1, 4]) == run([8])


@pytest.mark.fault(
    row=30,
    injected="a batch handed out and lost before it was trained",
    seen="its prompts are admitted again, in order",
)
def test_a_batch_that_was_handed_out_but_not_trained_is_admitted_again(world, build):
    engine = world.VirtualEngine()
    rollout = build(engine=engine)
    rollout.start()
    train(rollout, engine, 1)
    lost = rollout.next_batch()
    state = rollout.state_dict()
    again = build(engine=world.VirtualEngine(version=1))
    again.load_state_dict(state)
    again.start()
    assert world.content(again.next_batch().groups) == world.content(lost.groups)


@pytest.mark.fault(
    row=29,
    injected="rollout state of another number of rows or another seed",
    seen="refused with both values",
)
@pytest.mark.parametrize(("change", "named"), [({"seed": 2}, "seed is 1"), ({"rows": 7}, "rows_per_epoch is 1000")])
def test_a_state_of_other_rows_or_seed_is_refused(world, build, change, named):
    rollout = build()
    state = rollout.state_dict()
    other = build(seed=change.get("seed", 1), rows=world.Rows(change.get("rows", 1000)))
    with pytest.raises(CheckpointError, match=named):
        other.load_state_dict(state)


def test_start_refuses_an_engine_at_another_version_than_the_state(world, build):
    engine = world.VirtualEngine()
    rollout = build(engine=engine)
    rollout.start()
    train(rollout, engine, 2)
    other = build(engine=world.VirtualEngine())
    other.load_state_dict(rollout.state_dict())
    with pytest.raises(UsageError, match="publish the restored weights with version 2"):
        other.start()


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_calls_out_of_order_are_refused_by_name(world, build):
    rollout = build()
    with pytest.raises(UsageError, match=r"next_batch\(\) before start"):
        rollout.next_batch()
    rollout.start()
    with pytest.raises(UsageError, match="nothing was trained"):
        rollout.advance(1)
    rollout.next_batch()
    with pytest.raises(UsageError, match="called twice"):
        rollout.next_batch()
    with pytest.raises(UsageError, match="expected 1, or 0 again"):
        rollout.advance(2)
    with pytest.raises(UsageError, match="load first"):
        rollout.load_state_dict(rollout.state_dict())


def test_a_skipped_step_keeps_the_version(world, build):
    rollout = build(max_head_offpolicyness=1)
    rollout.start()
    rollout.next_batch()
    rollout.advance(0)
    assert rollout.next_batch().version == 0


def test_no_rows_is_a_data_error(world):
    with pytest.raises(DataError, match="no rows"):
        RolloutExecutor(
            engine=world.VirtualEngine(), workflow=world.OneCall(), rows=world.Rows(0), config=RolloutConfig(), seed=1
        )


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    row=19,
    injected="one member of a group fails",
    seen="the others are kept with their own rewards",
)
def test_one_failing_sample_does_not_lose_the_others(world, build):
    def fault(request):
        if request.input_ids == [2] and len([r for r in engine.requests if r.input_ids == [2]]) == 2:
            raise world.FaultError(world.FaultKind.DATA_INVALID, "only this one")

    engine = world.VirtualEngine(fault=fault)
    rollout = build(engine=engine, min_group_size=2)
    rollout.start()
    batch = rollout.next_batch()
    assert [group.ordinal for group in batch.groups] == [0, 1, 2, 3]
    assert [len(group.trajectories) for group in batch.groups] == [3, 2, 3, 3]
    assert [t.sample_index for t in batch.groups[1].trajectories] == [0, 2]
    assert [fault.message for fault in batch.groups[1].faults] == ["only this one"]
    assert batch.faults == {"data_invalid": 1}


@pytest.mark.fault(
    row=19,
    injected="members of a group fail beyond min_group_size",
    seen="the whole prompt is dropped with the reason, and replaced",
)
def test_a_group_below_its_minimum_is_dropped_whole_with_the_reason_and_replaced(world, build):
    workflow = world.OneCall(reward=lambda data, tokens: 1 / 0 if data["id"] == 1 and tokens[0] % 2 else 1.0)
    rollout = build(workflow=workflow)
    rollout.start()
    batch = rollout.next_batch()
    assert [group.ordinal for group in batch.groups] == [0, 2, 3, 4]
    assert batch.dropped == {"workflow_raised": 1}
    assert batch.metrics()["rollout/dropped/workflow_raised"] == 1.0


def test_dropping_the_prompt_that_a_batch_waited_for_wakes_the_trainer(world, build):
    """The replacement of the dropped prompt never ends: those that finished behind it must not wait for that."""
    others_are_done = threading.Event()

    class Workflow(world.OneCall):
        async def arun_episode(self, engine, data):
            if data["id"] == 0:
                while not others_are_done.is_set():
                    await asyncio.sleep(0.001)
                raise world.FaultError(world.FaultKind.DATA_INVALID, "broken row")
            if data["id"] >= 4:
                await asyncio.Event().wait()
            return await super().arun_episode(engine, data)

    rollout = build(workflow=Workflow(), batch_size=2, group_size=1, max_head_offpolicyness=1)
    rollout.start()
    batches = []
    trainer = threading.Thread(target=lambda: batches.append(rollout.next_batch()), daemon=True)
    trainer.start()
    while rollout.stats()["finished"] < 3:
        time.sleep(0.001)
    others_are_done.set()
    trainer.join(60)
    assert [group.ordinal for group in batches[0].groups] == [1, 2]


def test_a_retryable_fault_is_retried_with_another_seed_and_recorded(world, build):
    def fault(request):
        if len(engine.requests) == 1:
            raise world.FaultError(world.FaultKind.GENERATION_FAILED, "server lost")

    engine = world.VirtualEngine(fault=fault)
    rollout = build(engine=engine)
    rollout.start()
    batch = rollout.next_batch()
    first = batch.groups[0]
    assert [t.provenance.attempt for t in first.trajectories] == [1, 0, 0]
    assert [(fault.kind.value, fault.attempt) for fault in first.faults] == [("generation_failed", 0)]
    assert len({request.seed for request in engine.requests}) == len(engine.requests) == 13


@pytest.mark.fault(
    row=12,
    injected="a reward that times out at every attempt, and a workflow with a bug",
    seen="the first is tried max_retries times more, the second never; both are counted by kind",
)
def test_retries_end_and_a_bug_is_not_retried(world, build):
    calls = {"flaky": 0, "bug": 0}

    def fault(data):
        if data["id"] == 0:
            calls["flaky"] += 1
            raise world.FaultError(world.FaultKind.REWARD_TIMEOUT, "judge does not answer")
        if data["id"] == 1:
            calls["bug"] += 1
            raise AttributeError("typo")

    rollout = build(workflow=world.OneCall(fault=fault), group_size=1, max_retries=2)
    rollout.start()
    batch = rollout.next_batch()
    assert [group.ordinal for group in batch.groups] == [2, 3, 4, 5]
    assert calls == {"flaky": 3, "bug": 1}
    assert batch.dropped == {"reward_timeout": 1, "workflow_raised": 1}


def test_when_everything_fails_the_run_stops_with_the_tally(world, build, caplog):
    def fault(data):
        raise ZeroDivisionError("typo in the reward")

    rollout = build(workflow=world.OneCall(fault=fault), max_consecutive_failures=5)
    with caplog.at_level(logging.ERROR):
        rollout.start()
        with pytest.raises(RolloutError) as caught:
            rollout.next_batch()
    message = str(caught.value)
    assert "5 prompts in a row were dropped for faults (max_consecutive_failures = 5)" in message
    assert "workflow_raised" in message
    assert "ZeroDivisionError: typo in the reward" in message
    assert len([record for record in caplog.records if "only counted" in record.message]) == 1
    with pytest.raises(RolloutError):
        rollout.next_batch()


@pytest.mark.parametrize("where", ["workflow", "engine"])
def test_a_wrong_configuration_ends_the_run_at_once_with_its_own_message(world, build, where):
    def fault(_):
        raise ConfigError("reward 'mine' cannot be loaded")

    rollout = build(
        engine=world.VirtualEngine(fault=fault if where == "engine" else None),
        workflow=world.OneCall(fault=fault if where == "workflow" else None),
    )
    with pytest.raises(ConfigError, match="cannot be loaded"):
        rollout.evaluate([{"id": 1}])
    rollout.start()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        rollout.next_batch()
    assert rollout.stats().get("faults/workflow_raised", 0) == rollout.stats().get("faults/generation_failed", 0) == 0


def test_the_first_fault_of_each_kind_is_shown_although_the_run_goes_on(world, build, caplog):
    def fault(data):
        if data["id"] < 3:
            raise world.FaultError(world.FaultKind.REWARD_INVALID, f"judge said nan about {data['id']}")

    rollout = build(workflow=world.OneCall(fault=fault))
    with caplog.at_level(logging.WARNING):
        rollout.start()
        assert rollout.next_batch().faults == {"reward_invalid": 9}
    assert [record.message for record in caplog.records] == [
        "first fault of kind reward_invalid, at prompt 0, sample 0: judge said nan about 0 (further ones are counted)"
    ]


def test_some_faults_of_each_kind_are_noted_with_prompt_and_row(world, build, caplog):
    def fault(data):
        if data["id"] < 3:
            raise world.FaultError(world.FaultKind.REWARD_INVALID, f"judge said nan about {data['id']}")

    rollout = build(workflow=world.OneCall(fault=fault))
    with caplog.at_level(logging.INFO):
        rollout.start()
        rollout.next_batch()
    noted = [record for record in caplog.records if hasattr(record, "fault")]
    assert [(record.prompt, record.row) for record in noted] == [(0, None)] * 3 + [(1, None)] * 2
    assert noted[-1].getMessage() == "fault of kind reward_invalid at prompt 1, sample 1: judge said nan about 1"


def test_constant_rewards_are_filtered_within_a_bound(world, build):
    rollout = build(
        workflow=world.OneCall(reward=lambda data, tokens: 1.0), filter_zero_variance=True, max_filtered_batches=3
    )
    rollout.start()
    with pytest.raises(RolloutError, match=r"12 prompts in a row were dropped on purpose, last for 'zero_variance'"):
        rollout.next_batch()
    assert rollout.stats()["dropped/zero_variance"] == 12


def test_filtered_prompts_are_replaced_and_the_batch_is_still_full_and_ordered(world, build):
    workflow = world.OneCall(reward=lambda data, tokens: 1.0 if data["id"] % 3 else float(tokens[0]))
    rollout = build(workflow=workflow, filter_zero_variance=True)
    rollout.start()
    batch = rollout.next_batch()
    assert [group.ordinal for group in batch.groups] == [0, 3, 6, 9]
    assert batch.dropped["zero_variance"] >= 6


def test_rejection_on_purpose_is_counted_apart_and_cannot_spin(world, build):
    rollout = build(workflow=world.OneCall(fault=lambda data: "reject"), max_filtered_batches=2)
    rollout.start()
    with pytest.raises(RolloutError, match="last for 'rejected'"):
        rollout.next_batch()
    assert rollout.stats()["dropped/rejected"] == 8
    assert rollout.stats()["episodes_rejected"] >= 24


def test_bad_rows_are_data_faults_and_an_endless_run_of_them_stops(world, build):
    class BadRows(world.Rows):
        def row(self, ordinal, /):
            if ordinal >= 4:
                raise DataError("row without messages")
            return super().row(ordinal)

    engine = world.VirtualEngine()
    rollout = build(engine=engine, rows=BadRows(), max_consecutive_failures=2000)
    rollout.start()
    train(rollout, engine, 1)
    with pytest.raises(RolloutError, match="row of prompt 2003: row without messages"):
        rollout.next_batch()


def test_an_untyped_error_of_the_source_reaches_the_trainer(world, build):
    class BrokenRows(world.Rows):
        def row(self, ordinal, /):
            raise IndexError("a bug in the source")

    rollout = build(rows=BrokenRows())
    rollout.start()
    with pytest.raises(IndexError, match="a bug in the source"):
        rollout.next_batch()


@pytest.mark.parametrize("result", [3, "text", [None], object()])
def test_a_wrong_result_of_a_workflow_is_its_bug(world, build, result):
    class Wrong(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            return result

    rollout = build(workflow=Wrong(), max_consecutive_failures=1)
    rollout.start()
    with pytest.raises(RolloutError, match="expected Trajectory, several, or None"):
        rollout.next_batch()


def test_an_escaped_cancellation_inside_a_workflow_is_a_fault_not_a_hang(world, build):
    class Cancels(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            raise asyncio.CancelledError

    rollout = build(workflow=Cancels(), max_consecutive_failures=1)
    rollout.start()
    with pytest.raises(RolloutError, match="let a CancelledError escape"):
        rollout.next_batch()


def test_branches_of_an_episode_share_group_and_sample(world, build):
    class Branching(world.OneCall):
        async def arun_episode(self, engine, data):
            return [await super(Branching, self).arun_episode(engine, data) for _ in range(2)]

    rollout = build(workflow=Branching())
    rollout.start()
    group = rollout.next_batch().groups[0]
    assert [t.sample_index for t in group.trajectories] == [0, 0, 1, 1, 2, 2]
    assert len({tuple(t.tokens) for t in group.trajectories}) == 6


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_evaluation_is_reproducible_and_leaves_training_untouched(world, build):
    rows = [{"id": index} for index in range(40, 46)]

    def run(evaluations):
        engine = world.VirtualEngine(latency=world.random_latency(2, 0.003))
        rollout = build(engine=engine)
        results = []
        if evaluations:
            results.append(world.content(rollout.evaluate(rows, group_size=2)))
        rollout.start()
        batches = []
        for version in range(3):
            batches += train(rollout, engine, 1, first=version)
            if evaluations:
                results.append(world.content(rollout.evaluate(rows, group_size=2)))
        return results, world.content(groups_of(batches)), rollout.stats()["trained"]

    results, trained, number = run(True)
    assert results[0] == results[1] == results[2] == results[3]
    assert [ordinal for ordinal, _ in results[0]] == list(range(6))
    assert ([], trained, number) == run(False)
    assert number == 12


def test_evaluation_of_a_training_row_uses_other_randomness_than_training(world, build):
    rollout = build()
    evaluated = rollout.evaluate([{"id": index} for index in range(4)], group_size=3)
    rollout.start()
    trained = rollout.next_batch().groups
    tokens = [{tuple(t.tokens) for group in groups for t in group.trajectories} for groups in (evaluated, trained)]
    assert not tokens[0] & tokens[1]


@pytest.mark.fault(
    row=31,
    injected="one row of an evaluation fails",
    seen="reported for that row; training untouched",
)
def test_a_failing_evaluation_row_is_reported_and_training_goes_on(world, build):
    def fault(data):
        if data["id"] == 41:
            raise ValueError("cannot judge")

    rollout = build()
    rollout.start()
    groups = rollout.evaluate([{"id": 40}, {"id": 41}], workflow=world.OneCall(fault=fault))
    assert [len(group.trajectories) for group in groups] == [1, 0]
    assert "cannot judge" in groups[1].faults[0].message
    assert rollout.next_batch().faults == {}


# -- pausing, watching, closing ----------------------------------------------------------------------------------------


def test_pause_stops_admission_and_resume_continues(world, build):
    rollout = build()
    rollout.start()
    rollout.next_batch()
    rollout.pause()
    rollout.advance(0)
    time.sleep(0.05)
    assert rollout.stats()["admitted"] == 4
    rollout.resume()
    assert [group.ordinal for group in rollout.next_batch().groups] == [4, 5, 6, 7]


def test_the_watchdog_names_what_is_pending_and_what_it_does(world, build, caplog):
    engine = world.VirtualEngine(latency=lambda request: 60.0 if request.input_ids[0] == 3 else 0.0)
    with caplog.at_level(logging.WARNING):
        rollout = build(
            engine=engine, stall_seconds=2.0
        )  # Long enough for the others to be done, on a busy machine too.
        rollout.start()
        deadline = time.monotonic() + 60
        while "no episode finished" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "prompt 2, started" in caplog.text
    assert "sample 0: generation 0 since" in caplog.text
    assert "prompt 1," not in caplog.text


def test_close_wakes_a_waiting_trainer_and_leaves_no_thread_and_no_task(world, build):
    before = threading.active_count()
    engine = world.VirtualEngine(latency=lambda request: 60.0)
    rollout = build(engine=engine)
    rollout.start()
    caught = []

    def wait():
        try:
            rollout.next_batch()
        except RolloutError as error:
            caught.append(str(error))

    trainer = threading.Thread(target=wait)
    trainer.start()
    while engine.active < 12:
        time.sleep(0.001)
    rollout.close()
    rollout.close()
    trainer.join(60)
    assert caught == ["the rollout executor is closed"]
    assert engine.active == 0
    assert threading.active_count() == before
    with pytest.raises(RolloutError, match="closed"):
        rollout.evaluate([{"id": 1}])


@pytest.mark.exhaustive
def test_memory_stays_flat_over_many_steps(world, build):
    engine = world.VirtualEngine()
    rollout = build(engine=engine, group_size=1, max_head_offpolicyness=1)
    rollout.start()
    train(rollout, engine, 30)
    gc.collect()
    before = len(gc.get_objects())
    engine.requests.clear()
    train(rollout, engine, 100, first=30)
    engine.requests.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 300


def test_what_a_dataset_and_a_workflow_record_belongs_to_each_sample(world, build):
    class RecordingRows(world.Rows):
        def row(self, ordinal, /):
            stats.record("row_number", ordinal)
            return super().row(ordinal)

    def scored(data, tokens):
        stats.record("double", 2 * data["id"])
        return 1.0

    rollout = build(rows=RecordingRows(), workflow=world.OneCall(reward=scored))
    rollout.start()
    batch = rollout.next_batch()
    for item in batch.trajectories:
        assert dict(item.stats) == {"row_number": item.group_id, "double": 2 * item.group_id}
    number = sum(item.group_id for item in batch.trajectories) / len(batch.trajectories)
    metrics = batch.metrics()
    assert (metrics["stats/row_number"], metrics["stats/double"]) == (number, 2 * number)
    assert metrics["stats/row_number/count"] == len(batch.trajectories)
