"""How far sampler and trainer differ: right on the whole, and the same however the batch is cut."""

from __future__ import annotations

import math

import pytest
import torch

from areal.algorithm.tokens import combine
from areal.algorithm.tokens import mismatch_summary as summary
from areal.algorithm.tokens import sampler_mismatch as partial_sums

LOGP = torch.tensor([[-1.0, -2.0, -0.5], [-0.2, -3.0, 0.0]])
BEHAVE = torch.tensor([[-1.1, -2.0, -0.1], [-0.2, -3.5, 0.0]])
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
FRESH = torch.tensor([[True, False, False], [True, False, True]])


def sums(rows, **changes):
    inputs = {"logp": LOGP, "logp_behave": BEHAVE, "mask": MASK, "fresh": FRESH} | changes
    chosen = {name: tensor[rows] for name, tensor in inputs.items()}
    logp, behave = chosen.pop("logp"), chosen.pop("logp_behave")
    return partial_sums(logp, behave, **chosen, num_tokens=4.0, num_fresh=2.0)


def test_differences_of_the_tokens_on_the_mask():
    found = summary({name: float(value) for name, value in sums([0, 1]).items()})
    assert found["abs_mean"] == pytest.approx((0.1 + 0.0 + 0.0 + 0.5) / 4)
    assert found["abs_max"] == pytest.approx(0.5)
    assert found["fresh_abs_mean"] == pytest.approx(0.1 / 2)
    assert found["fresh_abs_max"] == pytest.approx(0.1)
    assert found["fresh_fraction"] == pytest.approx(0.5)
    weights = [math.exp(0.1), 1.0, 1.0, math.exp(0.5)]
    expected = sum(weights) ** 2 / (4 * sum(weight**2 for weight in weights))
    assert found["effective_sample_size"] == pytest.approx(expected)


def test_parts_of_a_batch_give_the_numbers_of_the_whole():
    whole = combine([sums([0, 1])])
    parts = combine([sums([0]), sums([1])])
    assert parts == pytest.approx(whole)


def test_equal_policies_agree_completely():
    found = summary({name: float(value) for name, value in sums([0, 1], logp_behave=LOGP).items()})
    assert found["abs_max"] == 0
    assert found["effective_sample_size"] == pytest.approx(1.0)


def test_a_number_that_is_none_does_not_spoil_the_others():
    broken = BEHAVE.clone()
    broken[0, 1] = -math.inf
    found = summary({name: float(value) for name, value in sums([0, 1], logp_behave=broken).items()})
    assert math.isfinite(found["abs_mean"])


def test_without_tokens_of_the_present_version_nothing_is_claimed_about_them():
    found = summary(
        {name: float(value) for name, value in sums([0, 1], fresh=torch.zeros(2, 3, dtype=torch.bool)).items()}
    )
    assert found["fresh_fraction"] == 0
    assert "fresh_abs_mean" not in found
