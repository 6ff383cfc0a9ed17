"""Critic and SFT losses, and reward shaping."""

from __future__ import annotations

import pytest
import torch

from areal.algorithm.advantages import overlong_filter, overlong_penalty
from areal.algorithm.aggregations import count
from areal.algorithm.supervised import sft_loss, value_loss
from areal.api import ConfigError


def test_the_overlong_penalty_equals_the_golden_values_and_mutates_nothing(golden):
    rewards = torch.zeros(5, dtype=torch.float64)
    lengths = torch.tensor([50, 80, 90, 100, 130])

    shaped = overlong_penalty(rewards, lengths, max_length=100, buffer=20)

    torch.testing.assert_close(shaped, golden["overlong(max100,cache20)"])
    assert torch.equal(rewards, torch.zeros(5, dtype=torch.float64))
    assert shaped.min() == -1, "the penalty has a floor"


def test_the_overlong_filter_removes_truncated_sequences_and_mutates_nothing():
    mask = torch.ones(2, 3)

    filtered = overlong_filter(mask, torch.tensor([False, True]))

    assert filtered.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert mask.sum() == 6


@pytest.mark.parametrize("options", [{"buffer": 0}, {"buffer": 200}, {"buffer": 20, "factor": -1.0}])
def test_overlong_settings_without_meaning_are_refused(options):
    with pytest.raises(ConfigError, match="overlong penalty"):
        overlong_penalty(torch.zeros(1), torch.ones(1), max_length=100, **options)


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

    output = value_loss(**arguments)
    output.loss.backward()

    assert output.loss.item() == pytest.approx(0.5 * (1.5**2 + 2.0**2) / 2)
    # The clipped branch is constant in V: the value already moved as far as one update may.
    assert arguments["values"].grad.tolist() == [[0.0, 1.0]]
    assert output.metrics["value_clip_fraction"] == 0.5


def test_without_movement_value_loss_is_half_the_squared_advantage(golden):
    inputs = golden.inputs
    expected = golden["gae(.99,.95,skip=True)"]
    returns, advantage = (torch.tensor(expected[key], dtype=torch.float64) for key in ("ret", "adv"))

    loss = value_loss(inputs["values"], old_values=inputs["values"], returns=returns, mask=inputs["mask"]).loss

    assert loss.item() == pytest.approx((0.5 * advantage**2).sum().item() / inputs["mask"].sum().item(), abs=1e-12)


def test_value_loss_is_split_invariant_and_zero_on_an_all_masked_part():
    batch = _value_batch()
    batch["mask"][4] = 0
    whole = value_loss(**batch).loss
    denominators = count(batch["mask"])

    parts = [
        value_loss(**{name: tensor[rows] for name, tensor in batch.items()}, denominators=denominators).loss
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

    expected = torch.nn.functional.cross_entropy(logits[chosen], targets[chosen])
    output = sft_loss(logp, mask=mask)

    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(output.loss, logits, retain_graph=True),
        torch.autograd.grad(expected, logits, retain_graph=True),
    )
    denominators = count(mask)
    parts = [sft_loss(logp[[row]], mask=mask[[row]], denominators=denominators).loss for row in range(3)]
    torch.testing.assert_close(sum(parts), sft_loss(logp, mask=mask).loss)
