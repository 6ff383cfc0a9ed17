"""Rewards of turns and samples of several trajectories: hand-computed cases in float64, and what must not matter."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.algorithm import Objective, get_objective, packing
from areal.algorithm.advantages import GRPO
from areal.algorithm.blocks import make_block
from areal.algorithm.registry import ADVANTAGES, AGGREGATIONS
from areal.api import NO_VERSION, ConfigError, DataError, StopReason, Trajectory

BY_SAMPLE = ["drgrpo", "grpo", "maxrl", "opo", "outcome_plus_turn", "passk", "reinforce_pp_baseline", "rloo"]


def episode(turns, *, reward=0.0, rewards=None, group=0, index=0, masked=(), tokens_per_turn=None):
    """A prompt token, then per turn its sampled tokens and an observation token; `masked` turns are context only."""
    sizes = tokens_per_turn or [2] * turns
    mask, ids = [0], [NO_VERSION]
    for turn, size in enumerate(sizes):
        sampled = turn not in masked
        mask += [int(sampled)] * size + [0]
        ids += [turn if sampled else NO_VERSION] * size + [NO_VERSION]
    return Trajectory(
        tokens=list(range(len(mask))),
        loss_mask=mask,
        logprobs=[-0.5 * value for value in mask],
        versions=[0 if value else NO_VERSION for value in mask],
        turn_ids=ids,
        reward=reward,
        turn_rewards=rewards or {},
        stop_reason=StopReason.STOP,
        group_id=group,
        sample_index=index,
    )


def advantages(choice, trajectories, *, values=None, truncated=None):
    """Advantages [S, L] in float64, by a block or the one of that name."""
    batch = packing.collate(trajectories, with_samples=True)
    objective = Objective(advantage=make_block("advantage", choice, GRPO()))
    return objective.advantages(
        batch.rewards.double(),
        batch.groups,
        mask=batch.loss_mask,
        values=values,
        truncated=truncated,
        turn_ids=batch.turn_ids,
        turn_rewards=None if batch.turn_rewards is None else batch.turn_rewards.double(),
        samples=batch.samples,
    ).advantages


def by_turn(choice, trajectories, **inputs):
    """{turn: advantage} of every trajectory; all tokens of a turn have the same."""
    found = []
    for row, item in zip(advantages(choice, trajectories, **inputs), trajectories, strict=True):
        turns = {}
        for value, turn, sampled in zip(row.tolist(), item.turn_ids, item.loss_mask, strict=False):
            if sampled:
                assert turns.setdefault(turn, value) == value
        found.append(turns)
    return found


# ------------------------------------------------------------------------------------------------- hand-computed


def test_turn_return_is_the_discounted_return_above_that_of_the_other_samples_at_the_same_turn():
    group = [
        episode(3, reward=1.0, rewards={0: 0.25, 1: 0.5}, index=0),  # returns 0.75, 1.0, 1.0 with gamma 0.5
        episode(2, reward=0.0, rewards={0: 0.5, 1: 0.25}, index=1),  # 0.625, 0.25
        episode(1, reward=2.0, index=2),  # 2.0
    ]

    found = by_turn({"name": "turn_return", "gamma": 0.5}, group)

    assert found[0] == pytest.approx({0: 0.75 - 2.625 / 2, 1: 1.0 - 2.25 / 2, 2: 1.0 - 2.25 / 2}, abs=1e-15)
    assert found[1] == pytest.approx({0: 0.625 - 2.75 / 2, 1: 0.25 - 3.0 / 2}, abs=1e-15)
    assert found[2] == pytest.approx({0: 2.0 - 1.375 / 2}, abs=1e-15)


def test_a_branched_sample_stands_in_the_baseline_of_others_once():
    group = [
        episode(2, reward=1.0, rewards={0: 1.0}, index=0, masked=()),  # returns 2, 1
        episode(2, reward=1.0, rewards={1: 3.0}, index=0, masked=(0,)),  # begins with turn 1: 4
        episode(2, reward=0.0, index=1),
    ]

    found = by_turn("turn_return", group)

    assert found == [{0: 2.0, 1: 1.0}, {1: 4.0}, {0: -2.0, 1: -2.5}]


def test_outcome_plus_turn_adds_the_turn_above_all_turns_of_the_group():
    group = [
        episode(2, reward=1.0, rewards={0: 0.5, 1: -0.5}, index=0),
        episode(1, reward=0.0, rewards={0: 0.6}, index=1),
    ]
    mean = 0.6 / 3

    found = by_turn({"name": "outcome_plus_turn", "turn_weight": 2.0}, group)

    assert found[0] == pytest.approx({0: 0.5 + 2 * (0.5 - mean), 1: 0.5 + 2 * (-0.5 - mean)}, abs=1e-7)
    assert found[1] == pytest.approx({0: -0.5 + 2 * (0.6 - mean)}, abs=1e-7)


def test_gae_turn_takes_one_step_per_turn_with_the_rewards_of_turns():
    one = episode(2, reward=1.0, rewards={0: 0.25})
    # Columns: prompt, turn 0 (two tokens), observation, turn 1 (two), observation. V at the first token of a turn.
    values = torch.tensor([[9.0, 0.5, 7.0, 9.0, 0.125, 7.0, 9.0]], dtype=torch.float64)
    gamma, lam = 0.5, 0.25
    last = 1.0 - 0.125
    first = 0.25 + gamma * 0.125 - 0.5 + gamma * lam * last

    found = by_turn({"name": "gae_turn", "gamma": gamma, "lam": lam}, [one], values=values)
    cut = by_turn(
        {"name": "gae_turn", "gamma": gamma, "lam": lam}, [one], values=values, truncated=torch.tensor([True])
    )

    assert found == [pytest.approx({0: first, 1: last}, abs=1e-15)]
    bootstrapped = last + gamma * 0.125
    assert cut == [pytest.approx({0: first + gamma * lam * gamma * 0.125, 1: bootstrapped}, abs=1e-15)]


def test_gae_puts_rewards_of_turns_on_their_last_token():
    one = episode(2, reward=1.0, rewards={0: 0.25})
    values = torch.zeros(1, 7, dtype=torch.float64)

    found = advantages({"name": "gae", "gamma": 0.5}, [one], values=values)

    assert found.tolist() == [[0.0, 0.5 * (0.25 + 0.25 * 1.0), 0.25 + 0.25 * 1.0, 0.0, 0.5, 1.0, 0.0]]


def test_reinforce_pp_discounts_at_every_border_between_turns():
    one = episode(3, reward=1.0, rewards={1: 0.5}, tokens_per_turn=[2, 1, 1])

    found = advantages({"name": "reinforce_pp", "gamma": 1.0, "gamma_turn": 0.5, "whiten": False}, [one])

    assert found.tolist() == [[0.0, 0.5, 0.5, 0.0, 1.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("choice", "first", "second"),
    [
        ("drgrpo", 0.375, -0.375),
        ({"name": "grpo", "eps": 0.0}, 0.5**0.5, -(0.5**0.5)),
        ("rloo", 0.75, -0.75),
        ("maxrl", 0.375 / 0.625, -0.375 / 0.625),
        ("opo", 1.0 - 0.85, 0.25 - 0.85),
        ({"name": "passk", "eps": 0.0}, 0.75 / (2 * 0.375**2) ** 0.5, 0.0),
    ],
)
def test_group_baselines_are_over_samples_however_many_trajectories_they_have(choice, first, second):
    # Totals 1.0 and 0.25; the first has three trajectories with 8 sampled tokens in all, the second one with 2.
    group = [
        episode(2, reward=0.5, rewards={0: 0.25}, index=0),
        episode(2, reward=0.5, index=0, masked=(0,)),
        episode(2, reward=0.5, rewards={1: 0.25}, index=0, masked=(0,)),
        episode(1, reward=0.25, index=1),
    ]

    found = by_turn(choice, group)

    for turns in found[:3]:
        assert list(turns.values()) == pytest.approx([first] * len(turns), abs=1e-15)
    assert found[3] == pytest.approx({0: second}, abs=1e-15)


# ---------------------------------------------------------------------------------------- what must not matter


def cut(item, at):
    """The same sample as two trajectories: turns before `at`, and those from `at` with the others as context."""
    count = max(item.turn_ids) + 1
    before, after = set(range(at)), set(range(at, count))

    def part(masked):
        mask = [int(value and turn not in masked) for value, turn in zip(item.loss_mask, item.turn_ids, strict=True)]
        return replace(
            item,
            loss_mask=mask,
            versions=[0 if value else NO_VERSION for value in mask],
            turn_ids=[turn if value else NO_VERSION for value, turn in zip(mask, item.turn_ids, strict=True)],
            logprobs=[-0.5 * value for value in mask],
            turn_rewards={turn: value for turn, value in item.turn_rewards.items() if turn not in masked},
        )

    return [part(after), part(before)]


def loss_and_gradient(objective, trajectories, keys, logp_of):
    """Loss, and the gradient of every (sample, position); logp_of: (sample, position) to a leaf tensor."""
    batch = packing.collate(trajectories, with_samples=True)
    found = objective.advantages(
        batch.rewards.double(), batch.groups, mask=batch.loss_mask, turn_ids=batch.turn_ids, samples=batch.samples,
        turn_rewards=None if batch.turn_rewards is None else batch.turn_rewards.double(),
    )  # fmt: skip
    width = batch.tokens.shape[1]
    logp = torch.stack(
        [
            torch.stack([logp_of[key, t] if t < len(item.tokens) else torch.zeros((), dtype=torch.float64)
                         for t in range(width)])
            for key, item in zip(keys, trajectories, strict=True)
        ]
    )  # fmt: skip
    prox = torch.full_like(logp, -0.5).detach()
    output = objective.loss(
        logp, logp_prox=prox, logp_behave=prox, advantages=found.advantages, mask=batch.loss_mask,
        groups=batch.groups, samples=batch.samples,
    )  # fmt: skip
    leaves = list(logp_of.values())
    return output.loss.detach(), torch.stack(torch.autograd.grad(output.loss, leaves, allow_unused=False))


@pytest.mark.sample(3)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
@pytest.mark.parametrize("name", BY_SAMPLE)
def test_cutting_samples_into_trajectories_and_shuffling_them_changes_nothing(name, seed):
    chance = random.Random(seed)
    aggregation = chance.choice([key for key in AGGREGATIONS if key != "seq-mean-token-sum-norm"])
    objective = get_objective("ppo", kl={"coef": 0.0}, advantage=name, aggregation=aggregation)
    whole = []
    for group in range(2):
        for index in range(chance.randint(1, 4)):
            turns = chance.randint(1, 4)
            whole.append(
                episode(
                    turns,
                    reward=chance.choice([0.0, 1.0, 0.5]),
                    rewards={turn: chance.random() for turn in range(turns) if chance.random() < 0.5},
                    group=group,
                    index=index,
                    tokens_per_turn=[chance.randint(1, 3) for _ in range(turns)],
                )
            )
    keys = [(item.group_id, item.sample_index) for item in whole]
    logp_of = {
        (key, t): torch.tensor(-chance.random() - 0.05, dtype=torch.float64, requires_grad=True)
        for key, item in zip(keys, whole, strict=True)
        for t in range(len(item.tokens))
    }
    parts = []
    for key, item in zip(keys, whole, strict=True):
        turns = max(item.turn_ids) + 1
        pieces = cut(item, chance.randint(1, turns - 1)) if turns > 1 and chance.random() < 0.7 else [item]
        parts += [(key, piece) for piece in pieces]
    chance.shuffle(parts)

    loss, gradient = loss_and_gradient(objective, whole, keys, logp_of)
    other_loss, other_gradient = loss_and_gradient(
        objective, [piece for _, piece in parts], [key for key, _ in parts], logp_of
    )

    torch.testing.assert_close(other_loss, loss, atol=1e-6, rtol=0)
    torch.testing.assert_close(other_gradient, gradient, atol=1e-6, rtol=0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_step_of_branched_samples_does_not_depend_on_micro_batches_or_ranks(make_batch, seed):
    chance = random.Random(seed)
    batch = make_batch(seed)
    del batch["entropy"], batch["logp_ref"]
    batch["samples"] = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    objective = get_objective("grpo")
    names = ("mask", "groups", "samples", "logp_prox", "logp_behave")
    whole = objective.denominators(**{name: batch[name] for name in names})
    expected = objective.loss(**batch, denominators=whole).loss
    owner = [chance.randint(0, 2) for _ in range(7)]
    parts = [[row for row in range(7) if owner[row] == part] for part in sorted(set(owner))]
    cuts = [{name: tensor[rows] for name, tensor in batch.items()} for rows in parts]

    counted = [objective.denominators(**{name: part[name] for name in names}) for part in cuts]
    losses = [objective.loss(**part, denominators=whole).loss for part in cuts]

    assert type(whole).combine(counted) == whole
    torch.testing.assert_close(sum(losses), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_numbers_of_linear_samples_without_turn_rewards_are_those_of_before_bit_for_bit(name):
    generator = torch.Generator().manual_seed(3)
    mask = (torch.rand(6, 11, generator=generator) < 0.6).double()
    turn_ids = torch.where(mask > 0, torch.arange(11) // 4, -1)
    inputs = {
        "mask": mask,
        "turn_ids": turn_ids,
        "values": torch.randn(6, 11, generator=generator, dtype=torch.float64),
    }
    rewards, groups = torch.rand(6, generator=generator, dtype=torch.float64), torch.tensor([4, 4, 4, 1, 1, 7])
    objective = Objective(advantage=make_block("advantage", name, GRPO()))

    plain = objective.advantages(rewards, groups, **inputs).advantages
    explicit = objective.advantages(
        rewards, groups, **inputs, turn_rewards=torch.zeros_like(mask), samples=torch.arange(6) * 3
    ).advantages

    assert torch.equal(plain, explicit)


@pytest.mark.parametrize("name", ["outcome_plus_turn", "turn_return"])
def test_a_group_of_one_and_equal_samples_teach_nothing(name):
    alone = [episode(3, reward=0.3, rewards={0: 0.1}, index=0)]
    equal = [episode(2, reward=0.1, rewards={0: 0.1, 1: 0.1}, group=1, index=index) for index in range(7)]

    found = by_turn(name, [*alone, *equal])

    assert {value for turns in found for value in turns.values()} == {0.0}


def test_estimators_of_turns_say_what_they_need():
    mask = torch.ones(1, 3)
    objective = Objective(advantage=make_block("advantage", "turn_return", GRPO()))

    with pytest.raises(ConfigError, match="needs turn_ids"):
        objective.advantages(torch.zeros(1), torch.zeros(1), mask=mask)
    with pytest.raises(DataError, match="without a turn"):
        objective.advantages(torch.zeros(1), torch.zeros(1), mask=mask, turn_ids=torch.full((1, 3), -1))
    with pytest.raises(DataError, match="turn_rewards of samples"):
        objective.advantages(
            torch.zeros(1), torch.zeros(1), mask=mask, turn_ids=torch.zeros(1, 3, dtype=torch.int64),
            turn_rewards=torch.full((1, 3), float("nan")),
        )  # fmt: skip
