"""The order of rows: weights are kept, pools follow pass rates, and a killed run draws the same rows again."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from areal.api import ConfigError, PromptGroup, RolloutError, StopReason, Trajectory, UsageError
from areal.infra.rollout.config import CurriculumConfig, PoolConfig, RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor
from areal.infra.rollout.interleaving import falls_on, next_turn, spread_choice, whole_weights
from areal.infra.rollout.ledger import PromptLedger
from areal.infra.rollout.schedule import PromptSchedule, RolloutSource, SourceExhaustedError

POOLS = {"hard": PoolConfig(up_to=0.25), "middle": PoolConfig(up_to=0.75, weight=3), "easy": PoolConfig(weight=0.5)}


def group_of(ordinal, rewards, source=""):
    items = tuple(
        Trajectory(
            tokens=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -0.5], versions=[-1, 0], turn_ids=[-1, 0], reward=reward,
            stop_reason=StopReason.STOP, group_id=ordinal, sample_index=index,
        )
        for index, reward in enumerate(rewards)
    )  # fmt: skip
    return PromptGroup(ordinal=ordinal, admitted_version=0, trajectories=items, source=source)


class Numbers:
    """Rows of a source: epoch after epoch, row `number % length`."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def row(self, number, /):
        return {"id": number % self.length}

    def row_index(self, number, /):
        return number % self.length


def play(schedule, steps, batch, *, solved, first=0):
    """A synchronous run that trains everything it draws; returns (source, row) of each prompt."""
    seen = []
    for step in range(first, first + steps):
        for ordinal in range(step * batch, (step + 1) * batch):
            visit = schedule.draw(ordinal)
            seen.append((schedule.name(visit), schedule.row_index(visit)))
        for ordinal in range(step * batch, (step + 1) * batch):
            source, row = seen[ordinal - first * batch]
            schedule.end(ordinal, group_of(ordinal, solved(source, row, step), source))
        schedule.advance()
    return seen


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(25))
def test_no_source_is_ever_further_from_its_share_than_the_bound(seed):
    chosen = random.Random(seed)
    parts = chosen.randint(2, 7)
    weights = whole_weights([round(chosen.uniform(0.01, 1), chosen.randint(2, 4)) + 0.001 for _ in range(parts)])
    total, bound = sum(weights), 1 - 1 / (2 * parts - 2)
    taken = [0] * parts
    for turn in range(1, 400):
        taken[next_turn(weights, taken)] += 1
        worst = max(abs(had - turn * weight / total) for had, weight in zip(taken, weights, strict=True))
        assert worst <= bound + 1e-9, f"turn {turn}: {taken} of {weights}"


def test_weights_are_read_as_they_are_written():
    assert whole_weights([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert whole_weights([2, 6]) == (1, 3)
    assert whole_weights([1e-3]) == (1,)


def test_turns_repeat_exactly_with_the_period_of_the_weights():
    taken, order = [0, 0], []
    for _ in range(20):
        order.append(next_turn((7, 3), taken))
        taken[order[-1]] += 1
    assert order[:10] == order[10:]
    assert Counter(order) == {0: 14, 1: 6}


def test_replays_and_pools_are_spread_evenly():
    falls = [falls_on(0.3, number) for number in range(1000)]
    assert all(abs(sum(falls[:n]) - 0.3 * n) < 1 for n in range(1000))
    chosen = [spread_choice([1.0, 3.0, 0.5], number, offset=12345) for number in range(2000)]
    for n in range(1, 2000):
        assert abs(chosen[:n].count(1) - n * 3 / 4.5) < 4


# -- the schedule ------------------------------------------------------------------------------------------------------


def mixture(curriculum=None, lengths=(7, 11, 5), weights=(0.5, 0.3, 0.2), seed=3):
    sources = [
        RolloutSource(name=name, rows=Numbers(length), weight=weight)
        for name, length, weight in zip("abc", lengths, weights, strict=True)
    ]
    return PromptSchedule(sources, seed=seed, curriculum=curriculum)


def solved_by_row(source, row, step):
    """Row r passes in r of 8 samples, shifted from step to step."""
    return [float((row + step) % 8 > index) for index in range(8)]


def test_a_single_source_without_curriculum_is_visited_in_passes():
    schedule = PromptSchedule([RolloutSource(rows=Numbers(4))])
    assert [row for _, row in play(schedule, 3, 4, solved=solved_by_row)] == [0, 1, 2, 3] * 3
    assert schedule.metrics([]) == {}


def test_every_source_is_visited_in_its_own_passes():
    seen = play(mixture(), 10, 10, solved=solved_by_row)
    assert Counter(source for source, _ in seen) == {"a": 50, "b": 30, "c": 20}
    for name, length in zip("abc", (7, 11, 5), strict=True):
        rows = [row for source, row in seen if source == name]
        assert rows == [number % length for number in range(len(rows))]


@pytest.mark.parametrize(
    "curriculum",
    [
        None,
        CurriculumConfig(replay=0.3),
        CurriculumConfig(pools=POOLS),
        CurriculumConfig(pools=POOLS, replay=0.25, max_reuse=40, memory=0.8),
    ],
)
def test_killed_and_resumed_at_any_step_the_order_is_that_of_the_uninterrupted_run(curriculum):
    whole = play(mixture(curriculum), 20, 6, solved=solved_by_row)
    schedule, seen = mixture(curriculum), []
    for step in range(20):
        saved = json.dumps(schedule.state_dict())
        # The killed play goes on after its state was saved; nothing of that may count.
        play(schedule, 1, 6, solved=lambda *_: [1.0, 0.0], first=step)
        schedule = mixture(curriculum)
        schedule.load_state_dict(json.loads(saved))
        seen += play(schedule, 1, 6, solved=solved_by_row, first=step)
    assert seen == whole


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(6))
def test_an_asynchronous_ledger_restored_at_any_event_draws_the_same_again(seed):
    """Prompts end in any order, are dropped or trained, and the state is saved between any two events."""
    curriculum = CurriculumConfig(pools=POOLS, replay=0.2)

    def run(kill_every):
        chosen = random.Random(seed)
        schedule, ledger, seen = mixture(curriculum), PromptLedger(), {}
        live = []
        for event in range(1, 301):
            action = chosen.random()
            if action < 0.5 and len(live) < 9:
                ordinal = ledger.admit(0)
                visit = schedule.draw(ordinal)
                seen[ordinal] = (visit.source, visit.number)
                live.append(ordinal)
            elif action < 0.9 and live:
                ordinal = live.pop(chosen.randrange(len(live)))
                kind = chosen.choice(["trained", "zero_variance", "fault"])
                rewards = [float(chosen.random() < 0.4) for _ in range(4)]
                ledger.drop(ordinal, kind)
                schedule.end(ordinal, None if kind == "fault" else group_of(ordinal, rewards))
            else:
                schedule.advance()
            if kill_every and event % kill_every == 0:
                saved = json.loads(json.dumps({"schedule": schedule.state_dict(), "ledger": ledger.state_dict()}))
                schedule, ledger = mixture(curriculum), PromptLedger.restored(saved["ledger"])
                schedule.load_state_dict(saved["schedule"])
                for ordinal in sorted(live):  # what was in flight is admitted again, with the same row
                    assert ledger.admit(0) == ordinal
                    again = schedule.draw(ordinal)
                    assert (again.source, again.number) == seen[ordinal]
        return seen

    assert run(7) == run(1) == run(0)


def test_outcomes_count_from_the_end_of_their_step():
    """Else a replacement within a step would depend on which prompt was dropped first."""
    orders = []
    for dropped in ((0, 1, 2), (2, 1, 0)):
        schedule = mixture(CurriculumConfig(replay=0.5), lengths=(3, 3, 3))
        first = [schedule.draw(ordinal) for ordinal in range(6)]
        for ordinal in dropped:
            schedule.end(ordinal, group_of(ordinal, [float(ordinal == 1)] * 2))
        rest = [schedule.draw(ordinal) for ordinal in range(6, 9)]
        schedule.advance()
        orders.append([*first, *rest, *(schedule.draw(ordinal) for ordinal in range(9, 15))])
    assert orders[0] == orders[1]


def test_rows_move_between_pools_and_pools_are_drawn_by_weight():
    schedule = PromptSchedule(
        [RolloutSource(rows=Numbers(60))], seed=1, curriculum=CurriculumConfig(pools=POOLS, memory=0.0)
    )

    def solved(source, row, step):
        return [1.0] * (row // 15) + [0.0] * (3 - row // 15)  # rates 0, 1/3, 2/3, 1

    play(schedule, 40, 10, solved=solved)
    found = schedule.metrics([])
    assert found["curriculum/pool/unseen"] == 0
    assert (found["curriculum/pool/hard"], found["curriculum/pool/middle"], found["curriculum/pool/easy"]) == (
        15,
        30,
        15,
    )
    late = Counter(row // 15 for _, row in play(schedule, 45, 10, solved=solved, first=40))
    shares = [late[0] / 450, (late[1] + late[2]) / 450, late[3] / 450]
    assert shares == pytest.approx([1 / 4.5, 3 / 4.5, 0.5 / 4.5], abs=0.02)


def test_replay_repeats_hard_rows_for_its_share_and_no_others():
    schedule = PromptSchedule([RolloutSource(rows=Numbers(40))], curriculum=CurriculumConfig(replay=0.25, memory=0.0))
    rows = [
        row for _, row in play(schedule, 50, 8, solved=lambda source, row, step: [float(row >= 4), float(row >= 4)])
    ]
    late = Counter(rows[200:])
    assert sum(late[row] for row in range(4)) == pytest.approx(50, abs=2)
    others = [late[row] for row in range(4, 40)]
    assert max(others) - min(others) <= 1


def test_no_row_is_visited_more_often_than_allowed_and_then_the_source_is_named():
    for curriculum in (CurriculumConfig(max_reuse=2), CurriculumConfig(max_reuse=2, replay=0.5)):
        schedule = mixture(curriculum, lengths=(3, 50, 50), weights=(1, 1, 1))
        seen = play(schedule, 18, 1, solved=solved_by_row)
        with pytest.raises(SourceExhaustedError, match=r"source 'a' is used up: 6 prompts .* 3 rows") as caught:
            play(schedule, 3, 1, solved=solved_by_row, first=18)
        assert max(Counter(seen).values()) <= 2
        assert "curriculum.max_reuse" in caught.value.fix
        assert "weight of 'a'" in caught.value.fix


def test_more_prompts_in_flight_than_rows_repeat_those_that_wait_longest():
    schedule = PromptSchedule([RolloutSource(rows=Numbers(3))], curriculum=CurriculumConfig(replay=0.1))
    assert [schedule.draw(ordinal).number for ordinal in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_metrics_of_each_source():
    schedule = mixture(CurriculumConfig(replay=0.2))
    play(schedule, 2, 10, solved=solved_by_row)
    groups = [group_of(20, [1.0, 0.0], "a"), group_of(21, [0.5, 1.0], "a"), group_of(22, [0.0, 0.0], "b")]
    found = schedule.metrics(groups)
    assert found["source/a/share"] == pytest.approx(2 / 3)
    assert found["source/a/reward_mean"] == 0.625
    assert found["source/a/pass_rate"] == 0.5
    assert found["source/a/rows"] == 7
    assert found["source/a/epochs"] == pytest.approx(10 / 7)
    assert found["source/c/share"] == 0
    assert "source/c/reward_mean" not in found
    assert sum(found[f"source/b/pool/{pool}"] for pool in ("unseen", "seen")) == 11


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "no sources"),
        ([("a", 1.0), ("", 1.0)], "needs a name"),
        ([("a", 1.0), ("a", 1.0)], "two sources"),
        ([("a", 1.0), ("b", 0.0)], "'b' has weight 0.0"),
    ],
)
def test_sources_that_make_no_sense_are_refused(sources, message):
    with pytest.raises(UsageError, match=message):
        PromptSchedule([RolloutSource(name=name, rows=Numbers(2), weight=weight) for name, weight in sources])


def test_the_state_of_other_sources_is_refused():
    with pytest.raises(UsageError, match="the saved order is that of sources"):
        mixture().load_state_dict(mixture(weights=(1, 1, 1)).state_dict())


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"hard": PoolConfig(up_to=0.5)}, "rows above have no pool"),
        ({"a": PoolConfig(), "b": PoolConfig()}, "same up_to"),
        ({"a": PoolConfig(weight=0)}, "every weight is 0"),
        ({"unseen": PoolConfig()}, "always there"),
    ],
)
def test_pools_that_make_no_sense_are_refused(pools, message):
    with pytest.raises(ConfigError, match=message):
        CurriculumConfig(pools=pools)


# -- in the executor ---------------------------------------------------------------------------------------------------


class Recorder:
    """The rows of a run, by executor: which workflow ran which row."""

    def __init__(self, world):
        self.world = world

    def executor(self, engine, curriculum=None, lengths=(7, 11, 5), **config):
        def workflow(bias):
            # Row by row another difficulty; some groups have no variance and are replaced.
            return self.world.OneCall(reward=lambda data, tokens: float((tokens[0] + bias) % 5 < data["id"] % 4))

        sources = [
            RolloutSource(name=name, rows=Numbers(length), weight=weight, workflow=workflow(index))
            for index, (name, length, weight) in enumerate(zip("abc", lengths, (0.5, 0.3, 0.2), strict=True))
        ]
        return RolloutExecutor(
            engine=engine,
            workflow=workflow(0),
            rows=PromptSchedule(sources, seed=1, curriculum=curriculum),
            config=RolloutConfig(
                batch_size=5, group_size=3, max_head_offpolicyness=0, filter_zero_variance=True, **config
            ),
            seed=1,
        )

    def train(self, rollout, engine, steps, first=0):
        order = []
        for version in range(first, first + steps):
            batch = rollout.next_batch()
            order += [(g.ordinal, g.source, g.trajectories[0].provenance.row) for g in batch.groups]
            assert all(item.source == group.source for group in batch.groups for item in group.trajectories)
            engine.publish(version + 1)
            rollout.advance(version + 1)
        return order


@pytest.mark.sample(1)
@pytest.mark.parametrize("surplus", [0, 3])
@pytest.mark.parametrize("curriculum", [None, CurriculumConfig(pools=POOLS, replay=0.2)])
def test_a_run_killed_after_any_step_trains_the_same_rows_in_the_same_order(world, curriculum, surplus):
    """Synchronous, with prompts dropped for equal rewards while others are in flight, and latencies that shuffle."""
    recorder, steps = Recorder(world), 8
    engine = world.VirtualEngine(latency=world.random_latency(9, 0.002))
    with recorder.executor(engine, curriculum, surplus_prompts=surplus) as rollout:
        rollout.start()
        whole = recorder.train(rollout, engine, steps)
        assert rollout.stats()["dropped/zero_variance"] > 0
    order, saved = [], None
    for step in range(steps):
        engine = world.VirtualEngine(latency=world.random_latency(step, 0.002), version=step)
        with recorder.executor(engine, curriculum, surplus_prompts=surplus) as rollout:
            if saved is not None:
                rollout.load_state_dict(json.loads(saved))
            rollout.start()
            order += recorder.train(rollout, engine, 1, first=step)
            saved = json.dumps(rollout.state_dict())
    assert order == whole


def test_a_run_that_uses_up_a_source_trains_what_it_has_and_says_what_to_do(world):
    recorder, engine = Recorder(world), world.VirtualEngine()
    with recorder.executor(engine, CurriculumConfig(max_reuse=1), lengths=(40, 9, 40)) as rollout:
        rollout.start()
        with pytest.raises(RolloutError, match="source 'b' is used up") as caught:
            recorder.train(rollout, engine, 20)
        assert rollout.stats()["steps"] >= 1
    assert caught.value.fix
