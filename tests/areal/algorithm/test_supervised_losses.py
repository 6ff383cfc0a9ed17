"""Preference, reward-model, critic and SFT losses, and reward shaping."""

from __future__ import annotations

import pytest
import torch

from areal.algorithm import critic, preference, reward_shaping, sft
from areal.algorithm.aggregate import count
from areal.api import ConfigError, DataError

# Two pairs (total log-ratio, number of tokens) of chosen and rejected, consistent with all golden preference values.
CHOSEN = [(1.0, 5), (0.4, 4)]
REJECTED = [(-0.5, 6), (0.1, 6)]
PAIRS = torch.tensor([[0, 2], [3, 1]])


def _pairs_batch() -> dict[str, torch.Tensor]:
    """Rows in the order chosen 0, rejected 1, rejected 0, chosen 1, after a 2-token prompt; the reference varies."""
    rows = [CHOSEN[0], REJECTED[1], REJECTED[0], CHOSEN[1]]
    mask = torch.zeros(4, 8, dtype=torch.float64)
    logp_ref = -torch.rand(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    logp = logp_ref.clone()
    for row, (total, length) in enumerate(rows):
        mask[row, 2 : 2 + length] = 1
        logp[row, 2 : 2 + length] += total / length
    return {"logp": logp, "logp_ref": logp_ref, "mask": mask, "pairs": PAIRS}


@pytest.mark.parametrize(
    ("entry", "kind", "options"),
    [
        ("dpo(.1)", "dpo", {}),
        ("cdpo(.1,.1)", "cdpo", {}),
        ("ipo norm", "ipo", {}),
        ("ipo sum", "ipo", {"length_normalised": False}),
    ],
)
def test_preference_losses_equal_the_golden_values_pair_by_pair(golden, entry, kind, options):
    batch = _pairs_batch()

    single = [
        preference.preference_loss(kind, **{**batch, "pairs": batch["pairs"][index : index + 1]}, **options).loss.item()
        for index in range(2)
    ]
    both = preference.preference_loss(kind, **batch, **options).loss.item()

    assert single == pytest.approx(golden[entry].tolist(), abs=1e-8)
    assert both == pytest.approx(golden[entry].mean().item(), abs=1e-8)


def test_bradley_terry_equals_the_golden_values(golden):
    scores = torch.tensor([2.0, 0.3, 1.0, -0.4], dtype=torch.float64)

    losses = preference.bradley_terry(scores[PAIRS[:, 0]], scores[PAIRS[:, 1]])
    mean = preference.bradley_terry_loss(scores, pairs=PAIRS)

    torch.testing.assert_close(losses, golden["bt"], atol=1e-8, rtol=0)
    assert mean.loss.item() == pytest.approx(golden["bt"].mean().item())
    assert mean.metrics["accuracy"] == 0.5


def test_pairs_split_over_ranks_add_up_to_the_loss_and_gradient_of_one_rank():
    batch = _pairs_batch()
    whole = batch["logp"].clone().requires_grad_()
    preference.preference_loss("dpo", **{**batch, "logp": whole}).loss.backward()
    parts = batch["logp"].clone().requires_grad_()

    total = torch.zeros((), dtype=torch.float64)
    for rows in ([0, 2], [3, 1]):
        local = {name: batch[name][rows] for name in ("logp_ref", "mask")}
        total = (
            total
            + preference.preference_loss("dpo", parts[rows], **local, pairs=torch.tensor([[0, 1]]), num_pairs=2).loss
        )
    total.backward()

    torch.testing.assert_close(parts.grad, whole.grad)


def test_dpo_does_not_overflow_and_swapped_rows_prefer_the_other_answer():
    extreme = preference.dpo(torch.tensor([-1e5]), torch.tensor([1e5]))
    batch = _pairs_batch()
    swapped = preference.preference_loss("dpo", **{**batch, "pairs": batch["pairs"].flip(1)})

    assert torch.isfinite(extreme).all()
    assert swapped.metrics["accuracy"] == 0
    assert swapped.loss > preference.preference_loss("dpo", **batch).loss


def test_long_answers_in_float32_keep_the_sign_of_a_small_margin():
    length = 4096
    logp = torch.full((2, length), -7.3)
    logp[0, 0] += 0.001

    output = preference.preference_loss(
        "dpo", logp, logp_ref=torch.zeros(2, length), mask=torch.ones(2, length), pairs=torch.tensor([[0, 1]])
    )

    assert output.metrics["accuracy"] == 1
    assert output.metrics["margin"].item() == pytest.approx(1e-4, rel=1e-2)


def test_wrong_pairs_and_settings_are_refused():
    batch = _pairs_batch()

    with pytest.raises(DataError, match=r"outside 0\.\.3"):
        preference.preference_loss("dpo", **{**batch, "pairs": torch.tensor([[0, 4]])})
    with pytest.raises(DataError, match="with itself"):
        preference.preference_loss("dpo", **{**batch, "pairs": torch.tensor([[1, 1]])})
    with pytest.raises(ConfigError, match="did you mean 'cdpo'"):
        preference.preference_loss("ccdpo", **batch)
    with pytest.raises(ConfigError, match="use 'cdpo'"):
        preference.preference_loss("ipo", **batch, label_smoothing=0.1)
    with pytest.raises(ConfigError, match="beta is 0"):
        preference.preference_loss("dpo", **batch, beta=0)


def test_no_pairs_give_a_zero_that_is_connected_to_the_graph():
    batch = _pairs_batch()
    logp = batch["logp"].requires_grad_()

    preference.preference_loss(
        "dpo", **{**batch, "logp": logp, "pairs": torch.zeros(0, 2, dtype=torch.int64)}
    ).loss.backward()

    assert torch.equal(logp.grad, torch.zeros_like(logp))


def test_the_overlong_penalty_equals_the_golden_values_and_mutates_nothing(golden):
    rewards = torch.zeros(5, dtype=torch.float64)
    lengths = torch.tensor([50, 80, 90, 100, 130])

    shaped = reward_shaping.overlong_penalty(rewards, lengths, max_length=100, buffer=20)

    torch.testing.assert_close(shaped, golden["overlong(max100,cache20)"])
    assert torch.equal(rewards, torch.zeros(5, dtype=torch.float64))
    assert shaped.min() == -1, "the penalty has a floor"


def test_the_overlong_filter_removes_truncated_sequences_and_mutates_nothing():
    mask = torch.ones(2, 3)

    filtered = reward_shaping.overlong_filter(mask, torch.tensor([False, True]))

    assert filtered.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert mask.sum() == 6


@pytest.mark.parametrize("options", [{"buffer": 0}, {"buffer": 200}, {"buffer": 20, "factor": -1.0}])
def test_overlong_settings_without_meaning_are_refused(options):
    with pytest.raises(ConfigError, match="overlong penalty"):
        reward_shaping.overlong_penalty(torch.zeros(1), torch.ones(1), max_length=100, **options)


def _value_batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(5, 7, generator=generator, dtype=torch.float64)
        for name in ("values", "old_values", "returns")
    }
    return {**tensors, "mask": (torch.rand(5, 7, generator=generator) < 0.6).double()}


def test_value_loss_takes_the_worse_of_free_and_clipped_values():
    # |V - ret| by hand: free 1.0, clipped to old + 0.5 gives 1.5 -> worse; free 2.0 beats clipped 0.5.
    arguments = {
        "values": torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True),
        "old_values": torch.tensor([[0.0, 1.0]], dtype=torch.float64),
        "returns": torch.tensor([[2.0, 1.0]], dtype=torch.float64),
        "mask": torch.ones(1, 2, dtype=torch.float64),
    }

    output = critic.value_loss(**arguments)
    output.loss.backward()

    assert output.loss.item() == pytest.approx(0.5 * (1.5**2 + 2.0**2) / 2)
    # The clipped branch is constant in V: the value already moved as far as one update may.
    assert arguments["values"].grad.tolist() == [[0.0, 1.0]]
    assert output.metrics["value_clip_fraction"] == 0.5


def test_without_movement_value_loss_is_half_the_squared_advantage(golden):
    inputs = golden.inputs
    expected = golden["gae(.99,.95,skip=True)"]
    returns, advantage = (torch.tensor(expected[key], dtype=torch.float64) for key in ("ret", "adv"))

    loss = critic.value_loss(inputs["values"], old_values=inputs["values"], returns=returns, mask=inputs["mask"]).loss

    assert loss.item() == pytest.approx((0.5 * advantage**2).sum().item() / inputs["mask"].sum().item(), abs=1e-12)


def test_value_loss_is_split_invariant_and_zero_on_an_all_masked_part():
    batch = _value_batch()
    batch["mask"][4] = 0
    whole = critic.value_loss(**batch).loss
    denominators = count(batch["mask"])

    parts = [
        critic.value_loss(**{name: tensor[rows] for name, tensor in batch.items()}, denominators=denominators).loss
        for rows in ([0, 2], [1, 3], [4])
    ]

    torch.testing.assert_close(sum(parts), whole)
    assert parts[2] == 0


def test_sft_is_cross_entropy_over_the_tokens_of_the_step():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (3, 5), generator=generator)
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
    logp = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    chosen = mask > 0

    for smoothing in (0.0, 0.1):
        expected = torch.nn.functional.cross_entropy(logits[chosen], targets[chosen], label_smoothing=smoothing)
        output = sft.sft_loss(
            logp,
            mask=mask,
            label_smoothing=smoothing,
            mean_vocab_logp=sft.mean_vocab_logp(logits) if smoothing else None,
        )

        torch.testing.assert_close(output.loss, expected)
        torch.testing.assert_close(
            torch.autograd.grad(output.loss, logits, retain_graph=True),
            torch.autograd.grad(expected, logits, retain_graph=True),
        )
    denominators = count(mask)
    parts = [sft.sft_loss(logp[[row]], mask=mask[[row]], denominators=denominators).loss for row in range(3)]
    torch.testing.assert_close(sum(parts), sft.sft_loss(logp, mask=mask).loss)


def test_label_smoothing_asks_for_what_it_needs():
    with pytest.raises(ConfigError, match="needs mean_vocab_logp"):
        sft.sft_loss(torch.zeros(1, 2), mask=torch.ones(1, 2), label_smoothing=0.1)
    with pytest.raises(ConfigError, match="label_smoothing < 1"):
        sft.sft_loss(torch.zeros(1, 2), mask=torch.ones(1, 2), label_smoothing=1.0)
