"""What an objective does with bad numbers, what it reports, and the identities its parts must satisfy."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
import torch

from areal.algorithm import PRESETS, get_objective
from areal.algorithm.tokens import combine
from areal.api import ConfigError, DataError


def one_row(**tensors: list[float]) -> dict[str, torch.Tensor]:
    """A batch of one sequence in float64; log-probabilities default to -1, advantages and mask to 1."""
    width = len(next(iter(tensors.values())))
    defaults = {"logp": -1.0, "logp_prox": -1.0, "logp_behave": -1.0, "advantages": 1.0, "mask": 1.0}
    rows = {name: tensors.get(name, [value] * width) for name, value in defaults.items()}
    return {name: torch.tensor([row], dtype=torch.float64) for name, row in rows.items()}


@pytest.mark.fault(
    row=21,
    injected="behaviour log-probabilities that are NaN or infinite",
    seen="rejected and counted, never a ratio",
)
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_non_finite_behaviour_logp_is_rejected_and_counted_not_turned_into_a_ratio(make_batch, preset):
    batch = make_batch(4)
    row, column = map(int, batch["mask"].nonzero()[0])
    for policy, bad in itertools.product(("logp_behave", "logp_prox"), (math.nan, -math.inf, math.inf)):
        broken = {**batch, policy: batch[policy].clone()}
        broken[policy][row, column] = bad
        logp = broken.pop("logp").clone().requires_grad_()
        output = get_objective(preset).loss(logp, **broken)
        output.loss.backward()
        assert torch.isfinite(output.loss)
        assert torch.isfinite(logp.grad).all()
        assert logp.grad[row, column] == 0
        assert output.metrics["rejected_nonfinite_count"] == 1
        assert output.metrics["masked_fraction"] >= 1 / batch["mask"].sum() - 1e-12


@pytest.mark.fault(
    row=21,
    injected="log-ratios of +-1000 and beyond",
    seen="loss and gradient finite; the tokens are counted",
)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("jump", [1e3, -1e3])
def test_enormous_log_ratios_stay_finite_and_are_counted(preset, jump):
    batch = one_row(logp=[-1.0 + jump, -1.0], logp_prox=[-1.0, -1.0], logp_behave=[-1.0, -1.0 - jump])
    logp = batch.pop("logp").clone().requires_grad_()

    output = get_objective(preset).loss(logp, **batch)
    output.loss.backward()

    assert torch.isfinite(output.loss)
    assert torch.isfinite(logp.grad).all()
    assert output.metrics["clamp_count"] >= 1
    assert all(torch.isfinite(value) for value in output.metrics.values())


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_whatever_stands_on_masked_positions_reaches_neither_loss_nor_gradient(make_batch, preset):
    batch = make_batch(5)
    objective = get_objective(preset, kl={"estimator": "k2", "coef": 0.1, "place": "loss"}, entropy_coef=0.01)
    poisoned = {
        name: tensor
        if name in {"mask", "groups"}
        else torch.where(batch["mask"] > 0, tensor, torch.tensor(math.nan).double())
        for name, tensor in batch.items()
    }
    results = []
    for source in (batch, poisoned):
        given = dict(source)
        logp = given.pop("logp").clone().requires_grad_()
        output = objective.loss(logp, **given)
        output.loss.backward()
        results.append((output.loss.detach(), logp.grad))

    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_non_finite_current_logp_reaches_the_loss_so_that_the_step_is_skipped():
    batch = one_row(logp=[math.nan, -1.0])

    assert not torch.isfinite(get_objective("grpo").loss(**batch).loss)


def test_with_equal_policies_every_correction_leaves_the_policy_gradient(make_batch):
    batch = make_batch(6)
    for name in ("logp", "logp_prox"):
        batch[name] = batch["logp_behave"].clone()
    gradients = []
    for overrides in (
        {},
        {"decoupled": True},
        *({"correction": name} for name in ("tis", "icepop", "mis", "geometric", "kpop", "m2po", "opsm")),
    ):
        given = dict(batch)
        logp = given.pop("logp").clone().requires_grad_()
        get_objective("dapo", **overrides).loss(logp, **given).loss.backward()
        gradients.append(logp.grad)

    expected = -batch["advantages"] * batch["mask"] / batch["mask"].sum()
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("preset", ["ppo", "dapo", "cispo", "sapo", "dppo", "icepop", "m2po", "maxrl"])
def test_on_policy_every_token_level_surrogate_has_the_reinforce_gradient(make_batch, preset):
    batch = make_batch(7)
    for name in ("logp", "logp_prox"):
        batch[name] = batch["logp_behave"].clone()
    logp = batch.pop("logp").requires_grad_()

    get_objective(preset, aggregation="token-sum").loss(logp, **batch).loss.backward()

    torch.testing.assert_close(logp.grad, -batch["advantages"] * batch["mask"])


def test_gspo_in_token_form_equals_the_sequence_form(make_batch):
    batch = make_batch(8)
    per_sequence = batch["advantages"].sum(1, keepdim=True)
    batch["advantages"] = per_sequence.expand_as(batch["mask"])
    mask = batch["mask"]
    lengths = mask.sum(1, keepdim=True).clamp(min=1)

    first = batch["logp"].clone().requires_grad_()
    ratio = (((first - batch["logp_prox"]) * mask).sum(1, keepdim=True) / lengths).exp()
    losses = torch.maximum(-per_sequence * ratio, -per_sequence * ratio.clamp(0.9, 1.1))
    by_sequence = (losses * (mask.sum(1, keepdim=True) > 0)).sum() / (mask.sum(1) > 0).sum()
    by_sequence.backward()

    given = dict(batch)
    second = given.pop("logp").clone().requires_grad_()
    by_token = get_objective("gspo", surrogate={"clip_low": 0.1, "clip_high": 0.1}).loss(second, **given).loss
    by_token.backward()

    torch.testing.assert_close(by_token, by_sequence)
    torch.testing.assert_close(second.grad, first.grad)


def test_metrics_say_what_happened_to_the_tokens():
    batch = one_row(
        logp=[math.log(0.5), math.log(0.3), math.log(0.2), -1.0],
        logp_prox=[math.log(0.25), math.log(0.3), math.log(0.4), -1.0],
        logp_behave=[math.log(0.25), math.log(0.1), math.log(0.4), -1.0],
        advantages=[1.0, 1.0, -1.0, 1.0],
        mask=[1.0, 1.0, 1.0, 0.0],
    )
    entropy = torch.tensor([[0.3, 0.6, 0.9, 99.0]], dtype=torch.float64)

    report = get_objective("icepop", correction={"high": 2.0}, entropy_coef=0.5).loss(**batch, entropy=entropy).metrics

    expected = {
        "ratio": (2.0 + 1.0 + 0.5) / 3,
        "ratio_max": 2.0,
        "clip_fraction": 2 / 3,
        "entropy": 0.6,
        "behave_abs_diff": math.log(3) / 3,
        "behave_abs_diff_max": math.log(3),
        "behave_weight": (1 + 3 + 1) / 3,
        "behave_weight_square": (1 + 9 + 1) / 3,
        "correction_weight": 2 / 3,
        "correction_weight_max": 1.0,
        "masked_fraction": 1 / 3,
        "clamp_count": 0.0,
        "rejected_nonfinite_count": 0.0,
        "approx_kl": ((0.5 - 1 + math.log(2)) + 0.0 + (2 - 1 - math.log(2))) / 3,
    }
    assert {name: float(report[name]) for name in expected} == pytest.approx(expected)
    assert all(value.dim() == 0 and not value.requires_grad for value in report.values())


def test_dual_clip_bounds_the_loss_of_bad_tokens_and_is_reported():
    batch = one_row(logp=[0.0], logp_prox=[-math.log(4)], advantages=[-1.0])

    bounded = get_objective("ppo", surrogate={"dual_clip": 3.0}).loss(**batch)
    free = get_objective("ppo").loss(**batch)

    assert bounded.loss.item() == pytest.approx(3.0)
    assert bounded.metrics["dual_clip_fraction"] == 1
    assert free.loss.item() == pytest.approx(4.0)
    assert free.metrics["dual_clip_fraction"] == 0


def test_metrics_combine_by_sum_maximum_and_minimum():
    combined = combine([{"a": 1.0, "b_max": 2.0, "c_min": 3.0}, {"a": torch.tensor(2.0), "b_max": 1.0, "c_min": -1.0}])

    assert combined == {"a": 3.0, "b_max": 2.0, "c_min": -1.0}


def test_the_entropy_bonus_lowers_the_loss_and_is_differentiable(make_batch):
    batch = make_batch(9)
    entropy = batch.pop("entropy").requires_grad_()

    without = get_objective("dapo").loss(**batch, entropy=entropy).loss
    with_bonus = get_objective("dapo", entropy_coef=0.5).loss(**batch, entropy=entropy).loss
    with_bonus.backward()

    mean = (entropy * batch["mask"]).sum() / batch["mask"].sum()
    torch.testing.assert_close(with_bonus, without - 0.5 * mean)
    torch.testing.assert_close(entropy.grad, -0.5 * batch["mask"] / batch["mask"].sum())


def test_m2po_keeps_the_second_moment_below_its_threshold_and_drops_as_few_tokens_as_possible(make_batch):
    batch = make_batch(10)
    objective = get_objective("m2po", correction={"max_second_moment": 0.01})

    cut = objective.denominators(
        mask=batch["mask"], logp_prox=batch["logp_prox"], logp_behave=batch["logp_behave"]
    ).step_threshold

    squares = (batch["logp_prox"] - batch["logp_behave"])[batch["mask"] > 0] ** 2
    kept = squares[squares <= cut]
    assert kept.mean() < 0.01
    assert torch.cat([kept, squares[squares > cut].min().reshape(1)]).mean() >= 0.01


def test_m2po_treats_equal_tokens_equally_and_may_drop_all():
    ties = {
        "mask": torch.ones(1, 4),
        "logp_behave": torch.zeros(1, 4),
        "logp_prox": torch.tensor([[0.0, 0.5, 0.5, 0.5]]),
    }

    assert get_objective("m2po", correction={"max_second_moment": 0.1}).denominators(**ties).step_threshold == 0.0
    assert get_objective("m2po", correction={"max_second_moment": 1.0}).denominators(**ties).step_threshold == 0.25
    far = {**ties, "logp_prox": torch.ones(1, 4)}
    assert get_objective("m2po").denominators(**far).step_threshold == -1.0


def test_denominators_survive_pickling_and_compare_by_value(make_batch):
    batch = make_batch(11)
    denominators = get_objective("m2po").denominators(
        **{name: batch[name] for name in ("mask", "groups", "logp_prox", "logp_behave")}
    )

    assert pickle.loads(pickle.dumps(denominators)) == denominators
    assert denominators.tokens == batch["mask"].sum()
    assert denominators.loss_sequences == 6


def test_inputs_that_the_settings_need_are_asked_for(make_batch):
    batch = make_batch(12)
    bare = {name: batch[name] for name in ("logp", "logp_prox", "logp_behave", "advantages", "mask")}

    with pytest.raises(ConfigError, match="not given logp_ref"):
        get_objective("grpo", kl={"coef": 0.1}).loss(**bare)
    with pytest.raises(ConfigError, match="not given entropy"):
        get_objective("grpo", entropy_coef=0.1).loss(**bare)
    with pytest.raises(ConfigError, match="needs groups"):
        get_objective("ppo", aggregation="prompt-mean").loss(**bare)
    with pytest.raises(ConfigError, match="pass logp_prox and logp_behave"):
        get_objective("m2po").denominators(mask=bare["mask"])
    with pytest.raises(ConfigError, match=r"token_rewards=objective\.token_rewards"):
        get_objective("rloo", kl={"coef": 0.1}).advantages(torch.zeros(7), batch["groups"], mask=bare["mask"])
    with pytest.raises(DataError, match=r"advantages has shape \(7,\), expected \(7, 9\)"):
        get_objective("grpo").loss(**{**bare, "advantages": torch.zeros(7)})
    with pytest.raises(ConfigError, match="beyond the length"):
        get_objective("grpo").denominators(mask=torch.ones(1, 3), lengths=torch.tensor([2]))


def test_kl_in_the_reward_is_the_penalty_of_every_policy_token(make_batch):
    batch = make_batch(13)
    objective = get_objective("reinforce_pp", kl={"coef": 0.2})

    rewards = torch.zeros(batch["mask"].shape[0], dtype=batch["mask"].dtype)
    penalty = objective.token_rewards(rewards, batch["logp_prox"], batch["logp_ref"], mask=batch["mask"])

    assert objective.needs_reference
    assert objective.needs_token_rewards
    torch.testing.assert_close(penalty, -0.2 * (batch["logp_prox"] - batch["logp_ref"]) * batch["mask"])


def test_with_kept_denominators_the_kl_term_is_a_mean_over_kept_tokens_only():
    batch = one_row(logp_behave=[-1.0, -9.0], advantages=[0.0, 0.0])
    settings = {"correction": "icepop", "kl": {"estimator": "k2", "coef": 1.0}}
    logp_ref = torch.tensor([[-2.0, -4.0]], dtype=torch.float64)

    kept = get_objective("dapo", **settings, denominator="kept").loss(**batch, logp_ref=logp_ref)
    original = get_objective("dapo", **settings).loss(**batch, logp_ref=logp_ref)

    assert kept.loss.item() == pytest.approx(0.5)
    assert original.loss.item() == pytest.approx((0.5 + 4.5) / 2)
