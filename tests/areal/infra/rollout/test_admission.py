"""The policies and the ledger against an adversary that chooses what finishes, fails and when: pure, without clocks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.groups import STALE, SURPLUS
from areal.infra.rollout.ledger import AdmissionPolicy, PromptLedger, PromptState


class Model:
    """A trainer and an engine whose every move the test chooses; checks the promises after each."""

    def __init__(self, config):
        self.config, self.policy, self.ledger = config, AdmissionPolicy(config), PromptLedger()
        self.version, self.trained, self.dropped = 0, [], set()
        self.batch = None
        self.admit()

    def admit(self, *, waiting=False):
        for _ in range(self.policy.room(self.ledger, waiting=waiting)):
            self.ledger.admit(self.version)
        self.check()

    def in_flight(self):
        return [p.ordinal for p in self.ledger.live.values() if p.state is PromptState.IN_FLIGHT]

    def end_one(self, position, fails):
        candidates = self.in_flight()
        if not candidates:
            return
        ordinal = candidates[position % len(candidates)]
        if fails:
            self.ledger.drop(ordinal, "fault")
            self.dropped.add(ordinal)
        else:
            self.ledger.finish(ordinal)
        self.admit()

    def take(self):
        batch = self.policy.select(self.ledger, self.version) if self.batch is None else None
        if batch is not None:
            self.batch = batch
            ages = [self.version - self.ledger.live[ordinal].admitted_version for ordinal in self.batch]
            assert len(self.batch) == self.config.batch_size
            assert max(ages) <= self.config.max_head_offpolicyness
            self.ledger.take(self.batch)
            for ordinal in self.policy.surplus(self.ledger):
                if self.policy.requeues:
                    self.ledger.requeue(ordinal)
                else:
                    self.ledger.drop(ordinal, SURPLUS)
                    self.dropped.add(ordinal)
            if self.config.surplus_prompts:
                left = len(self.ledger.live) - self.config.batch_size
                assert left <= self.config.max_head_offpolicyness * self.config.batch_size
            self.admit()

    def wait(self):
        self.admit(waiting=True)

    def advance(self, stepped):
        if self.batch is None:
            return
        self.ledger.train()
        self.trained += self.batch
        self.batch = None
        self.version += stepped
        for ordinal in self.policy.expired(self.ledger, self.version):
            self.ledger.drop(ordinal, STALE)
            self.dropped.add(ordinal)
        self.admit()

    def check(self):
        ledger, config = self.ledger, self.config
        idle = self.batch is None
        most = (config.max_head_offpolicyness + 1) * config.batch_size + idle * config.surplus_prompts
        assert len(ledger.live) <= most
        assert len(self.in_flight()) <= (config.max_concurrent_prompts or len(ledger.live))
        assert list(ledger.live) == sorted(ledger.live)
        assert len({*ledger.live} & {*ledger._waiting}) == 0
        everything = sorted([*self.trained, *self.dropped, *ledger.live, *ledger._waiting])
        assert everything == list(range(ledger.next_ordinal)), "every ordinal is in exactly one place"
        assert sum(ledger.counts().values()) == 2 * ledger.next_ordinal
        assert all(ordinal < ledger.watermark or ordinal in ledger.trained for ordinal in self.trained)

    def drain(self):
        """Let everything finish: a batch must come out (no policy may deadlock)."""
        for _ in range(10 * (self.config.max_head_offpolicyness + 2) * self.config.batch_size):
            self.take()
            if self.batch is not None:
                return
            self.end_one(0, False)
        raise AssertionError("nothing can be trained although everything finishes")


MOVES = {"end": "end_one", "take": "take", "wait": "wait", "advance": "advance"}
moves = st.lists(
    st.one_of(
        st.tuples(st.just("end"), st.integers(0, 50), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(False)),
        st.tuples(st.just("take")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("advance"), st.sampled_from([1, 1, 1, 0])),
    ),
    max_size=120,
)


@settings(max_examples=250, deadline=None)
@given(
    moves=moves,
    consume=st.sampled_from(["fifo", "deadline", "drop"]),
    batch_size=st.integers(1, 4),
    bound=st.integers(0, 3),
    concurrency=st.sampled_from([0, 1, 2, 5]),
    surplus=st.sampled_from([0, 0, 1, 4]),
)
def test_whatever_happens_the_bound_holds_and_progress_is_possible(
    moves, consume, batch_size, bound, concurrency, surplus
):
    config = RolloutConfig(
        batch_size=batch_size,
        max_head_offpolicyness=bound,
        consume=consume,
        max_concurrent_prompts=concurrency,
        surplus_prompts=surplus,
    )
    model = Model(config)
    for move, *arguments in moves:
        getattr(model, MOVES[move])(*arguments)
        model.check()
    model.drain()
    if consume == "fifo":
        assert model.trained == sorted(model.trained)


@settings(max_examples=100, deadline=None)
@given(moves=moves, batch_size=st.integers(1, 4), bound=st.integers(0, 3))
def test_a_restored_ledger_admits_exactly_what_was_live_and_then_new_ordinals(moves, batch_size, bound):
    model = Model(RolloutConfig(batch_size=batch_size, max_head_offpolicyness=bound, consume="deadline"))
    for move, *arguments in moves:
        getattr(model, MOVES[move])(*arguments)
    restored = PromptLedger.restored(json.loads(json.dumps(model.ledger.state_dict())))
    owed = sorted(model.ledger.live)
    assert restored.num_waiting == len(owed)
    admitted = [restored.admit(9) for _ in range(len(owed) + 2)]
    assert admitted == [*owed, model.ledger.next_ordinal, model.ledger.next_ordinal + 1]
    assert restored.counts()["trained"] == len(model.trained)


def test_with_bound_zero_nothing_is_admitted_while_a_batch_is_being_trained():
    model = Model(RolloutConfig(batch_size=3, max_head_offpolicyness=0))
    for _ in range(3):
        model.end_one(0, False)
    model.take()
    assert model.batch == (0, 1, 2)
    assert model.policy.room(model.ledger) == 0
    model.advance(1)
    assert model.in_flight() == [3, 4, 5]


def test_a_dropped_prompt_is_replaced_at_once_by_the_next_ordinal():
    model = Model(RolloutConfig(batch_size=3, max_head_offpolicyness=0))
    model.end_one(1, True)
    assert model.in_flight() == [0, 2, 3]


def test_fifo_waits_for_the_oldest_and_deadline_does_not():
    batches = {}
    for consume in ("fifo", "deadline", "drop"):
        model = Model(RolloutConfig(batch_size=2, max_head_offpolicyness=1, consume=consume))
        for _ in range(3):
            model.end_one(1, False)  # everything but ordinal 0
        model.take()
        batches[consume] = model.batch
    assert batches == {"fifo": None, "deadline": (1, 2), "drop": (1, 2)}


def test_drop_ends_what_became_too_old_wherever_it_is_and_replaces_it():
    model = Model(RolloutConfig(batch_size=1, max_head_offpolicyness=1, consume="drop"))
    for _ in range(2):
        model.end_one(1, False)  # ordinal 0 never finishes
        model.take()
        model.advance(1)
    assert model.ledger.num_dropped == {STALE: 1}
    assert 0 in model.dropped
    assert len(model.in_flight()) == 2
    finished_but_old = Model(RolloutConfig(batch_size=2, max_head_offpolicyness=1, consume="drop"))
    for _ in range(3):
        finished_but_old.end_one(0, False)
    policy, ledger = finished_but_old.policy, finished_but_old.ledger
    assert (policy.expired(ledger, 1), policy.expired(ledger, 2)) == ((), (0, 1, 2, 3))


def test_deadline_refuses_a_batch_that_would_leave_too_many_due_at_once():
    config = RolloutConfig(batch_size=2, max_head_offpolicyness=1, consume="deadline")
    ledger, policy = PromptLedger(), AdmissionPolicy(config)
    for _ in range(3):
        ledger.admit(0)  # due at version 1
    fresh = [ledger.admit(1) for _ in range(1)]
    ledger.finish(0)
    ledger.finish(fresh[0])
    assert policy.select(ledger, 1) is None, "ordinals 1 and 2 are due now"
    ledger.finish(1)
    assert policy.select(ledger, 1) is None, "taking 0 and 1 would leave 2 behind"
    assert policy.select(ledger, 0) is not None


def test_the_watermark_keeps_the_ledger_small():
    model = Model(RolloutConfig(batch_size=4, max_head_offpolicyness=2, consume="deadline"))
    for step in range(500):
        model.drain()
        model.advance(1)
        assert len(model.ledger.trained) + len(model.ledger.dropped) <= 12
        if step % 7 == 0:
            model.end_one(3, True)
    assert model.ledger.num_trained == 2000


@pytest.mark.parametrize("transition", ["finish", "take"])
def test_a_wrong_transition_is_a_bug_that_shows(transition):
    ledger = PromptLedger()
    ledger.admit(0)
    if transition == "finish":
        ledger.finish(0)
        with pytest.raises(AssertionError, match="prompt 0 is finished"):
            ledger.finish(0)
    else:
        with pytest.raises(AssertionError, match="prompt 0 is in_flight"):
            ledger.take([0])
