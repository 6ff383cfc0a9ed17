"""Advantages and GAE against golden values, and the degenerate cases that peers get wrong."""

from __future__ import annotations

import math

import pytest
import torch

from areal.algorithm import Objective, get_objective
from areal.algorithm.advantages import GAE, GRPO, DrGRPO, MaxRL, PassK, ReinforcePP, TurnGAE
from areal.algorithm.blocks import make_block
from areal.algorithm.registry import ADVANTAGES
from areal.api import ConfigError, DataError

# Estimators without critic whose baseline is a statistic of the group.
BASELINES = ["drgrpo", "grpo", "maxrl", "opo", "passk", "reinforce_pp_baseline", "rloo"]


def compute(advantage, rewards, groups, **inputs):
    """Advantages by an estimator, or by the one of that name with its defaults."""
    return estimate(advantage, rewards, groups, **inputs).advantages


def estimate(advantage, rewards, groups, **inputs):
    return Objective(advantage=make_block("advantage", advantage, GRPO())).advantages(rewards, groups, **inputs)


def gae(inputs, *, mask, values=None, rewards=None, truncated=None, **fields):
    """(advantages, returns) of per-token rewards."""
    found = estimate(
        GAE(**fields), torch.zeros(mask.shape[0], dtype=torch.float64), torch.zeros(mask.shape[0]),
        mask=mask, values=inputs["values"] if values is None else values, truncated=truncated,
        token_rewards=inputs["token_rewards"] if rewards is None else rewards,
    )  # fmt: skip
    return found.advantages, found.returns


@pytest.mark.parametrize(
    ("entry", "advantage"),
    [
        ("grpo(std unbiased,eps1e-6)", GRPO()),
        ("grpo(eps1e-4)", GRPO(eps=1e-4)),
        ("dr_grpo", DrGRPO()),
        ("dr_grpo", GRPO(std=False)),
        ("rloo", "rloo"),
        ("maxrl", MaxRL()),
        ("opo", "opo"),
    ],
)
def test_group_advantages_equal_the_golden_values_on_every_policy_token(golden, entry, advantage):
    inputs = golden.inputs

    result = compute(advantage, inputs["rewards"], inputs["groups"], mask=inputs["mask"])

    torch.testing.assert_close(result, golden["adv", entry].unsqueeze(1) * inputs["mask"], atol=1e-12, rtol=0)


def test_every_golden_advantage_is_covered(golden):
    assert set(golden["adv"]) == {"grpo(std unbiased,eps1e-6)", "grpo(eps1e-4)", "dr_grpo", "rloo", "maxrl", "opo"}


@pytest.mark.parametrize(
    ("entry", "advantage"),
    [
        ("reinforce_pp(gamma=.9) returns", ReinforcePP(gamma=0.9, whiten=False)),
        ("reinforce_pp adv", ReinforcePP(gamma=0.9)),
        ("reinforce_pp_baseline adv", "reinforce_pp_baseline"),
    ],
)
def test_reinforce_pp_equals_the_golden_values_across_a_tool_gap(golden, entry, advantage):
    inputs = golden.inputs

    result = compute(advantage, inputs["rewards"], inputs["groups"], mask=inputs["mask"])

    torch.testing.assert_close(result, golden[entry], atol=1e-8, rtol=0)


def test_gae_equals_the_golden_values_with_masked_tokens_transparent(golden):
    inputs = golden.inputs

    advantage, returns = gae(inputs, mask=inputs["mask"], gamma=0.99, lam=0.95)

    expected = golden["gae(.99,.95,skip=True)"]
    torch.testing.assert_close(advantage, torch.tensor(expected["adv"], dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(returns, torch.tensor(expected["ret"], dtype=torch.float64), atol=1e-12, rtol=0)
    # Without rewards of tokens, that of the sample is on its last policy token.
    given = {"mask": inputs["mask"], "values": inputs["values"]}
    computed = compute(GAE(gamma=0.99, lam=0.95), inputs["rewards"], inputs["groups"], **given)
    torch.testing.assert_close(computed, advantage, atol=1e-12, rtol=0)
    wrong = torch.tensor(golden["gae(.99,.95,skip=False)"]["adv"], dtype=torch.float64)
    assert (advantage - wrong).abs().max() > 0.01, "stepping through tool tokens is the documented wrong answer"


def test_gae_ignores_what_stands_on_masked_positions(golden):
    inputs = golden.inputs
    poisoned = torch.where(inputs["mask"] > 0, inputs["values"], math.nan)
    arguments = {"mask": inputs["mask"], "gamma": 0.99, "lam": 0.95}

    clean = gae(inputs, **arguments)
    dirty = gae(inputs, values=poisoned, **arguments)

    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


def test_a_truncated_episode_bootstraps_from_its_last_value_and_a_finished_one_from_zero():
    mask = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 0]], dtype=torch.float64)
    values = torch.tensor([[9.0, 0.2, 0.5, 9.0]] * 2, dtype=torch.float64)

    rewards, truncated = torch.zeros(2, 4, dtype=torch.float64), torch.tensor([True, False])
    result, _ = gae({}, rewards=rewards, values=values, mask=mask, lam=0.0, truncated=truncated)

    torch.testing.assert_close(result, torch.tensor([[0, 0.3, 0.0, 0], [0, 0.3, -0.5, 0]], dtype=torch.float64))


def test_adaptive_lambda_depends_on_the_number_of_policy_tokens():
    mask = torch.ones(1, 4, dtype=torch.float64)
    values = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)

    given = {"rewards": rewards, "values": values, "mask": mask}
    adaptive, returns = gae({}, **given, adaptive_lambda=0.5, lam_returns=1.0)
    by_hand, _ = gae({}, **given, lam=1 - 1 / (0.5 * 4))

    torch.testing.assert_close(adaptive, by_hand)
    torch.testing.assert_close(returns, torch.ones_like(returns))


def test_turn_level_gae_takes_one_step_per_turn():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0]], dtype=torch.float64)
    turn_ids = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1]])
    values = torch.tensor([[7.0, 0.5, 7.0, 7.0, 0.25, 7.0, 7.0, 7.0]], dtype=torch.float64)
    token_rewards = torch.tensor([[0.0, 0.1, 0.2, 9.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    gamma, lam = 0.9, 0.8

    found = estimate(
        TurnGAE(gamma=gamma, lam=lam),
        torch.tensor([5.0], dtype=torch.float64),
        torch.tensor([0]),
        mask=mask,
        values=values,
        token_rewards=token_rewards,
        turn_ids=turn_ids,
    )

    last = 1.0 - 0.25
    first = 0.3 + gamma * 0.25 - 0.5 + gamma * lam * last
    expected = torch.tensor([[0, first, first, 0, last, last, last, 0]], dtype=torch.float64)
    torch.testing.assert_close(found.advantages, expected)
    torch.testing.assert_close(
        found.returns, expected + torch.tensor([[0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.0]]).double()
    )


def test_with_one_token_per_turn_turn_level_gae_is_token_level_gae(golden):
    inputs = golden.inputs
    turn_ids = (inputs["mask"].cumsum(1) - 1).long()
    given = {name: inputs[name] for name in ("mask", "values", "token_rewards")}
    given |= {"turn_ids": turn_ids, "truncated": torch.tensor([1, 0, 1, 0, 0]).bool()}

    by_turn = estimate(TurnGAE(gamma=0.99, lam=0.95), inputs["rewards"], inputs["groups"], **given)
    by_token = estimate(GAE(gamma=0.99, lam=0.95), inputs["rewards"], inputs["groups"], **given)

    torch.testing.assert_close(by_turn.advantages, by_token.advantages)
    torch.testing.assert_close(by_turn.returns, by_token.returns)


@pytest.mark.fault(
    row=19,
    injected="groups with one member left",
    seen="advantage 0, no NaN",
)
@pytest.mark.parametrize("name", BASELINES)
def test_a_group_of_one_and_a_group_of_equal_rewards_teach_nothing(name):
    # 0.1 + 0.1 + 0.1 is not 0.3 in binary: the mean of equal rewards is off by one unit in the last place.
    rewards = torch.tensor([0.1, 0.1, 0.1, 5.0], dtype=torch.float64)
    groups = torch.tensor([3, 3, 3, 7])

    result = compute(name, rewards, groups, mask=torch.ones(4, 2))

    assert torch.equal(result, torch.zeros(4, 2, dtype=torch.float64))


@pytest.mark.fault(
    row=19,
    injected="samples of unequal groups in any order",
    seen="advantages are those of each group by its id",
)
@pytest.mark.parametrize("name", BASELINES)
def test_groups_are_found_by_id_wherever_their_samples_stand(name):
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.25, 1.0], dtype=torch.float64)
    groups = torch.tensor([4, -9, 4, -9, 4, -9])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.float64)
    order = torch.tensor([0, 2, 4, 1, 3, 5])

    shuffled = compute(name, rewards, groups, mask=mask)
    sorted_ = compute(name, rewards[order], groups[order], mask=mask[order])

    torch.testing.assert_close(shuffled[order], sorted_)
    assert shuffled.abs().sum() > 0


def test_maxrl_is_zero_without_a_positive_mean_and_passk_rewards_only_the_best():
    groups, mask = torch.zeros(3, dtype=torch.int64), torch.ones(3, 1, dtype=torch.float64)

    negative = compute("maxrl", torch.tensor([-1.0, 0.0, -2.0]), groups, mask=mask)
    best = compute(PassK(eps=0.0), torch.tensor([1.0, 3.0, 2.0]), groups, mask=mask)

    assert torch.equal(negative, torch.zeros(3, 1))
    torch.testing.assert_close(best, torch.tensor([[0.0], [1.0], [0.0]]))


def test_token_rewards_stand_in_place_of_the_scalar_reward():
    mask = torch.tensor([[1, 1], [1, 0]], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    per_token = torch.tensor([[-0.1, 0.8], [-0.5, -9.0]], dtype=torch.float64)
    groups = torch.tensor([0, 0])

    by_token = compute(ReinforcePP(whiten=False), rewards, groups, mask=mask, token_rewards=per_token)
    by_group = compute("drgrpo", rewards, groups, mask=mask, token_rewards=per_token)

    torch.testing.assert_close(by_token, torch.tensor([[0.7, 0.8], [-0.5, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(by_group, torch.tensor([[0.6, 0.6], [-0.6, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_reward_that_is_no_number_is_refused_with_its_index(name):
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(DataError, match=r"\[1\]"):
            compute(
                name,
                torch.tensor([1.0, bad]),
                torch.tensor([0, 0]),
                mask=torch.ones(2, 2),
                values=torch.zeros(2, 2),
            )


def test_missing_inputs_are_errors_that_say_what_to_do():
    arguments = (torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    mask = torch.ones(2, 2)

    with pytest.raises(ConfigError, match="needs critic values"):
        compute("gae", *arguments, mask=mask)
    with pytest.raises(ConfigError, match="needs turn_ids"):
        compute("gae_turn", *arguments, mask=mask, values=mask)
    with pytest.raises(DataError, match=r"groups has shape \(3,\), expected \(2,\)"):
        compute("grpo", arguments[0], torch.tensor([0, 0, 0]), mask=mask)


def test_whitening_one_token_gives_zero_and_not_a_crash():
    result = compute("reinforce_pp", torch.tensor([1.0]), torch.tensor([0]), mask=torch.tensor([[0.0, 1.0]]))

    assert torch.equal(result, torch.zeros(1, 2))


def test_an_objective_computes_the_advantages_of_its_preset(golden):
    inputs = golden.inputs

    result = get_objective("grpo", advantage={"eps": 1e-4}).advantages(
        inputs["rewards"], inputs["groups"], mask=inputs["mask"]
    )
    unnormalised = get_objective("grpo", advantage={"std": False}).advantages(
        inputs["rewards"], inputs["groups"], mask=inputs["mask"]
    )

    torch.testing.assert_close(result.advantages, golden["adv", "grpo(eps1e-4)"].unsqueeze(1) * inputs["mask"])
    torch.testing.assert_close(unnormalised.advantages, golden["adv", "dr_grpo"].unsqueeze(1) * inputs["mask"])


def test_ppo_whitens_its_advantages_and_returns_targets_for_the_critic(golden):
    inputs = golden.inputs

    found = get_objective("ppo").advantages(
        inputs["rewards"], inputs["groups"], mask=inputs["mask"], values=inputs["values"]
    )

    chosen = found.advantages[inputs["mask"] > 0]
    assert chosen.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert chosen.std().item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(found.returns, inputs["rewards"].unsqueeze(1) * inputs["mask"])
